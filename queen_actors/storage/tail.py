"""The log's tail at an open: the journals, each of which must begin where what is before it ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

import msgspec

from queen_actors.domain.effects import Counters, Entry, decode_entries
from queen_actors.errors import DataDirectoryError

from . import journal
from .directory import DataDirectory, JournalFile
from .journal import JournalReader

_log = logging.getLogger(__name__)

CHUNK_ENTRIES = 256  # entries handed over at a time: what Trio's thread does in about a millisecond


class JournalTail:
    """Reads the journals behind `position`, oldest first, and then knows where the log ends."""

    def __init__(self, directory: DataDirectory, files: Sequence[JournalFile], position: int) -> None:
        self._directory = directory
        self._files = files
        self.position = position
        self.counters: Counters | None = None
        self.last_instant = 0
        self.cut_bytes = 0
        self._cuts: list[tuple[str, int, int | None]] = []
        """Files with the byte at which they are to end; with the last frame's, if what was read of it may lie in the
        system's cache alone."""
        self.kept: list[tuple[JournalFile, int]] = []
        """The files that hold entries, each with the position it ends at."""
        self.last_end = 0
        """The byte at which the last frame of the last of them ends."""
        self.empty: JournalFile | None = None
        """The newest file, when it holds no entry: it begins where the log ends."""
        self.superseded: list[JournalFile] = []
        """Files that the log does not need: left over from a crash, to be removed. Their entries all lie in segments
        already, or they hold none."""

    def chunks(self) -> Iterator[list[Entry]]:
        """The entries, in order, some at a time. Raises DataDirectoryError."""
        sealed = self.position
        for number, file in enumerate(self._files):
            if file.first < sealed:
                self.superseded.append(file)
                continue
            if number == len(self._files) - 1 and left_behind(file, self.position):
                self.superseded.append(file)
                continue
            if file.first != self.position:
                raise DataDirectoryError(
                    f"The log ends at position {self.position}, and {file.path} begins at {file.first}: a file between "
                    "them is missing or was cut short. Every file is kept as it is. Restore the data directory from a "
                    "backup."
                )
            yield from self._read(number)

    def _read(self, number: int) -> Iterator[list[Entry]]:
        file = self._files[number]
        reader = JournalReader(file.path, last=number == len(self._files) - 1)
        if reader.first != file.first:
            raise DataDirectoryError(
                f"{file.path} says of itself that it begins at position {reader.first}: it was renamed. Give it the "
                "name back that it had."
            )
        chunk: list[Entry] = []
        for sequence, body in reader.frames():
            try:
                entries = decode_entries(body)
            except msgspec.DecodeError as error:
                raise DataDirectoryError(
                    f"{file.path} holds a frame at position {sequence} that this version cannot read ({error}). Open "
                    "the directory with the version that wrote it."
                ) from error
            if sequence - len(entries) != self.position:
                raise DataDirectoryError(
                    f"{file.path} goes on from position {self.position} to {sequence - len(entries)}: it is damaged. "
                    "The file is kept as it is. Restore the data directory from a backup."
                )
            self.position = sequence
            chunk += entries
            if len(chunk) >= CHUNK_ENTRIES:
                self._take(chunk)
                yield chunk
                chunk = []
        if chunk:
            self._take(chunk)
            yield chunk
        following = self._files[number + 1 :]
        newest = not following or (len(following) == 1 and left_behind(following[0], self.position))
        if reader.torn:
            if not newest:
                raise DataDirectoryError(
                    f"{file.path} ends in {reader.torn} bytes that are no whole frame, and a newer journal follows: it "
                    "is damaged. The file is kept as it is. Restore the data directory from a backup."
                )
            self.cut_bytes = reader.torn
        if newest or reader.end < os.path.getsize(file.path):
            self._cuts.append((file.path, reader.end, reader.last_frame if newest else None))
        if reader.position > file.first:
            self.kept.append((file, reader.position))
            self.last_end = reader.end
        elif newest:
            self.empty = file

    def finish(self) -> None:
        """The log has been read: check that it reaches as far as it is known to, and only then cut a torn end and
        what was allocated ahead, and make the rest durable. Raises DataDirectoryError, OSError."""
        noted, newest = self._directory.noted_position(self.position)
        if self.position < noted:
            raise DataDirectoryError(
                f"The log in {self._directory.path} ends at position {self.position}, but {noted} was committed: its "
                "end is damaged or missing. Every file is kept as it is. Restore the data directory from a backup; or, "
                "to go on without the missing entries, delete the file POSITION in it."
            )
        if newest and self.position <= newest and all(file.first != newest for file in self._files):
            raise DataDirectoryError(
                f"The newest journal, {self._directory.journal_path(newest)}, is missing. Restore the data directory "
                "from a backup."
            )
        if self.cut_bytes:
            _log.warning("cut %d bytes of an unfinished commit off the log's end", self.cut_bytes)
        for path, end, last_frame in self._cuts:
            journal.cut(self._directory.ops, path, end, last_frame)

    def _take(self, chunk: list[Entry]) -> None:
        self.counters = chunk[-1].counters
        self.last_instant = max(self.last_instant, chunk[-1].now)


def left_behind(newest: JournalFile, position: int) -> bool:
    """Whether the newest journal holds nothing, and the log reaches past its beginning, to `position`: a roll that
    failed made it, and what came then was written to the journal before it. Raises DataDirectoryError, OSError."""
    if newest.first >= position:
        return False
    reader = JournalReader(newest.path)
    return reader.first == newest.first and next(reader.frames(), None) is None and not reader.torn
