"""The partitions of a queue by name, in the order of their creation.

A partition that is packed away has its name in what it is packed into, and nowhere else: here it takes some 30 bytes.
Those in use are in a dictionary besides.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator

from .lookup import Lookup


def _nobody(pid: int) -> str:
    raise KeyError(pid)


class Names:
    """Numbers by name. `name_of` gives the name of any partition that was added."""

    __slots__ = ("_lookup", "_name_of", "_order", "_used")

    def __init__(self, name_of: Callable[[int], str] = _nobody) -> None:
        self._name_of = name_of
        self._order = array("q")
        self._lookup = Lookup()
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (self._name_of(pid) for pid in self._order)

    def add(self, name: str, pid: int) -> None:
        """A new partition, behind all others: they are numbered as they are created."""
        assert not self._order or self._order[-1] < pid, "a partition's number is never used twice"
        self._order.append(pid)
        self._lookup.add(name, pid)

    def use(self, name: str, pid: int) -> None:
        """The partition is in memory from now on."""
        self._used[name] = pid

    def rest(self, name: str) -> None:
        """The partition is packed away."""
        self._used.pop(name, None)

    def get(self, name: str) -> int | None:
        """The partition of that name, or None."""
        pid = self._used.get(name)
        if pid is None:
            for candidate in self._lookup.find(name):
                if self._name_of(candidate) == name:
                    return candidate
        return pid

    def values(self) -> array[int]:
        """All numbers, in their order, as they are now."""
        return self._order[:]

    def items(self) -> Iterator[tuple[str, int]]:
        """Names and numbers, in their order."""
        return ((self._name_of(pid), pid) for pid in self.values())

    def behind(self, pid: int) -> Iterator[int]:
        """The partitions behind this number, in their order; others may be added meanwhile."""
        place = bisect_right(self._order, pid)
        while place < len(self._order):
            yield self._order[place]
            place += 1
