"""The clock and the ids of a running broker."""

from __future__ import annotations

import os
import random
import time

import trio

from queen_actors.values import SECOND

READS = 3


def _wall(given: int | None) -> int:
    return time.time_ns() // 1000 if given is None else given


class TrioClock:
    """The wall clock read once, then carried by Trio's own (monotonic, or virtual in tests).

    A wall clock that jumps while the broker runs moves no lease, lifetime or timer; what the log has seen already is
    never dated back (`advance_to`).
    """

    def __init__(self, wall: int | None = None) -> None:
        # Both clocks must be read at one moment; of a few tries, the one with the least between the two is the highest
        self._time = trio.lowlevel.current_clock().current_time  # `trio.current_time` looks for it each time
        self._anchor = max(_wall(wall) - int(self._time() * SECOND) for _ in range(READS))
        self._last = 0

    def now(self) -> int:
        at = self._anchor + int(self._time() * SECOND)
        self._last = at if at > self._last else self._last + 1
        return self._last

    def advance_to(self, at: int) -> None:
        behind = at - self.now()
        if behind >= 0:
            self._anchor += behind + 1
        self._last = max(self._last, at)

    async def sleep_until(self, at: int) -> None:
        while True:
            left = at - self._anchor - int(self._time() * SECOND)
            if left <= 0:
                return
            await trio.sleep(left / SECOND)


_COUNTER = tuple(f"{count:03x}" for count in range(4096))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))
_POOL = 256


class RandomIds:
    """UUIDs of version 7: the millisecond, a counter within it, and random bits. Seeded, a run can be repeated."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(os.urandom(16) if seed is None else seed)
        self._last = 0
        self._millisecond = -1
        self._beginning = ""
        self._endings: list[str] = []
        """Random bits of ids to come, spelled: made many at a time, one costs a fifth of what it does alone."""

    def uuid(self, now: int) -> str:
        # 48 bits of milliseconds, 12 bits that carry on where the last id stopped, 62 random bits
        head = (now // 1000) << 12
        last = self._last = head if head > self._last else self._last + 1
        if last >> 12 != self._millisecond:
            self._millisecond = last >> 12
            text = f"{self._millisecond:012x}"
            self._beginning = f"{text[:8]}-{text[8:]}-7"
        if not self._endings:
            self._spell()
        return self._beginning + _COUNTER[last & 0xFFF] + self._endings.pop()

    def _spell(self) -> None:
        bits = bytearray(self._random.randbytes(8 * _POOL))
        bits[::8] = bits[::8].translate(_VARIANT)
        self._endings = [f"-{digits[:4]}-{digits[4:]}" for digits in bits.hex(" ", 8).split()]

    def choose(self, below: int) -> int:
        return self._random.randrange(below)
