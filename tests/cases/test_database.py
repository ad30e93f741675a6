"""Cases from the field about the database behind the log: many writers, and a directory that two want."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import trio

from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.domain.cursor import PopRequest
from queen_actors.domain.kv import Incr, WriteResult
from queen_actors.domain.partition import PushItem
from queen_actors.storage import store_of

from .conftest import Durable

WRITERS, ROUNDS = 16, 40


async def test_a67_sixteen_writers_and_readers_never_conflict(tmp_path: Path) -> None:
    """Pushes, counters and reads of sealed messages side by side, with seals and snapshots in between: no call fails,
    and every write is there once."""
    settings = Settings(data=str(tmp_path / "data"), journal_roll_bytes=20_000, snapshot_bytes=20_000)
    async with running(store_of(settings), settings) as broker:

        async def write(writer: int) -> None:
            for number in range(ROUNDS):
                await broker.push([PushItem("q", f"p{writer}", b'"%s"' % (b"x" * 200), txn=f"{writer}-{number}")])
                (counted,) = await broker.kv([Incr("n", "k", Decimal(1), None)])  # type: ignore[misc]  # one op: results
                assert isinstance(counted, WriteResult)
                assert counted.applied

        async def read(reader: int) -> None:
            request = PopRequest(queue="q", group=f"g{reader}", batch=50, partitions=4, auto_ack=True, wait=20_000_000)
            left = WRITERS * ROUNDS
            while left:
                reply = await broker.pop(request)
                assert reply.claims
                left -= sum(len(claim.records) for claim in reply.claims)

        async def seal() -> None:
            for _ in range(5):
                await broker.seal()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for n in range(WRITERS):
                    nursery.start_soon(write, n)
                for n in range(4):
                    nursery.start_soon(read, n)
                nursery.start_soon(seal)
        (counted,) = await broker.kv([Incr("n", "k", Decimal(0), None)])  # type: ignore[misc]  # one op: results
        assert isinstance(counted, WriteResult)
        assert counted.value == b"%d" % (WRITERS * ROUNDS)
        assert broker.statistics().store.segments


async def test_a68_a_directory_that_another_broker_has(server: Durable, tmp_path: Path) -> None:
    """A second broker and the command line's SQL are refused with one sentence and code 2; the first one goes on."""
    data = str(tmp_path / "data")
    for command in (["serve", "--port", "0", "--data", data], ["sql", "SELECT 1", "--data", data]):
        ended = await trio.to_thread.run_sync(
            lambda command=command: subprocess.run(
                [sys.executable, "-m", "queen_actors", *command],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        )
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1
    async with server.wire() as wire:
        assert (await wire.request("GET", "/health")).status == 200
