"""Which remedies of a look are safe: decided when everything has been looked at, and not before.

A repair takes files of the log away, or writes down how far it reaches. Each such file may be the last that has
something, or the last that says that something is lost. So the log is read as an open reads it, as it is and as it
would be after the repair; unless that succeeds and reaches as far as the log is known to have reached, no file of it
is touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import duckdb
import msgspec

from queen_actors.errors import QueenError

from . import recovery
from .checkup_sealed import MEMORY_MB
from .checkup_tail import SET_ASIDE
from .directory import DataDirectory, Listing
from .findings import BACKUP, Finding, Findings
from .tail import JournalTail

WITHHELD = "A repair leaves it as it is, because of what else is wrong: put that right first."
_STAYS = re.compile(r" (The file is|Every file is) kept| Restore ")  # what a refusal goes on with, and advice says here
_GOES = ("remove", "aside", "rebuild")


def of_log(finding: Finding, listing: Listing) -> bool:
    """Does the remedy touch what the log is read from, or what says how far it reaches?"""
    if finding.remedy == "remove":
        return finding.name in names_of_log(listing)
    return finding.remedy not in (None, "restrict")


class Settling:
    """Decides about the remedies of `found`. `noted`: how far the log is known to have reached."""

    def __init__(self, found: Findings, held: DataDirectory, listing: Listing, spill: str, noted: int) -> None:
        self._found = found
        self._held = held
        self._listing = listing
        self._spill = spill
        lasts = [file.last for file in listing.segments] + [file.last for file in listing.snapshots]
        self._reach = max(noted, *lasts, 0)
        """Every file's name says how far the log went when it was made."""
        self._aside: set[str] = set()
        """The names of the journals that a start sets aside."""

    def run(self) -> None:
        """Read the log as an open does, and withhold the remedies that are not safe."""
        if any(not finding.harmless and finding.remedy is None for finding in self._found.all):
            self._withhold()
            return
        refusal = self._refusal(self._listing)
        if refusal is None:
            self._change(self._as_a_start_does)
        elif not self._found.refused:
            self._found.add("", refusal, f"{BACKUP}.")
            self._withhold()
            return
        after = self._after()
        if refusal is None and after == self._listing:
            return
        refusal = self._refusal(after)
        self._change(self._kept_by_a_start)
        if refusal is not None:
            self._found.add("", f"{refusal} (after what a repair could do)", f"{BACKUP}.")
            self._withhold()

    def _refusal(self, listing: Listing) -> str | None:
        """Why an open would refuse these files; None when it accepts them, and nothing is lost that is known of."""
        try:
            plan = recovery.plan(self._held, listing)
            self._aside = {os.path.basename(path) for path in plan.aside}
            sealed = recovery.SealedLog(plan)
            try:
                sealed.start(MEMORY_MB, os.path.join(self._spill, "open"))
                tail = JournalTail(self._held, listing.journals, plan.position)
                for rows in (sealed.state(), sealed.runs(), tail.chunks()):
                    for _ in rows:
                        pass
            finally:
                sealed.close()
        except QueenError as error:
            return f"would be refused by a start: {_STAYS.split(error.detail)[0].rstrip('.')}"
        except (OSError, duckdb.Error) as error:
            return f"would be refused by a start: {str(error).rstrip('.')}"
        if tail.position < self._reach:
            return f"has a log that ends at position {tail.position}, and it reached to {self._reach}"
        return None

    def _as_a_start_does(self, finding: Finding) -> Finding:
        """The finding, when a start accepts the log."""
        finding = self._kept_by_a_start(finding)
        return msgspec.structs.replace(finding, harmless=finding.remedy != "format")

    def _kept_by_a_start(self, finding: Finding) -> Finding:
        """What the start keeps, a repair does not remove."""
        if finding.remedy == "remove" and finding.name in self._aside:
            return msgspec.structs.replace(finding, remedy=None, advice=SET_ASIDE)
        return finding

    def _after(self) -> Listing:
        """The files of the log without those that a repair would take away, but with every journal: whether one may go
        is what the start has to say."""
        gone = {finding.name for finding in self._found.all if finding.remedy in _GOES}

        listing = self._listing
        return Listing(
            listing.journals,
            [file for file in listing.segments if os.path.basename(file.path) not in gone],
            [file for file in listing.snapshots if os.path.basename(file.path) not in gone],
        )

    def _withhold(self) -> None:
        def without(finding: Finding) -> Finding:
            if finding.advice == SET_ASIDE:
                return msgspec.structs.replace(finding, advice=WITHHELD)
            if not of_log(finding, self._listing):
                return finding
            return msgspec.structs.replace(finding, remedy=None, at=0, advice=WITHHELD)

        self._change(without)

    def _change(self, change: Callable[[Finding], Finding]) -> None:
        self._found.all[:] = map(change, self._found.all)


def names_of_log(listing: Listing) -> set[str]:
    """The names of the files that the log is read from."""
    kinds = (listing.journals, listing.segments, listing.snapshots)
    return {os.path.basename(file.path) for files in kinds for file in files}
