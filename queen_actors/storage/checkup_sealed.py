"""A look at segments and snapshots: whether their bytes are those that were written, and whether they fit together."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import duckdb

from queen_actors.errors import QueenError

from . import duck, segments
from .directory import JournalFile, Listing, SegmentFile, SnapshotFile, file_checksum
from .findings import BACKUP, Findings
from .journal import JournalReader

MEMORY_MB = 512
_WRONG = "has other bytes than those that were written: its checksum is wrong"


class SealedCheckup:
    """`position`: up to where the sealed part of the log reaches; `good`: the files whose bytes are right."""

    def __init__(self, listing: Listing, findings: Findings, spill: str) -> None:
        self._listing = listing
        self._findings = findings
        self._spill = spill
        self._damaged: set[str] = set()
        self.position = 0
        self.good: list[SegmentFile | SnapshotFile] = []

    def run(self) -> None:
        """Look at every file."""
        listing = self._listing
        files: list[SegmentFile | SnapshotFile] = [*listing.snapshots, *listing.segments]
        for file in files:
            self._check_bytes(file)
        usable = self._without_leftovers([file for file in listing.segments if self._is_good(file)])
        self.good = [*(file for file in listing.snapshots if self._is_good(file)), *usable]
        start = max((file.last for file in listing.snapshots if self._is_good(file)), default=0)
        rebuild = self._state_reaches(usable) if start == 0 else 0
        for snapshot in listing.snapshots:
            if not self._is_good(snapshot):
                self._judge_snapshot(snapshot, start, rebuild)
                if start == 0 and rebuild < snapshot.last:
                    self.position = max(self.position, snapshot.last)
        journals = {file.first for file in listing.journals if is_journal(file)}
        for segment in listing.segments:
            if not self._is_good(segment):
                self._judge_segment(segment, covered=segment.first in journals)
        self.position = max(self.position, start)
        self._follow(usable, journals)

    def _is_good(self, file: SegmentFile | SnapshotFile) -> bool:
        return file.path not in self._damaged

    def _check_bytes(self, file: SegmentFile | SnapshotFile) -> None:
        try:
            if file_checksum(file.path) == file.checksum:
                return
        except OSError as error:
            if stat.S_ISREG(os.lstat(file.path).st_mode):
                self._findings.add(os.path.basename(file.path), f"cannot be read: {error.strerror}", f"{BACKUP}.")
        self._damaged.add(file.path)

    def _judge_snapshot(self, file: SnapshotFile, start: int, rebuild: int) -> None:
        name = os.path.basename(file.path)
        if start:
            advice = "Another snapshot is good, and the next start uses it; a repair sets this one aside."
            self._findings.add(name, _WRONG, advice, "aside", harmless=True)
        elif rebuild >= file.last:
            advice = "All that was in it is in the segments: a repair makes it again from them."
            self._findings.add(name, _WRONG, advice, "rebuild")
        else:
            self._findings.add(name, _WRONG, f"What was in it is nowhere else. {BACKUP}, or this file alone.")

    def _judge_segment(self, file: SegmentFile, *, covered: bool) -> None:
        name = os.path.basename(file.path)
        if covered:
            advice = "The journal that it was made from is still there: a repair sets the segment aside."
            self._findings.add(name, _WRONG, advice, "aside")
        else:
            self._findings.add(name, _WRONG, f"What is in it is nowhere else. {BACKUP}, or this file alone.")

    def _without_leftovers(self, files: Sequence[SegmentFile]) -> list[SegmentFile]:
        kept: list[SegmentFile] = []
        for file in sorted(files, key=lambda file: (file.first, -file.last)):
            name = os.path.basename(file.path)
            if not kept or file.first >= kept[-1].last:
                kept.append(file)
                continue
            other = os.path.basename(kept[-1].path)
            if file.last <= kept[-1].last:
                self._findings.add(
                    name,
                    f"was merged into {other}, which is good, and was not removed yet",
                    "The next start removes it, and so does a repair.",
                    "remove",
                    harmless=True,
                )
            else:
                self._findings.add(name, f"overlaps {other}: one of them is not of this log", f"{BACKUP}.")
        return kept

    def _state_reaches(self, files: Sequence[SegmentFile]) -> int:
        """Up to which position the segments alone have the whole state, from the log's start on."""
        position = 0
        connection = duck.connect(MEMORY_MB, self._spill)
        try:
            for number, file in enumerate(files):
                if file.first != position:
                    break
                duck.attach(connection, file.path, f"state_{number}")
                if not segments.read_meta(connection, f"state_{number}").journal_bytes:
                    break
                position = file.last
        except (duckdb.Error, QueenError):
            return position  # what is wrong is told when the file is read for itself
        finally:
            connection.close()
        return position

    def _follow(self, usable: Sequence[SegmentFile], journals: set[int]) -> None:
        """Go along the segments from the snapshot on. Damaged ones count for what their names say, unless the journals
        that they were made from stand in for them."""
        good = {file.path for file in usable}
        for file in self._listing.segments:
            if file.last <= self.position or (file.path not in good and self._is_good(file)):
                continue
            if not self._is_good(file) and file.first in journals:
                break
            if file.first != self.position:
                self._findings.add(
                    os.path.basename(file.path),
                    f"begins at position {file.first}, and the log before it ends at {self.position}: a file is "
                    "missing",
                    f"{BACKUP}.",
                )
            self.position = file.last


def is_journal(file: JournalFile) -> bool:
    """Has the file the first page of a journal, of this version's format?"""
    try:
        JournalReader(file.path)
    except (QueenError, OSError):
        return False
    return True
