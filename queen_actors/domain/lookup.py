"""Finding numbers by text in about 20 bytes each, where a dictionary takes 130 with its keys.

The text itself is not kept: whoever looks something up gets candidates, and compares them with what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

_ENTRY = Struct("<IQ")
_HASH = Struct("<I")
AVERAGE = 16
"""Entries of a bucket: it is searched with `bytearray.find`, which is quick while it is short."""


class Lookup:
    """Numbers (0 .. 2**64-1) by the hash of a text. It grows a bucket at a time (linear hashing), so that no `add` is
    slow, however many there are."""

    __slots__ = ("_buckets", "_count", "_level", "_split", "_swept")

    def __init__(self) -> None:
        self._buckets = [bytearray()]
        self._level = 1  # how many buckets there were at the last doubling: a power of two
        self._split = 0  # how many of those have been split since
        self._swept = 0  # the bucket that is to be cleared of what is outdated next
        self._count = 0

    def __len__(self) -> int:
        """Entries, with outdated ones that no `add` has come across yet."""
        return self._count

    def add(self, text: str, number: int, oldest: int = 0) -> None:
        """One more. Entries below `oldest` mean nothing any more, and go before it grows for their sake."""
        hashed = hash(text) & 0xFFFF_FFFF
        place = hashed & (self._level - 1)
        buckets = self._buckets
        buckets[place if place >= self._split else hashed & (2 * self._level - 1)].extend(_ENTRY.pack(hashed, number))
        self._count += 1
        if self._count > AVERAGE * len(buckets):
            if oldest:
                self._sweep(oldest)
                self._sweep(oldest)
            if self._count > AVERAGE * len(self._buckets):
                self._grow()

    def find(self, text: str) -> Iterator[int]:
        """The numbers that were added with this text, in the order in which they came, and perhaps others."""
        hashed = hash(text) & 0xFFFF_FFFF
        bucket = self._buckets[self._place(hashed)]
        wanted = _HASH.pack(hashed)
        at = bucket.find(wanted)
        while at >= 0:
            if at % _ENTRY.size == 0:
                yield _ENTRY.unpack_from(bucket, at)[1]
            at = bucket.find(wanted, at + 1)

    def _place(self, hashed: int) -> int:
        place = hashed & (self._level - 1)
        return place if place >= self._split else hashed & (2 * self._level - 1)

    def _sweep(self, oldest: int) -> None:
        self._swept = (self._swept + 1) % len(self._buckets)
        bucket = self._buckets[self._swept]
        kept = b"".join([_ENTRY.pack(*entry) for entry in _ENTRY.iter_unpack(bucket) if entry[1] >= oldest])
        self._count -= (len(bucket) - len(kept)) // _ENTRY.size
        self._buckets[self._swept] = bytearray(kept)

    def _grow(self) -> None:
        """Split the next bucket in turn."""
        bucket, size, level = bytes(self._buckets[self._split]), _ENTRY.size, self._level
        stays, goes = bytearray(), bytearray()
        for at in range(0, len(bucket), size):
            (goes if _HASH.unpack_from(bucket, at)[0] & level else stays).extend(bucket[at : at + size])
        self._buckets[self._split] = stays
        self._buckets.append(goes)
        self._split += 1
        if self._split == self._level:
            self._level *= 2
            self._split = 0
