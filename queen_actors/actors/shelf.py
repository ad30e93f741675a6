"""The shelf: partitions that are packed away, by number, at 8 bytes each beyond what they are packed into."""

from __future__ import annotations

from collections.abc import Iterator

PAGE = 1024


class Shelf:
    """Bytes by number. Numbers are given out one after the other, so they lie in pages, as in an array; a dictionary
    would take 80 bytes for each."""

    __slots__ = ("_counts", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[bytes | None]] = {}
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    def __iter__(self) -> Iterator[int]:
        """The numbers, in their order."""
        for place in sorted(self._pages):
            yield from (number for number, _ in self.page(place))

    def get(self, number: int) -> bytes | None:
        """What lies there, or None."""
        page = self._pages.get(number // PAGE)
        return None if page is None else page[number % PAGE]

    def put(self, number: int, packed: bytes) -> None:
        """Lay it on the shelf, in the place of what lay there."""
        place, at = divmod(number, PAGE)
        page = self._pages.get(place)
        if page is None:
            page = self._pages[place] = [None] * PAGE
            self._counts[place] = 0
        if page[at] is None:
            self._counts[place] += 1
        page[at] = packed

    def take(self, number: int) -> bytes | None:
        """Take it off the shelf; None when nothing lies there."""
        place, at = divmod(number, PAGE)
        page = self._pages.get(place)
        packed = None if page is None else page[at]
        if page is None or packed is None:
            return None
        page[at] = None
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._pages[place], self._counts[place]
        return packed

    def page(self, place: int) -> list[tuple[int, bytes]]:
        """What lies in a page, at most `PAGE`: numbers and bytes."""
        page = self._pages.get(place, ())
        return [(place * PAGE + at, packed) for at, packed in enumerate(page) if packed is not None]

    def after(self, place: int) -> int:
        """The next page that there is, in turns: the first again behind the last; -1 when there is none."""
        return min((page for page in self._pages if page > place), default=min(self._pages, default=-1))
