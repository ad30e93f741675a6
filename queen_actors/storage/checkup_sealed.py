"""A look at segments and snapshots: whether their bytes are those that were written, and whether they fit together."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

import duckdb

from queen_actors.errors import QueenError

from . import duck
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
        start = max((file.last for file in listing.snapshots if self._is_good(file)), default=0)
        segments = [file for file in listing.segments if self._is_good(file)]
        self._read_metas(segments)
        usable = self._without_leftovers(segments, start)
        self.good = [*(file for file in listing.snapshots if self._is_good(file)), *usable]
        self.parts = self._with_state(usable, start)
        reach = self.parts[-1].last if self.parts else start
        for snapshot in listing.snapshots:
            if not self._is_good(snapshot):
                self._judge_snapshot(snapshot, start, reach)
                if reach < snapshot.last:
                    self.position = max(self.position, snapshot.last)
        journals = {file.first for file in listing.journals if is_journal(file)}
        for segment in listing.segments:
            if not self._is_good(segment):
                self._judge_segment(segment, covered=segment.first in journals)
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

    def _judge_segment(self, file: SegmentFile, *, covered: bool) -> None:
        name = os.path.basename(file.path)
        if not is_regular(file.path):
            return
        if covered:
            advice = "The journal that it was made from is still there: a repair sets the segment aside."
            self._findings.add(name, _WRONG, advice, "aside")
        else:
            self._findings.add(name, _WRONG, f"What is in it is nowhere else. {BACKUP}, or this file alone.")

    def _without_leftovers(self, files: Sequence[SegmentFile], start: int) -> list[SegmentFile]:
        """The segments that the log is read from, without those that a merge has left over."""
        kept: list[SegmentFile] = []
        inside: dict[SegmentFile, list[SegmentFile]] = {}
        for file in sorted(files, key=lambda file: (file.first, -file.last, self._is_merged(file))):
            if not kept or file.first >= kept[-1].last:
                kept.append(file)
            elif file.last > kept[-1].last:
                other = os.path.basename(kept[-1].path)
                said = f"overlaps {other}: one of them is not of this log"
                self._findings.add(os.path.basename(file.path), said, f"{BACKUP}.")
            else:
                inside.setdefault(kept[-1], []).append(file)
        return [file for wide in kept for file in self._one_of(wide, inside.get(wide, []), start)]

    def _one_of(self, wide: SegmentFile, parts: Sequence[SegmentFile], start: int) -> Sequence[SegmentFile]:
        """Which to read, a segment or those that lie inside it; the others are told of."""
        if not parts:
            return [wide]
        if wide.first == parts[0].first and wide.last == parts[0].last:
            return self._one_of_twins(wide, parts)
        name = os.path.basename(wide.path)
        if self._is_merged(wide) and wide.last <= start:
            for part in parts:
                self._leftover(part, f"was merged into {name}, which is good, and was not removed yet")
            return [wide]
        with_state = self._with_state(parts, wide.first)
        if self._is_merged(wide) and with_state and with_state[-1].last == wide.last:
            said = "holds messages alone, and no good snapshot has the state; the segments that it was made from do"
            self._findings.add(name, said, "They have its messages too: a repair sets it aside.", "aside")
            return with_state
        for part in parts:
            said = f"lies inside {name}: not all of them are of this log, or a snapshot of it is missing"
            self._findings.add(os.path.basename(part.path), said, f"{BACKUP}.")
        return [wide]

    def _one_of_twins(self, first: SegmentFile, others: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
        """Of segments with the same positions, one may be what a merge has made of the other."""
        twins = [first, *(other for other in others if (other.first, other.last) == (first.first, first.last))]
        whole = next((file for file in twins if all(self._has_all_of(file, other) for other in twins)), None)
        kept = whole or first
        name = os.path.basename(kept.path)
        for other in (first, *others):
            if other is kept:
                continue
            if whole is not None and other in twins:
                self._leftover(other, f"holds nothing that is not in {name}, which has the same positions and is good")
            else:
                said = f"has positions that {name} has, and other contents: one of them is not of this log"
                self._findings.add(os.path.basename(other.path), said, f"{BACKUP}, or take the wrong one away.")
        return [kept]

    def _leftover(self, file: SegmentFile, said: str) -> None:
        self._findings.add(
            os.path.basename(file.path), said, "The next start removes it, and so does a repair.", "remove"
        )

    def _has_all_of(self, file: SegmentFile, other: SegmentFile) -> bool:
        """Has the segment all that is in the other one, and are they of one log?"""
        mine, its = self._metas.get(file.path), self._metas.get(other.path)
        if file is other:
            return True
        if mine is None or its is None or mine[:6] != its[:6]:
            return False
        if its.journal_bytes:
            return mine == its
        connection = duck.connect(MEMORY_MB, self._spill)
        try:
            duck.attach(connection, file.path, "mine")
            duck.attach(connection, other.path, "other")
            row = connection.execute("SELECT 1 FROM (FROM other.messages EXCEPT FROM mine.messages) LIMIT 1").fetchone()
        except duckdb.Error:
            return False
        finally:
            connection.close()
        return row is None

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
