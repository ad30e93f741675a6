"""What the connections of one server send alike: spelled and framed once, whoever gets it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from queen_actors.actors.subscription import Delivery
from queen_actors.actors.tail import Gap
from queen_actors.domain.cursor import Claim
from queen_actors.domain.watch import Changes
from queen_actors.wire import delivery as wire
from queen_actors.wire.delivery import Spellings
from queen_actors.wire.socket import joined_frames
from queen_actors.wire.watch import ChangeSpellings, render_changes

from .outbox import CHUNK_BYTES

ROUNDS, ROUND_BYTES = 4, 2 << 20
"""How many rounds are kept, for peers write theirs in one turn of the event loop, or nearly; and how much of each, for
peers may all have names of their own."""


class _Round(Struct):
    """Pieces by name of `thing`, which is kept too, so that no other object has its identity."""

    thing: object
    pieces: dict[str, tuple[bytes, ...]]
    room: int


class Sharing:
    """Frames of events, in pieces that a write may take, for all connections."""

    def __init__(self) -> None:
        self.messages = Spellings()
        self.changes = ChangeSpellings()
        self._rounds: dict[int, _Round] = {}

    @contextmanager
    def reader(self) -> Generator[None]:
        """There is one subscription or tail more while the block runs."""
        self.messages.readers += 1
        try:
            yield
        finally:
            self.messages.readers -= 1

    @contextmanager
    def watch(self) -> Generator[None]:
        """There is one watch more while the block runs."""
        self.changes.watches += 1
        try:
            yield
        finally:
            self.changes.watches -= 1

    def delivered(self, sub: str, deliveries: Iterable[Delivery]) -> Iterable[bytes]:
        """What a subscription was handed."""
        return joined_frames(
            (
                event
                for one in deliveries
                for event in wire.render_messages(sub, one.claim, one.lease_id, one.group, self.messages)
            ),
            CHUNK_BYTES,
        )

    def tailed(self, sub: str, found: Sequence[Gap | Claim]) -> Iterable[bytes]:
        """What a tail has found: the same object for every tail that is up to date."""
        return self._once(found, sub, lambda: joined_frames(self._tail_events(sub, found), CHUNK_BYTES))

    def _tail_events(self, sub: str, found: Iterable[Gap | Claim]) -> Iterator[bytes]:
        for one in found:
            if isinstance(one, Gap):
                yield wire.render_gap(sub, one.partition, one.first, one.last)
            else:
                yield from wire.render_tail(sub, one, self.messages)

    def watched(self, watch: str, news: Iterable[Changes]) -> Iterable[bytes]:
        """What a watch was told."""
        return joined_frames((render_changes(watch, one, self.changes) for one in news), CHUNK_BYTES)

    def _once(self, thing: Sequence[Gap | Claim], name: str, frame: Callable[[], Iterable[bytes]]) -> Iterable[bytes]:
        """The pieces of this very object, for peers that have the same name for what it belongs to."""
        if not isinstance(thing, tuple) or not self.messages.shared:
            return frame()
        kept = self._rounds.get(id(thing))
        if kept is None or kept.thing is not thing:
            while len(self._rounds) >= ROUNDS:
                del self._rounds[next(iter(self._rounds))]
            kept = self._rounds[id(thing)] = _Round(thing, {}, ROUND_BYTES)
        pieces = kept.pieces.get(name)
        if pieces is None:
            pieces = tuple(frame())
            kept.room -= sum(map(len, pieces))
            if kept.room >= 0:
                kept.pieces[name] = pieces
        return pieces
