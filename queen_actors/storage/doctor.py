"""`queen-actors doctor`: says what is wrong with the data directory of a stopped broker, and repairs what is safe.

Safe is what an open would do by itself, or what loses no step that was answered:

    cut       a commit that a crash cut short is cut off the newest journal; a copy of the file is kept beside it
    remove    unfinished work, and files whose content lies in another one that is good, are removed
    aside     a damaged file whose content lies in another one is renamed, so that an open does not see it
    rebuild   a damaged snapshot is renamed, and made again from the segments that have all that was in it
    restrict  permissions that the broker would not have given are taken away
    format    a FORMAT file that is lost is written again, when a journal says what it was
    note      a POSITION file that is lost is written again for a log that was read to its end

A file that is changed is kept beside as `<name>.kept-<instant>`. What was answered and is not there any more is never
given up by a repair.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import duckdb
from msgspec import Struct

from queen_actors.errors import DataDirectoryError, QueenError

from . import duck, journal, segments, snapshots
from .checkup import KEPT, Checkup
from .checkup_sealed import MEMORY_MB
from .directory import ANY_FORMAT, FORMAT_LINE, DataDirectory
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
        with _held(path):
            first = last = _look(path, decrypt)
            done: list[str] = []
            rounds = _ROUNDS if repair else 0
            for _ in range(rounds):  # what one repair brings out (a note that could not be judged) is for the next
                wanted = [finding for finding in last.found.all if finding.remedy is not None]
                if not wanted:
                    break
                for finding in wanted:
                    done += _mend(path, last, finding)
                last = _look(path, decrypt)
            return Report(first.found.all, last.found.facts, done, last.found.all)
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
    if not any(name == "FORMAT" or name.startswith(("journal-", "segment-")) for name in os.listdir(path)):
        raise DataDirectoryError(f"{path} is no data directory of a broker: it has neither a FORMAT file nor a log.")
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        with open(os.path.join(path, "FORMAT"), encoding="utf-8", errors="replace") as file:
            line = file.read(200)
        if line != FORMAT_LINE and ANY_FORMAT.fullmatch(line):
            raise DataDirectoryError(
                f"{path} is a {line.strip()}, and this version knows {FORMAT_LINE.strip()!r}. Ask the doctor of the "
                "version that wrote it."
            )


@contextmanager
def _held(path: str) -> Generator[None]:
    """Keep brokers out meanwhile, without writing anything. Raises DataDirectoryError when one is in."""
    try:
        lock = os.open(os.path.join(path, "LOCK"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise DataDirectoryError(
                f"The data directory {path} is in use{f' by process {holder}' if holder else ''}. Stop that one first: "
                "its files change while it runs."
            ) from None
        yield
    finally:
        os.close(lock)


def _mend(path: str, checkup: Checkup, finding: Finding) -> list[str]:
    """Do what the finding's remedy says; sentences about it."""
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
            return _rebuild(path, ops, file, finding)
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


def _rebuild(path: str, ops: FileOps, file: str, finding: Finding) -> list[str]:
    """Make a snapshot again from the segments up to its position."""
    held = DataDirectory(ops, path, -1, -1)
    listing = held.listing()
    damaged = next(one for one in listing.snapshots if one.path == file)
    since = [segment for segment in listing.segments if segment.last <= damaged.last]
    kept = _aside(ops, file)
    connection = duck.connect(MEMORY_MB, held.spill)
    try:
        made = snapshots.build(held, None, since, [], connection, segments.Pace(hurried=True))
    except (duckdb.Error, OSError, QueenError) as error:
        held.remove_unfinished_builds()
        ops.rename(os.path.join(path, kept), file)
        return [f"{finding.name}: could not be made again, and is as it was: {error}"]
    finally:
        connection.close()
        shutil.rmtree(held.spill, ignore_errors=True)
    name = os.path.basename(made.path)
    return [f"{finding.name}: set aside as {kept}", f"{name}: made again from {len(since)} segments"]


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
