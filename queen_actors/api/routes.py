"""The one route table, and how a raw path finds its route.

A path is split before it is decoded (1.6): an escaped slash inside a piece is data, and no slash is ever merged or
added. A `*name` also takes raw slashes, because some clients leave those of a name unescaped (`a//b`, `/lead`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from queen_actors.wire.frames import unescape

from . import (
    ack,
    ephemeral,
    groups,
    health,
    kv,
    letters,
    locks,
    metrics,
    overview,
    pop,
    push,
    queue,
    reads,
    socket,
    static,
    streams,
    timers,
    transaction,
)
from .call import Route

_RECENT_PATHS, _RECENT_BYTES = 1024, 256

TABLE: tuple[Route, ...] = (
    *push.ROUTES,
    *pop.ROUTES,
    *ack.ROUTES,
    *kv.ROUTES,
    *locks.ROUTES,
    *timers.ROUTES,
    *transaction.ROUTES,
    *letters.ROUTES,
    *overview.ROUTES,
    *reads.ROUTES,
    *queue.ROUTES,
    *groups.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
    *socket.ROUTES,
    *streams.ROUTES,
    *ephemeral.ROUTES,
    *static.ROUTES,
)
"""In order: of two that match, the first one is meant."""


def _compile(pattern: str) -> re.Pattern[bytes]:
    pieces = pattern.split("/")
    last = len(pieces) - 1
    out: list[str] = []
    for place, piece in enumerate(pieces):
        if piece.startswith(":"):
            out.append("([^/]*)")
        elif piece.startswith("*"):
            out.append("(.*)" if place == last else "(.*?)")
        else:
            out.append(re.escape(piece))
    return re.compile("/".join(out).encode(), re.DOTALL)


class Router:
    """Finds the route of a method and a raw path."""

    def __init__(self, routes: Iterable[Route] = TABLE) -> None:
        self._exact: dict[tuple[str, bytes], Route] = {}
        self._patterns: list[tuple[re.Pattern[bytes], Route]] = []
        self._recent: dict[tuple[str, bytes], tuple[Route, tuple[str, ...]]] = {}
        """Paths that were asked for lately: clients poll the same few ones."""
        for route in routes:
            if ":" in route.pattern or "*" in route.pattern:
                self._patterns.append((_compile(route.pattern), route))
            else:
                self._exact[route.method, route.pattern.encode()] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, tuple[str, ...]] | None:
        """The route and the decoded pieces of the path, or None. Raises BadRequest on escapes that are not UTF-8."""
        exact = self._exact.get((method, raw_path))
        if exact is not None:
            return exact, ()
        known = self._recent.get((method, raw_path))
        if known is not None:
            return known
        answer = self._search(method, raw_path)
        if answer is not None and len(raw_path) <= _RECENT_BYTES:
            if len(self._recent) >= _RECENT_PATHS:
                self._recent.clear()
            self._recent[method, raw_path] = answer
        return answer

    def _search(self, method: str, raw_path: bytes) -> tuple[Route, tuple[str, ...]] | None:
        for pattern, route in self._patterns:
            if route.method == method and (found := pattern.fullmatch(raw_path)):
                return route, tuple(unescape(piece) for piece in found.groups())
        return None

    def methods(self, raw_path: bytes) -> tuple[str, ...]:
        """The methods that the path has, in alphabetical order."""
        exact = {method for method, path in self._exact if path == raw_path}
        return tuple(sorted(exact | {route.method for pattern, route in self._patterns if pattern.fullmatch(raw_path)}))
