"""A look at segments and snapshots: whether their bytes are those that were written, and whether they fit together."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

import duckdb

from queen_actors.errors import QueenError

from . import duck, leftovers
from .directory import JournalFile, Listing, SegmentFile, SnapshotFile, file_checksum
from .findings import BACKUP, Findings
from .journal import JournalReader
from .segments import Meta, read_meta

MEMORY_MB = 512
_WRONG = "has other bytes than those that were written: its checksum is wrong"


class SealedCheckup:
    """`position`: up to where the sealed part of the log reaches; `good`: the files whose bytes are right and that the
    log is read from; `parts`: those of them that have the state."""

    def __init__(self, listing: Listing, findings: Findings, spill: str) -> None:
        self._listing = listing
        self._findings = findings
        self._spill = spill
        self._damaged: set[str] = set()
        self._left: set[str] = set()
        self._metas: dict[str, Meta] = {}
        self.position = 0
        self.good: list[SegmentFile | SnapshotFile] = []
        self.parts: list[SegmentFile] = []

    def run(self) -> None:
        """Look at every file."""
        listing = self._listing
        files: list[SegmentFile | SnapshotFile] = [*listing.snapshots, *listing.segments]
        for file in files:
            self._check_bytes(file)
        snapshot = max((file for file in listing.snapshots if self._is_good(file)), default=None)
        start = snapshot.last if snapshot else 0
        usable = self._without_leftovers(snapshot)
        self._read_metas(usable)
        self.good = [*(file for file in listing.snapshots if self._is_good(file)), *usable]
        self.parts = self._with_state(usable, start)
        reach = self.parts[-1].last if self.parts else start
        for file in listing.snapshots:
            if not self._is_good(file):
                self._judge_snapshot(file, start, reach)
                if reach < file.last:
                    self.position = max(self.position, file.last)
        journals = {file.first for file in listing.journals if is_journal(file)}
        for segment in listing.segments:
            if not self._is_good(segment) and segment.path not in self._left:
                self._judge_segment(segment, usable, covered=segment.first in journals)
        self.position = max(self.position, start)
        self._follow(usable, journals)

    def holds(self, first: int, last: int) -> str | None:
        """The name of a good segment that has the positions behind `first` up to `last`: a journal's own segment, or
        one that it was merged into. None when there is none."""
        for file in self.good:
            if not isinstance(file, SegmentFile) or not file.first <= first <= last <= file.last:
                continue
            if (first, last) == (file.first, file.last) or self._is_merged(file):
                return os.path.basename(file.path)
        return None

    def _is_good(self, file: SegmentFile | SnapshotFile) -> bool:
        return file.path not in self._damaged

    def _is_merged(self, file: SegmentFile) -> bool:
        """Does the segment hold messages alone?"""
        meta = self._metas.get(file.path)
        return meta is not None and not meta.journal_bytes

    def _check_bytes(self, file: SegmentFile | SnapshotFile) -> None:
        try:
            if is_regular(file.path) and file_checksum(file.path) == file.checksum:
                return
        except OSError as error:
            self._findings.add(os.path.basename(file.path), f"cannot be read: {error.strerror}", f"{BACKUP}.")
        self._damaged.add(file.path)

    def _read_metas(self, files: Sequence[SegmentFile]) -> None:
        connection = duck.connect(MEMORY_MB, self._spill)
        try:
            for number, file in enumerate(files):
                # what is wrong is told when the file is read for itself
                with contextlib.suppress(duckdb.Error, QueenError):
                    duck.attach(connection, file.path, f"meta_{number}")
                    self._metas[file.path] = read_meta(connection, f"meta_{number}")
                    duck.detach(connection, f"meta_{number}")
        finally:
            connection.close()

    def _judge_snapshot(self, file: SnapshotFile, start: int, reach: int) -> None:
        name = os.path.basename(file.path)
        if not is_regular(file.path):
            return  # which is told of every file
        if reach < file.last:
            self._findings.add(name, _WRONG, f"What was in it is nowhere else. {BACKUP}, or this file alone.")
        elif start:
            advice = "A start uses the snapshot before it and what came since; a repair sets this one aside."
            self._findings.add(name, _WRONG, advice, "aside", harmless=True)
        else:
            advice = "All that was in it is in the segments: a repair makes it again from them."
            self._findings.add(name, _WRONG, advice, "rebuild")

    def _judge_segment(self, file: SegmentFile, usable: Sequence[SegmentFile], *, covered: bool) -> None:
        name = os.path.basename(file.path)
        if not is_regular(file.path):
            return
        position = file.first
        for part in usable:
            if part.first == position and part.last <= file.last:
                position = part.last
        if position == file.last:
            self._left.add(file.path)
            advice = "The segments that it was made from are still there: a repair sets it aside."
            self._findings.add(name, _WRONG, advice, "aside")
        elif covered:
            advice = "The journal that it was made from is still there: a repair sets the segment aside."
            self._findings.add(name, _WRONG, advice, "aside")
        else:
            self._findings.add(name, _WRONG, f"What is in it is nowhere else. {BACKUP}, or this file alone.")

    def _without_leftovers(self, snapshot: SnapshotFile | None) -> list[SegmentFile]:
        """The good segments that the log is read from; those that are left over are told, as a start sees it."""
        good = [file for file in self._listing.segments if self._is_good(file)]
        refusal = ""
        for files in ([file for file in self._listing.segments if is_regular(file.path)], good):
            try:
                with leftovers.sorting_out(snapshot, os.path.join(self._spill, "sort")) as sorting:
                    kept, left = sorting.segments(files)
            except (QueenError, OSError, duckdb.Error) as error:
                refusal = str(error)
                continue
            for file in left:
                self._tell_leftover(file, kept)
            return [file for file in kept if self._is_good(file)]
        said = refusal.partition(" Every file is kept")[0].replace(os.path.join(os.path.dirname(good[0].path), ""), "")
        self._findings.add("", f"has segments that do not go together: {said.rstrip('.')}", f"{BACKUP}.")
        usable: list[SegmentFile] = []
        for file in sorted(good, key=lambda file: (file.first, -file.last)):
            if not usable or file.first >= usable[-1].last:
                usable.append(file)
        return usable

    def _tell_leftover(self, file: SegmentFile, kept: Sequence[SegmentFile]) -> None:
        self._left.add(file.path)
        others = [other for other in kept if other.first < file.last and file.first < other.last]
        where = os.path.basename(others[0].path) if len(others) == 1 else f"{len(others)} segments of its positions"
        self._findings.add(
            os.path.basename(file.path),
            f"was left over by a merge: nothing is in it that is not in {where}",
            "The next start removes it, and so does a repair.",
            "remove",
            harmless=True,
        )

    def _with_state(self, files: Sequence[SegmentFile], start: int) -> list[SegmentFile]:
        """Those of the segments that have the whole state from position `start` on, each where the one before ends."""
        found: list[SegmentFile] = []
        position = start
        for file in files:
            if file.last <= start:
                continue
            meta = self._metas.get(file.path)
            if file.first != position or meta is None or not meta.journal_bytes:
                break
            found.append(file)
            position = file.last
        return found

    def _follow(self, usable: Sequence[SegmentFile], journals: set[int]) -> None:
        """Go along the segments from the snapshot on. Damaged ones count for what their names say, unless the journals
        that they were made from stand in for them."""
        good = {file.path for file in usable}
        for file in self._listing.segments:
            if file.last <= self.position or file.path in self._left or (file.path not in good and self._is_good(file)):
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


def is_regular(path: str) -> bool:
    """Is there a regular file of this name? Anything else (a pipe) may block whoever opens it."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def is_journal(file: JournalFile) -> bool:
    """Has the file the first page of a journal, of this version's format?"""
    try:
        return is_regular(file.path) and bool(JournalReader(file.path))
    except (QueenError, OSError):
        return False
