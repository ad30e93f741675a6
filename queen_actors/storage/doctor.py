"""`queen-actors doctor`: says what is wrong with the data directory of a stopped broker, and repairs what is safe.

Everything is looked at first, and the log is read as an open reads it, as it is and as it would be after the repair.
Files of the log are touched only when that succeeds and nothing that was answered is missing; otherwise the doctor says
what is wrong, and what a person can do. A repair is

    cut       a commit that a crash cut short is cut off the newest journal; a copy of the file is kept beside it
    remove    the broker's own unfinished work is removed, and files whose content lies in another one that is good
    aside     a damaged file whose content lies in another one is renamed, so that an open does not see it
    rebuild   a damaged snapshot is renamed, and made again from the segments that have all that was in it
    restrict  permissions that the broker would not have given are taken away
    format    a FORMAT file that is lost is written again, when a journal says what it was
    note      a POSITION file that is lost is written again for a log that was read to its end

A file that is changed is kept beside as `<name>.kept-<instant>`. What was answered and is not there any more is never
given up by a repair, nor is what says that it was there. Unfinished work and permissions are mended also while the log
is not whole. A remedy that fails is told, and after one at the log nothing else of the log is touched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import duckdb
from msgspec import Struct

from queen_actors.errors import DataDirectoryError, QueenError

from . import duck, journal, segments, snapshots
from .checkup import Checkup, format_line
from .checkup_remedies import of_log
from .checkup_sealed import MEMORY_MB, is_journal, is_regular
from .directory import ANY_FORMAT, FORMAT_LINE, KEPT, DataDirectory, SegmentFile, holding
from .fileops import FileOps
from .findings import Finding

_ROUNDS = 3


class Report(Struct, frozen=True):
    """What was found, what a repair did about it, and what is left."""

    findings: Sequence[Finding]
    facts: Sequence[str]
    done: Sequence[str] = ()
    """Sentences of a repair."""
    left: Sequence[Finding] = ()
    """What is still wrong after a repair; the same as `findings` without one."""


def examine(path: str, decrypt: Callable[[bytes], object] | None = None, *, repair: bool = False) -> Report:
    """Look at a data directory, and with `repair` do what is safe. Without it, nothing is changed.

    Raises DataDirectoryError when it cannot be looked at: it is none, or in use, or of another version.
    """
    path = os.path.abspath(path)
    try:
        _require_directory(path)
        with holding(path):
            first = last = _look(path, decrypt)
            repair_ = _Repair(path)
            for _ in range(_ROUNDS if repair else 0):  # what one repair brings out is for the next
                if not repair_.round(last):
                    break
                last = _look(path, decrypt)
            return Report(first.found.all, last.found.facts, repair_.done, last.found.all)
    except OSError as error:
        raise DataDirectoryError(f"The data directory {path} cannot be looked at: {error}.") from error


def told(path: str, report: Report, *, repaired: bool) -> Iterator[str]:
    """The report as lines of text."""
    count = len(report.findings)
    yield f"{path}: {'healthy' if not count else '1 problem' if count == 1 else f'{count} problems'}"
    for fact in report.facts:
        yield f"  ({fact})"
    for finding in report.findings:
        yield from _told(finding)
    if not repaired or not count:
        return
    yield "repaired:" if report.done else "nothing was repaired: nothing that is safe can be done"
    for sentence in report.done:
        yield f"  {sentence}"
    yield "what is left:" if report.left else "healthy now"
    for finding in report.left:
        yield from _told(finding)


def _told(finding: Finding) -> Iterator[str]:
    yield f"- {finding.name or 'the directory'} {finding.sentence}."
    yield f"    {finding.advice}"


def _look(path: str, decrypt: Callable[[bytes], object] | None) -> Checkup:
    checkup = Checkup(path, decrypt)
    checkup.run()
    return checkup


def _require_directory(path: str) -> None:
    """Raises DataDirectoryError for what is no data directory, or one of another version; OSError."""
    if not os.path.isdir(path):
        raise DataDirectoryError(f"There is no directory {path}.")
    line = format_line(path)
    if line is not None and line != FORMAT_LINE and ANY_FORMAT.fullmatch(line):
        raise DataDirectoryError(
            f"{path} is a {line.strip()}, and this version knows {FORMAT_LINE.strip()!r}. Ask the doctor of the "
            "version that wrote it."
        )
    listing = DataDirectory(FileOps(), path, -1, -1).listing()
    sealed = [file.path for file in listing.segments] + [file.path for file in listing.snapshots]
    ours = any(map(is_journal, listing.journals)) or any(map(_begins_as_duckdb, sealed))
    if line != FORMAT_LINE and not ours:
        raise DataDirectoryError(
            f"{path} is no data directory of a broker: it has neither a FORMAT file of one nor a file of its log. "
            "Nothing in it was touched."
        )


def _begins_as_duckdb(file: str) -> bool:
    if not is_regular(file):
        return False
    with open(file, "rb") as opened:
        return opened.read(12)[8:] == b"DUCK"


class _Repair:
    """Does what the findings of a look allow. What fails is told and not tried again, and after a failure at a file of
    the log no other one is touched: what was decided about them counted on it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._tried: set[tuple[str, str | None]] = set()
        self._failed = False
        self.done: list[str] = []
        """Sentences about what was done, and what could not be."""

    def round(self, checkup: Checkup) -> bool:
        """One remedy after the other; was there any?"""
        found = False
        for finding in checkup.found.all:
            key, counts = (finding.name, finding.remedy), of_log(finding, checkup.listing)
            if finding.remedy is None or key in self._tried or (counts and self._failed):
                continue
            found = True
            self._tried.add(key)
            try:
                self.done += _mend(self._path, checkup, finding)
            except (QueenError, OSError, duckdb.Error) as error:
                self._failed = self._failed or counts
                self.done.append(f"{finding.name}: could not be mended: {error}")
        return found


