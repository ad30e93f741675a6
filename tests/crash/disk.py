"""A disk that fills up, and one that fails, under load; and damage at rest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from .campaign import Campaign, stories
from .damage import damages
from .history import FULL as FULL_STATUS
from .history import History
from .node import Node, NotReady
from .peer import Lost, connected
from .power import NoCompiler, build_shim
from .stopwatch import Stopwatch
from .summary import Summary

NONE, FULL, WRITE, FLUSH = 0, 1, 2, 3
"""What the shim lets writes and flushes come to."""
END_SECONDS = 10.0
"""How soon a broker whose disk fails has ended, by the stopwatch."""
RESUME_SECONDS = 10.0
"""How soon there is service again when there is room again, by the stopwatch."""
HANG_SECONDS = 60.0
"""What is waited for either, on the clock, before it is taken for a hang."""
PER_LIVE = 40
"""One round under load for so many trials of damage at rest."""
LEAST_LIVE = 2
"""But so many: one disk fills up then, and one fails."""


class DiskCampaign(Campaign):
    """One data directory's story on a disk that fills up and fails. A full disk is survived and refused cleanly; any
    other failure ends the process, and the next start has everything that was acknowledged."""

    reconnects: ClassVar[bool] = True
    start_kill_share: ClassVar[float] = 0.0
    refusals: ClassVar[frozenset[int]] = frozenset({507, 503})

    def __init__(self, directory: Path, seed: int, summary: Summary, *, shim: Path) -> None:
        self._shim = shim
        self._switch = directory.resolve() / "switch"
        self._switch.write_bytes(b"\0")
        self._turn = seed  # every kind begins in its turn, also where a directory has one round
        super().__init__(directory, seed, summary)
        self.world.history.refusals = self.refusals

    def make_node(self, **settings: str) -> Node:
        node = Node(self.directory.resolve(), **settings)
        node.environment = {
            "LD_PRELOAD": str(self._shim),
            "SHIM_DATA": str(node.data),
            "SHIM_FAIL": str(self._switch),
        }
        return node

    def _set(self, how: int) -> None:
        with self._switch.open("r+b") as file:
            file.write(bytes((how,)))

    async def trouble(self) -> None:
        await trio.sleep(self.chance.uniform(0.2, 0.8))
        how = (FULL, FLUSH, FULL, WRITE)[self._turn % 4]
        self._turn += 1
        self.summary.counts["disk_faults"] += 1
        self._set(how)
        if how == FULL:
            await self._full()
        else:
            await self._failed("write" if how == WRITE else "flush")
        self._set(NONE)

    async def _full(self) -> None:
        self.summary.counts["full_disks"] += 1
        with trio.move_on_after(HANG_SECONDS) as hung:
            await self._refused()
            await trio.sleep(self.chance.uniform(0.3, 2.0))
        if hung.cancelled_caught:
            self.summary.violations.append(f"the disk is full, and for {HANG_SECONDS:.0f} s no push was told so")
            return
        if self.node.wait(0) is not None:
            self.summary.violations.append(f"a full disk ended it: {self.node.said()[-2000:]}")
            return
        self._set(NONE)
        watch = Stopwatch(self.node.pid)
        with trio.move_on_after(HANG_SECONDS):
            while not await self._served():  # noqa: ASYNC110 - another process is waited for
                await trio.sleep(0.05)
            if watch.seconds() > RESUME_SECONDS:
                self.summary.violations.append(f"there was room again, and no service for {watch.seconds():.1f} s")
            await trio.sleep(self.chance.uniform(0.2, 0.8))
            return
        self.summary.violations.append(f"there was room again, and no service for {HANG_SECONDS:.0f} s")

    async def _refused(self) -> None:
        """A push is told that the disk is full, and what is there can be read meanwhile."""
        history, item = History(), {"queue": "crumbs", "payload": {}}
        while not any(call.status == FULL_STATUS for call in history.calls):
            try:
                async with connected(self.port, history, 0) as peer:
                    await peer.call("push", {"items": [item]})
            except Lost:
                await trio.sleep(0.05)
            if self.node.wait(0) is not None:  # that is told by who called
                return
        try:
            async with connected(self.port, history, 0) as peer:
                await peer.call("fetch", {"entries": [{"queue": "orders", "partition": "a", "offset": 0}]})
            self.summary.counts["read_on_a_full_disk"] += 1
        except Lost as lost:
            self.summary.violations.append(f"the disk is full, and what is there could not be read: {lost}")

    async def _served(self) -> bool:
        """Whether a push is taken."""
        item = {"queue": "orders", "partition": "a", "transactionId": f"d{self.world.serial()}"}
        item |= {"payload": {"txn": item["transactionId"]}}
        try:
            async with connected(self.port, self.world.history, 0) as peer:
                await peer.call("push", {"items": [item]})
        except Lost:
            return False
        return True

    async def _failed(self, what: str) -> None:
        self.summary.counts[f"failed_{what}"] += 1
        watch = Stopwatch(self.node.pid)
        status = await trio.to_thread.run_sync(self.node.wait, HANG_SECONDS)
        took = watch.seconds()
        if status is None:
            self.summary.violations.append(f"a {what} failed, and {HANG_SECONDS:.0f} s later it goes on")
        elif took > END_SECONDS:
            self.summary.violations.append(f"a {what} failed, and it ended only {took:.1f} s later")
        elif status <= 0:
            self.summary.violations.append(f"a {what} failed, and it ended with status {status}")
        self.may_have_ended = True

    async def after_death(self) -> None:
        """Sometimes it is started with a full disk: it serves what it has, or says why it does not start."""
        self._set(NONE)
        if self.chance.random() < 0.3:
            self.summary.counts["starts_on_a_full_disk"] += 1
            self._set(FULL)
            try:
                await trio.to_thread.run_sync(self.node.start)
                self.node.kill()
            except NotReady as refusal:
                if "full" not in str(refusal) and "space" not in str(refusal):
                    self.summary.violations.append(f"a start on a full disk: {refusal}")
            self._set(NONE)


async def disk(directory: Path, seed: int, count: int) -> Summary:
    """So many faults: nearly all of them damage at rest, some under load."""
    summary = Summary("disk", seed)
    live = max(LEAST_LIVE, count // PER_LIVE)
    place = directory / "damage"
    place.mkdir()
    await damages(place, summary, count - live)
    try:
        shim = await trio.to_thread.run_sync(build_shim, directory)
    except NoCompiler as error:
        summary.not_run.append(f"a full or failing disk under load: {error}")
        return summary
    await stories(partial(DiskCampaign, shim=shim), directory, summary, live)
    return summary
