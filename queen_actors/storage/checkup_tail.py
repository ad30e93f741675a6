"""A look at the journals, and at how far the log is known to reach."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
from msgspec import Struct

from queen_actors.domain.effects import Entry, decode_entries
from queen_actors.errors import QueenError

from .checkup_sealed import SealedCheckup, is_regular
from .directory import JournalFile, Listing, noted_slots
from .findings import BACKUP, Findings
from .journal import JournalReader

SET_ASIDE = "A repair leaves it; a start sets it aside, and keeps it."
_RIGHTS = "Give the broker's user the right to read it."


class _Journal(Struct):
    """What was read of one journal; `end` is the byte behind its last whole frame."""

    file: JournalFile
    position: int
    end: int
    torn: int
    readable: bool

    @property
    def name(self) -> str:
        return os.path.basename(self.file.path)


class TailCheckup:
    """`position`: how far the log reaches, as far as it could be read. `seen` is told of every entry."""

    def __init__(
        self, listing: Listing, findings: Findings, sealed: SealedCheckup, seen: Callable[[Entry], None]
    ) -> None:
        self._listing = listing
        self._findings = findings
        self._sealed = sealed
        self._seen = seen
        self._journals: list[_Journal] = []
        self.position = sealed.position
        self.noted = 0
        """How far the log is known to have reached, whatever there is of it."""

    def run(self, path: str) -> None:
        """Look at every journal, and at the file POSITION in the directory."""
        expected: int | None = self._sealed.position
        for file in self._listing.journals:
            name = os.path.basename(file.path)
            if file.first < self._sealed.position:
                self._judge_superseded(file, name)
                continue
            at_end = file is self._listing.journals[-1]
            if at_end and expected is not None and file.first < expected and _end(file) == file.first:
                said = "holds no entry, and the log went on past its beginning: a roll made it, and failed"
                advice = "The next start removes it, and so does a repair."
                self._findings.add(name, said, advice, "remove", harmless=True)
                continue
            if expected is not None and file.first != expected:
                self._findings.add(
                    name,
                    f"begins at position {file.first}, and the log before it ends at {expected}: a file between is "
                    "missing, or was cut short",
                    f"{BACKUP}.",
                )
            journal = self._read(file)
            self._journals.append(journal)
            expected = journal.position if journal.readable else None
            self.position = max(self.position, journal.position)
        for journal in self._journals[:-1]:
            if journal.torn:
                self._findings.add(
                    journal.name,
                    f"ends in {journal.torn} bytes from byte {journal.end} on that are no whole frame, and a newer "
                    "journal follows: it is damaged",
                    f"{BACKUP}.",
                )
        self.noted, newest = self._notes(os.path.join(path, "POSITION"))
        self._judge_end(self.noted, newest)

    def _judge_superseded(self, file: JournalFile, name: str) -> None:
        """A journal from before the end of the segments goes only if a good one has all of it."""
        end = _end(file)
        segment = None if end is None else self._sealed.holds(file.first, end)
        if segment is not None or end == file.first:
            said = "holds no entry" if segment is None else f"holds what lies in {segment} already"
            advice = "The next start removes it, and so does a repair."
            self._findings.add(name, said, advice, "remove", harmless=True)
            return
        said = (
            f"is from before position {self._sealed.position}, and cannot be read to its end"
            if end is None
            else f"holds the positions behind {file.first} up to {end}, and no good segment is known to have them"
        )
        self._findings.add(name, said, SET_ASIDE, harmless=True)

    def _read(self, file: JournalFile) -> _Journal:
        name = os.path.basename(file.path)
        unread = _Journal(file, file.first, 0, 0, False)
        if not is_regular(file.path):
            return unread  # which is told of every file
        try:
            reader = JournalReader(file.path)
        except QueenError as error:
            self._findings.add(name, _alone(error.detail, file.path), f"{BACKUP}, or this file alone.")
            return unread
        except OSError as error:
            self._findings.add(name, f"cannot be read: {error.strerror}", _RIGHTS)
            return unread
        if reader.first != file.first:
            self._findings.add(
                name,
                f"says of itself that it begins at position {reader.first}: it was renamed",
                f"Give it its name back: journal-{reader.first:020}.log.",
            )
        readable = self._read_frames(reader, name)
        return _Journal(file, reader.position, reader.end, reader.torn, readable)

    def _read_frames(self, reader: JournalReader, name: str) -> bool:
        before = reader.position
        try:
            for sequence, body in reader.frames():
                entries = decode_entries(body)
                if sequence - len(entries) != before:
                    self._findings.add(
                        name,
                        f"goes on from position {before} to {sequence - len(entries)}: it is damaged",
                        f"{BACKUP}.",
                    )
                    return False
                before = sequence
                for entry in entries:
                    self._seen(entry)
        except QueenError as error:
            self._findings.add(name, _alone(error.detail, reader.path), f"{BACKUP}, or this file alone.")
            return False
        except msgspec.DecodeError as error:
            self._findings.add(
                name,
                f"has a frame that ends at byte {reader.end} and that this version cannot read: {error}",
                "Open the directory with the version that wrote it.",
            )
            return False
        return True

    def _notes(self, path: str) -> tuple[int, int]:
        """The greatest position that was written down, and the newest journal's."""
        slots = []
        try:
            if is_regular(path):
                slots = noted_slots(path)
            elif os.path.lexists(path):
                return 0, 0  # a pipe, or a directory: told as such
        except OSError as error:
            self._findings.add("POSITION", f"cannot be read: {error.strerror}", _RIGHTS)
        notes = [slot for slot in slots if slot is not None and slot != "empty"]
        if (None in slots or not notes) and self.position:
            said = (
                "has a note that cannot be read, beside a good one" if notes else "does not say how far the log reaches"
            )
            self._findings.add(
                "POSITION",
                said,
                "Without it a lost end of the log is not noticed. The next start writes it, and so does a repair.",
                "note",
                harmless=True,
            )
        return max(notes, default=(0, 0))

    def _judge_end(self, noted: int, newest: int) -> None:
        last = self._journals[-1] if self._journals else None
        otherwise = "" if self._findings.refused else " Only to go on without them, delete the file POSITION."
        if (last is None or last.readable) and self.position < noted:
            where = f" at byte {last.end}" if last else ""
            self._findings.add(
                last.name if last else "",
                f"the log ends at position {self.position}{where}, and {noted} was committed: {noted - self.position} "
                "steps that were answered are missing",
                f"{BACKUP}.{otherwise}",
            )
        elif newest and self.position <= newest and all(journal.file.first != newest for journal in self._journals):
            self._findings.add(f"journal-{newest:020}.log", "is missing: it is the newest journal", f"{BACKUP}.")
        elif last is not None and last.torn:
            self._findings.add(
                last.name,
                f"ends in {last.torn} bytes from byte {last.end} on that are no whole frame: a commit that a crash cut "
                "short, and that was not answered",
                "The next start cuts them off; so does a repair, which keeps a copy.",
                "cut",
                at=last.end,
                harmless=True,
            )


def _end(file: JournalFile) -> int | None:
    """The position at which a journal ends; None when it cannot be read whole."""
    try:
        if not is_regular(file.path):
            return None
        reader = JournalReader(file.path)
        for _ in reader.frames():
            pass
    except (QueenError, OSError):
        return None
    return None if reader.torn or reader.first != file.first else reader.position


def _alone(sentence: str, path: str) -> str:
    """What an open says of a file, without its name and without what it advises."""
    return sentence.removeprefix(f"{path} ").partition(". ")[0].rstrip(".")