def _mend(path: str, checkup: Checkup, finding: Finding) -> list[str]:
    """Do what the finding's remedy says; sentences about it. Raises OSError, QueenError, duckdb.Error."""
    ops, file = FileOps(), os.path.join(path, finding.name)
    match finding.remedy:
        case "cut":
            kept = _copy(ops, file)
            journal.cut(ops, file, finding.at)
            return [f"{finding.name}: cut to {finding.at} bytes; as it was, it is kept as {kept}"]
        case "remove":
            if os.path.isdir(file):
                shutil.rmtree(file)
            else:
                ops.unlink(file)
            ops.sync_directory(path)
            return [f"{finding.name}: removed"]
        case "aside":
            return [f"{finding.name}: set aside as {_aside(ops, file)}"]
        case "rebuild":
            return _rebuild(path, ops, file, checkup.parts)
        case "restrict":
            ops.restrict(file)
            return [f"{finding.name}: its mode is {os.stat(file).st_mode & 0o777:04o} now"]
        case "format":
            return _write_format(path, ops, file)
        case "note":
            return _write_note(path, ops, file, checkup.position)
        case None:
            return []


def _kept_name(file: str) -> str:
    """A name beside the file that nothing has yet."""
    base = f"{file}{KEPT}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    names = [base, *(f"{base}-{number}" for number in range(1, 1000))]
    return next(name for name in names if not os.path.exists(name))


def _copy(ops: FileOps, file: str) -> str:
    """A durable copy of the file beside it; its name."""
    kept = _kept_name(file)
    shutil.copy2(file, kept)
    ops.sync_file(kept)
    ops.sync_directory(os.path.dirname(file))
    return os.path.basename(kept)


def _aside(ops: FileOps, file: str) -> str:
    """Rename the file, durably; its name now."""
    kept = _kept_name(file)
    ops.rename(file, kept)
    ops.sync_directory(os.path.dirname(file))
    return os.path.basename(kept)


def _rebuild(path: str, ops: FileOps, file: str, parts: Sequence[SegmentFile]) -> list[str]:
    """Make a snapshot again from the segments that have the state, up to its position. Raises OSError, QueenError,
    duckdb.Error; the file has its name then."""
    held = DataDirectory(ops, path, -1, -1)
    damaged = next(one for one in held.listing().snapshots if one.path == file)
    since = [segment for segment in parts if segment.last <= damaged.last]
    kept = _aside(ops, file)
    with tempfile.TemporaryDirectory(prefix="queen-actors-doctor-") as spill:
        connection = duck.connect(MEMORY_MB, spill)
        try:
            made = snapshots.build(held, None, since, [], connection, segments.Pace(hurried=True))
        except (duckdb.Error, OSError, QueenError):
            held.remove_unfinished_builds()
            ops.rename(os.path.join(path, kept), file)
            raise
        finally:
            connection.close()
    name = os.path.basename(made.path)
    return [
        f"{os.path.basename(file)}: set aside as {kept}",
        f"{name}: made again from {len(since)} segments",
    ]


def _write_format(path: str, ops: FileOps, file: str) -> list[str]:
    said = ["FORMAT: written again"]
    if os.path.exists(file):
        said = [f"FORMAT: written again; as it was, it is kept as {_aside(ops, file)}"]
    fd = ops.create(file)
    try:
        ops.write(fd, (FORMAT_LINE.encode(),), 0)
        ops.sync(fd)
    finally:
        ops.close(fd)
    ops.sync_directory(path)
    return said


def _write_note(path: str, ops: FileOps, file: str, position: int) -> list[str]:
    """Note where the log ends; the newest journal is that of the listing."""
    said = [f"POSITION: written again, for a log that reaches to {position}"]
    if os.path.exists(file):
        said = [f"{said[0]}; as it was, it is kept as {_aside(ops, file)}"]
    fd = ops.create(file)
    try:
        held = DataDirectory(ops, path, -1, fd)
        journals = held.listing().journals
        held.note_position(position, journals[-1].first if journals else 0, flush=True)
    finally:
        ops.close(fd)
    ops.sync_directory(path)
    return said
