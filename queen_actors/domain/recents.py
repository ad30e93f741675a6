"""The index of a partition's sealed messages: which transaction ids it had lately, in about 75 bytes each.

It answers a repeated push, a late ack, and when a message was appended. A row is

    offset u64 | ts u64 | bytes of the id u16 | bytes of the transaction id u32 | id | transaction id

with texts in UTF-8, but for UUIDs in their usual spelling, which are 16 bytes. Rows lie one after the other in
pages of some kilobytes; behind the first page there is a `Lookup` by transaction id, and one page alone is searched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct

from .effects import Recent, Record
from .lookup import Lookup

_HEAD = Struct("<QQHI")
_UUID_ID, _UUID_TXN = (1 << 16) - 1, (1 << 32) - 1
_SAME = _UUID_TXN - 1
"""In place of the transaction id's length: it is the id."""
PAGE_BYTES = 2048
_Row = tuple[int, int, int, int, int]
"""offset, ts, the lengths as they are written, and where the row ends."""


class Recents:
    """Rows in the order of their offsets: without a gap from the partition's start on, with gaps below it."""

    __slots__ = ("_first", "_lookup", "_pages", "_start", "last")

    def __init__(self, rows: bytes = b"") -> None:
        """`rows`: those of one that was `small`."""
        self._pages: list[bytes | bytearray] = [rows] if rows else []
        self._first = 0  # the number of the first of the pages; each has one of its own
        self._start = 0  # where the first row of that page begins that is still remembered
        self._lookup: Lookup | None = None
        self.last = -1
        """The offset of the last row, or -1."""
        for _, row in self._rows(0) if rows else ():
            self.last = row[0]

    def __bool__(self) -> bool:
        return bool(self._pages)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Offset and instant of every row."""
        for place in range(len(self._pages)):
            for _, row in self._rows(place):
                yield row[0], row[1]

    @property
    def small(self) -> bool:
        """Is it few enough rows to be packed with the partition?"""
        return len(self._pages) < 2

    @property
    def rows(self) -> bytes:
        """The rows of a small one."""
        return bytes(self._pages[0][self._start :]) if self._pages else b""

    def append(self, message: Record | Recent) -> None:
        """The index entry of a message; its offset is behind all others."""
        row = row_of(message)
        pages = self._pages
        if not pages or len(pages[-1]) >= PAGE_BYTES:
            if pages:
                pages[-1] = bytes(pages[-1])  # not a byte more than it needs, from here on
                if self._lookup is None:
                    self._look_up()
            pages.append(bytearray())
        page = pages[-1]
        if isinstance(page, bytes):
            page = pages[-1] = bytearray(page)
        if self._lookup is not None:
            self._lookup.add(message.txn, self._number(len(pages) - 1, len(page)), self._number(0, self._start))
        page += row
        self.last = message.offset

    def find(self, txn: str, pid: int) -> Recent | None:
        """The latest message with this transaction id."""
        places = self._places(txn)
        return self._message(*places[-1], pid) if places else None

    def offsets(self, txn: str) -> list[int]:
        """The offset of every message with this transaction id."""
        return [_HEAD.unpack_from(self._pages[place], at)[0] for place, at in self._places(txn)]

    def _places(self, txn: str) -> list[tuple[int, int]]:
        """The rows with this transaction id: the page, and where in it."""
        found: list[tuple[int, int]] = []
        wanted, kind = _packed(txn, _UUID_TXN)
        if self._lookup is not None:
            oldest = self._number(0, self._start)
            for number in self._lookup.find(txn):
                place, at = (number >> 32) - self._first, number & 0xFFFF_FFFF
                if number >= oldest and self._is(place, at, wanted, kind):
                    found.append((place, at))
        elif self._pages and wanted in self._pages[0]:
            for at, _ in self._rows(0):
                if self._is(0, at, wanted, kind):
                    found.append((0, at))
        return found

    def at(self, offset: int, pid: int) -> Recent | None:
        """The message at this offset."""
        if not self._pages or offset > self.last:
            return None
        place = bisect_right(self._pages, offset, key=lambda page: _HEAD.unpack_from(page)[0]) - 1
        for at, row in self._rows(place) if place >= 0 else ():
            if row[0] == offset:
                return self._message(place, at, pid)
        return None

    def since(self, ts: int) -> int | None:
        """The offset of the first row at or after the instant."""
        place = bisect_right(self._pages, ts - 1, key=lambda page: _HEAD.unpack_from(page)[1]) - 1
        for later in range(max(place, 0), min(place + 2, len(self._pages))):
            for _, row in self._rows(later):
                if row[1] >= ts:
                    return row[0]
        return None

    def first(self) -> int | None:
        """The offset of the first row."""
        return _HEAD.unpack_from(self._pages[0], self._start)[0] if self._pages else None

    def prune(self, since: int) -> None:
        """Forget the rows from before this instant."""
        gone = 0
        while gone + 1 < len(self._pages) and _HEAD.unpack_from(self._pages[gone + 1])[1] < since:
            gone += 1
        if gone:
            del self._pages[:gone]
            self._first += gone
            self._start = 0
        for at, row in self._rows(0) if self._pages else ():
            if row[1] >= since:
                self._start = at
                break
        else:
            if self._pages:
                del self._pages[0]
                self._first += 1
            self._start = 0
        if not self._pages:
            self.last = -1
        if self.small:
            self._lookup = None

    def _number(self, place: int, at: int) -> int:
        return (self._first + place) << 32 | at

    def _rows(self, place: int) -> Iterator[tuple[int, _Row]]:
        """Each row of a page with where it begins."""
        page, at = self._pages[place], 0 if place else self._start
        while at < len(page):
            row = _row(page, at)
            yield at, row
            at = row[4]

    def _is(self, place: int, at: int, txn: bytes, kind: int) -> bool:
        """Has the row this transaction id?"""
        page = self._pages[place]
        _, _, kind_id, kind_txn, end = _row(page, at)
        if kind_txn == _SAME:
            same = kind == _UUID_TXN if kind_id == _UUID_ID else kind == kind_id
            return same and page[at + _HEAD.size : end] == txn
        return kind_txn == kind and page[end - len(txn) : end] == txn

    def _message(self, place: int, at: int, pid: int) -> Recent:
        page = self._pages[place]
        offset, ts, kind_id, kind_txn, end = _row(page, at)
        begin = at + _HEAD.size
        middle = begin + (16 if kind_id == _UUID_ID else kind_id)
        mid = _text(page[begin:middle], kind_id == _UUID_ID)
        txn = mid if kind_txn == _SAME else _text(page[middle:end], kind_txn == _UUID_TXN)
        return Recent(pid, offset, ts, txn, mid)

    def _look_up(self) -> None:
        """There is a page behind the first: a lookup pays from here on."""
        self._lookup = Lookup()
        for at, _ in self._rows(0):
            self._lookup.add(self._message(0, at, 0).txn, self._number(0, at))


def _row(page: bytes | bytearray, at: int) -> _Row:
    offset, ts, kind_id, kind_txn = _HEAD.unpack_from(page, at)
    end = at + _HEAD.size + (16 if kind_id == _UUID_ID else kind_id)
    if kind_txn != _SAME:
        end += 16 if kind_txn == _UUID_TXN else kind_txn
    return offset, ts, kind_id, kind_txn, end


def oldest(rows: bytes, at: int = 0) -> int:
    """The instant of the first of some rows."""
    ts: int = _HEAD.unpack_from(rows, at)[1]
    return ts


def row_of(message: Record | Recent) -> bytes:
    """The row of a message."""
    both = _uuids(message.id, message.txn)
    if both is not None:
        return _HEAD.pack(message.offset, message.ts, _UUID_ID, _UUID_TXN) + both
    mid, kind_id = _packed(message.id, _UUID_ID)
    if message.txn == message.id:
        return _HEAD.pack(message.offset, message.ts, kind_id, _SAME) + mid
    txn, kind_txn = _packed(message.txn, _UUID_TXN)
    return _HEAD.pack(message.offset, message.ts, kind_id, kind_txn) + mid + txn


def _uuids(mid: str, txn: str) -> bytes | None:
    """Two different UUIDs in one piece: the usual case, at half the price; None when one of them is none."""
    if len(mid) == 36 == len(txn) and mid[8:24:5] == "----" == txn[8:24:5] and mid != txn:
        if not (mid.islower() and txn.islower()):
            return None
        try:
            raw = bytes.fromhex((mid + txn).replace("-", ""))
        except ValueError:
            return None
        return raw if len(raw) == 32 else None
    return None


def _packed(text: str, uuid: int) -> tuple[bytes, int]:
    """The text as it is written, and what is written for its length: `uuid` for one that is 16 bytes."""
    if len(text) == 36 and text[8:24:5] == "----" and text.islower():
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            pass
        else:
            if len(raw) == 16:
                return raw, uuid
    raw = text.encode("utf-8", "surrogatepass")
    return raw, len(raw)


def _text(raw: bytes | bytearray, uuid: bool) -> str:
    if not uuid:
        return raw.decode("utf-8", "surrogatepass")
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
