"""What may be wrong with a data directory: every file of it is looked at, and nothing is changed.

An open stops at the first thing that it cannot accept; this goes on, so that one look tells all. What it accepts is
what an open accepts: at the end the log is read as an open reads it.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Sequence

import duckdb

from queen_actors.domain.effects import Appended, DeadLetterPut, Effect, Entry, StreamRowPut, TimerPut
from queen_actors.errors import QueenError

from . import directory, duck
from .checkup_remedies import Settling, names_of_log
from .checkup_sealed import MEMORY_MB, SealedCheckup, is_journal, is_regular
from .checkup_tail import TailCheckup
from .directory import FORMAT_LINE, KEPT, DataDirectory, Listing, SegmentFile, SnapshotFile
from .fileops import MODE, FileOps
from .findings import BACKUP, Findings

_SPILLED = re.compile(r"duckdb_temp_[\w.-]+")
_SECRET = b"\0"  # a ciphertext begins with it, and no JSON text does
_PAYLOADS = {
    "segment": (("messages", "payload"), ("timers", "payload"), ("stream_rows", "value")),
    "snapshot": (("timers", "payload"), ("dead_letters", "message_payload"), ("stream_rows", "value")),
}


class _ReadOnly(FileOps):
    """What a look may do to files: nothing."""

    def unlink(self, path: str) -> None:
        del path


class Checkup:
    """One look at a data directory that nobody else has open. `decrypt` raises QueenError for a payload that it cannot
    read; None: there is no key."""

    def __init__(self, path: str, decrypt: Callable[[bytes], object] | None = None) -> None:
        self.path = path
        self.found = Findings()
        self.position = 0
        """How far the log reaches, as far as it could be read."""
        self.parts: Sequence[SegmentFile] = ()
        """The good segments that have the state, from the newest good snapshot on, or from the log's start."""
        self.listing = Listing([], [], [])
        self._decrypt = decrypt
        self._secrets = 0
        self._secret: bytes | None = None

    def run(self) -> None:
        """Look at everything. Raises OSError when the directory itself cannot be listed."""
        names = sorted(os.listdir(self.path))
        held = DataDirectory(_ReadOnly(), self.path, -1, -1)
        self.listing = listing = held.listing()
        unfinished = directory.unfinished(self.path)
        self._look_at_format(listing)
        self._look_at_permissions([name for name in names if name not in unfinished], listing)
        self._look_at_leftovers([*unfinished, *(["spill"] if self._is_spill() else [])])
        with tempfile.TemporaryDirectory(prefix="queen-actors-doctor-") as spill:
            held.spill = os.path.join(spill, "open")  # nothing is made in the directory itself
            sealed = SealedCheckup(listing, self.found, spill)
            sealed.run()
            tail = TailCheckup(listing, self.found, sealed, self._note_entry)
            tail.run(self.path)
            self.position = tail.position
            self.parts = sealed.parts
            for file in sealed.good:
                self._look_into(file, spill)
            Settling(self.found, held, listing, spill, tail.noted).run()
        self._look_at_secrets()
        self.found.facts.append(
            f"{_many(len(listing.journals), 'journal')}, {_many(len(listing.segments), 'segment')}, "
            f"{_many(len(listing.snapshots), 'snapshot')}; the log reaches to position {self.position}"
        )

    def _look_at_format(self, listing: Listing) -> None:
        try:
            line = format_line(self.path)
        except OSError as error:
            self.found.add("FORMAT", f"cannot be read: {error.strerror}", "Give the broker's user the right to it.")
            return
        if line == FORMAT_LINE:
            return
        said = "is missing" if line is None else f"reads {line.strip()[:60]!r}, which is no format"
        if any(is_journal(file) for file in listing.journals):
            advice = "The journals say that their format is this version's: a repair writes the file again."
            self.found.add("FORMAT", said, advice, "format")
        else:
            self.found.add("FORMAT", said, f"No journal says which format this is. {BACKUP}.")

    def _look_at_permissions(self, names: Sequence[str], listing: Listing) -> None:
        ours = {"LOCK", "FORMAT", "POSITION", *names_of_log(listing)}
        mode = os.stat(self.path).st_mode
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            self.found.add("", "cannot be written to by this user", "Run the broker as the user whose directory it is.")
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            self.found.add("", "may be written to by everybody", f"chmod o-w {self.path}", harmless=True)
        for name in names:
            if name in ours:
                self._look_at_file(name)
            elif KEPT in name:
                self.found.facts.append(f"{name} was set aside; remove it when you do not need it")
            elif name not in ("spill", "lost+found"):
                self.found.facts.append(f"{name} is none of the broker's files")

    def _look_at_file(self, name: str) -> None:
        path = os.path.join(self.path, name)
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            self.found.add(name, "is no regular file", f"Put the file back that was there. {BACKUP}, if it is lost.")
            return
        if not os.access(path, os.R_OK if name.endswith(".duckdb") else os.R_OK | os.W_OK):
            self.found.add(name, "cannot be opened by this user", "Run the broker as the user whose file it is.")
        mode = stat.S_IMODE(found.st_mode)
        if mode & ~MODE:
            said = f"may be used by others than the broker's user and group: its mode is {mode:04o}"
            advice = f"A repair makes it {mode & MODE:04o}."
            self.found.add(name, said, advice, "restrict", harmless=True)

    def _look_at_leftovers(self, names: Sequence[str]) -> None:
        for name in names:
            self.found.add(
                name,
                "is unfinished work of a broker that was killed; no answer depends on it",
                "The next start removes it, and so does a repair.",
                "remove",
                harmless=True,
            )

    def _is_spill(self) -> bool:
        """Is there a directory `spill` with what DuckDB puts there, and nothing else?"""
        spill = os.path.join(self.path, "spill")
        if not os.path.lexists(spill):
            return False
        if os.path.islink(spill) or not os.path.isdir(spill):
            self.found.facts.append("spill is no directory of the broker's own; a repair leaves it")
            return False
        for place, within, files in os.walk(spill):
            for name in (*files, *(name for name in within if os.path.islink(os.path.join(place, name)))):
                if not _SPILLED.fullmatch(name):
                    other = os.path.relpath(os.path.join(place, name), self.path)
                    self.found.facts.append(
                        f"{other} is none of the broker's files: take it out, a start clears that directory"
                    )
                    return False
        return True

    # -- payloads that are encrypted -----------------------------------------------------------------------------------

    def _note_entry(self, entry: Entry) -> None:
        for effect in entry.effects:
            for payload in _payloads(effect):
                if payload.startswith(_SECRET):
                    self._secrets += 1
                    self._secret = payload

    def _look_into(self, file: SegmentFile | SnapshotFile, spill: str) -> None:
        """Can DuckDB open it, and are there encrypted payloads in it?"""
        kind = "segment" if isinstance(file, SegmentFile) else "snapshot"
        connection = duck.connect(MEMORY_MB, spill)
        try:
            duck.attach(connection, file.path, "file")
            for table, column in _PAYLOADS[kind]:
                row = connection.execute(
                    f"SELECT count(*), any_value({column}) FROM file.{table} WHERE hex({column}) LIKE '00%'"
                ).fetchone()
                if row is not None and row[0]:
                    self._secrets += row[0]
                    self._secret = bytes(row[1])
        except duckdb.Error as error:
            self.found.add(
                os.path.basename(file.path),
                f"has the bytes that were written, and DuckDB {duckdb.__version__} cannot read it: {error}",
                "Open the directory with the version that wrote it, or a newer one.",
            )
        finally:
            connection.close()

    def _look_at_secrets(self) -> None:
        if self._secret is None:
            return
        self.found.facts.append(f"{_many(self._secrets, 'payload')} encrypted")
        if self._decrypt is None:
            self.found.add(
                "",
                f"holds {_many(self._secrets, 'payload')} encrypted with a key, and there is none here",
                "Set QUEEN_ACTORS_ENCRYPTION_KEY to the key that they were encrypted with, here and for the broker.",
            )
            return
        try:
            self._decrypt(self._secret)
        except QueenError as error:
            self.found.add(
                "", f"holds encrypted payloads that the key does not open: {error.detail}", "Set the right key."
            )


def format_line(path: str) -> str | None:
    """What the file FORMAT of the directory says; None when there is no such regular file. Raises OSError."""
    file = os.path.join(path, "FORMAT")
    if not is_regular(file):
        return None
    with open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read(200)


def _payloads(effect: Effect) -> Sequence[bytes]:
    match effect:
        case Appended():
            return [record.payload for record in effect.records]
        case TimerPut():
            return (effect.payload,)
        case DeadLetterPut():
            return (effect.record.payload,)
        case StreamRowPut():
            return (effect.value,)
        case _:
            return ()


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
