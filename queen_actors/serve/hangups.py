"""What the peers of parked requests do meanwhile, seen by one task for all of them.

A parked request waits for messages, and somebody has to see that its peer is gone. A task that reads its socket would
cost each of them 4 KB; one epoll, which is itself something to be waited for, costs them next to nothing.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

AT_ONCE = 256
"""Sockets that are looked at before others may run."""
AVAILABLE: Final = sys.platform == "linux"


class Hangups:
    """Sockets that are waited for by nobody else. `AVAILABLE` says where there can be one."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._looks: dict[int, Callable[[], bool]] = {}

    def watch(self, descriptor: int | None, look: Callable[[], bool]) -> bool:
        """Call `look` each time that there is something to read, or the peer has hung up, for as long as it returns
        True. It must not block, and must not raise. False: the socket is closed."""
        try:
            self._epoll.register(-1 if descriptor is None else descriptor, select.EPOLLIN | select.EPOLLRDHUP)
        except (OSError, ValueError):
            return False
        assert descriptor is not None
        self._looks[descriptor] = look
        return True

    def forget(self, descriptor: int | None, look: Callable[[], bool]) -> None:
        """Watch it no more. It may have been closed meanwhile, and its number be another's."""
        if descriptor is not None and self._looks.get(descriptor) == look:
            del self._looks[descriptor]
            with suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Look, for ever."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0, AT_ONCE):
                    look = self._looks.get(descriptor)
                    if look is not None and not look():
                        self.forget(descriptor, look)
        finally:
            self._epoll.close()
