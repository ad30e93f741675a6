"""Deliveries on the WebSocket: events with messages (`websocket.md`, sections 3 and 4).

A message is the same text for everybody who gets it but for what belongs to a lease. `Spellings` keeps that text while
it is in demand, so that a hundred consumers of a message cost one encoding of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import Record

from .frames import encode
from .pop import Message, TailMessage, created_at, messages_of, tail_messages_of

_ENVELOPE_BYTES = 384  # a message without its payload


class _Messages(Struct, rename="camel", tag_field="event", tag="messages", gc=False):
    sub: str
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    messages: list[Message]


class _TailMessages(Struct, rename="camel", tag_field="event", tag="messages", gc=False):
    sub: str
    queue: str
    partition: str
    partition_id: str
    messages: list[TailMessage]


class _Gap(Struct, rename="camel", tag_field="event", tag="gap"):
    sub: str
    partition: str
    first: int = field(name="from")
    last: int = field(name="to")


EVENTS: Mapping[str, type[Struct]] = {"messages": _Messages, "tailMessages": _TailMessages, "gap": _Gap}
"""For the protocol's description; a tail's `messages` are without a lease."""


class _Front(Struct, rename="camel", gc=False):
    """What a message begins with, for everybody: the first fields of `Message`, in their order."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str


class _Lease(Struct, rename="camel"):
    """What comes next for one consumer, in a message as in an event; a message has its `deliveryAttempt` then."""

    lease_id: str
    consumer_group: str


class _Timer(Struct, rename="camel"):
    timer_key: str


_Spelling = tuple[bytes, bytes]
"""A message's text before and after what belongs to a lease, with a comma at its end."""
_Texts = list[bytes]
"""An event: a place for what is before its messages, then for each message what comes before the lease, a place for the
lease, and what comes after it; joined, they are the event."""


class Spellings:
    """Texts of the messages that were delivered last, while there is more than one who may get them.

    The text of a message is known by its partition's number and its offset, which name one durable message for ever;
    the events of a claim by its partition and by the first, the last and the number of its messages.
    """

    def __init__(self) -> None:
        self.readers = 0
        """How many subscriptions and tails are open; with one, nothing is kept."""
        self._known: dict[tuple[int, int], _Spelling] = {}
        self._older: dict[tuple[int, int], _Spelling] = {}
        self._events: dict[tuple[int, int, int, int], list[_Texts]] = {}
        self._older_events: dict[tuple[int, int, int, int], list[_Texts]] = {}
        self._size = 0

    @property
    def shared(self) -> bool:
        return self.readers > 1

    def under(self, claim: Claim, head: bytes, lease: bytes) -> Iterator[bytes]:
        """The events of a claim, whose messages must be durable, in offset order: each begins with `head`, and each of
        their messages has `lease` in it (nothing, for a tail)."""
        records = claim.records
        if len(records) == 1:
            front, end = self._of(claim, records[0], str(claim.pid))
            yield b"%b%b%b%b]}" % (head, front, lease, end[:-1])
            return
        place = (claim.pid, records[0].offset, records[-1].offset, len(records))
        events = self._events.get(place) or self._older_events.get(place)
        if events is None:
            events = [self._texts(part) for part in _parts(claim)]
            self._events[place] = events
            self._keep(sum([len(text) for texts in events for text in texts]))
        for known in events:
            texts = known.copy()
            texts[0] = head
            if lease:
                texts[2::3] = [lease] * (len(texts) // 3)
            yield b"".join(texts)

    def _texts(self, part: Claim) -> _Texts:
        texts, pid = [b""], str(part.pid)
        for record in part.records:
            front, end = self._of(part, record, pid)
            texts += (front, b"", end)
        texts[-1] = texts[-1][:-1] + b"]}"
        return texts

    def _of(self, claim: Claim, record: Record, pid: str) -> _Spelling:
        place = (claim.pid, record.offset)
        known = self._known.get(place) or self._older.get(place)
        if known is None:
            known = self._known[place] = _spell(record, pid, claim.partition)
            self._keep(len(known[0]))
        return known

    def _keep(self, size: int) -> None:
        """Two halves: when the younger one is full it becomes the older one, whose texts go."""
        self._size += size + _ENVELOPE_BYTES
        if self._size > limits.WS_SPELLINGS_BYTES // 2:
            self._known, self._older, self._size = {}, self._known, 0
            self._events, self._older_events = {}, self._events


def _spell(record: Record, pid: str, partition: str) -> _Spelling:
    about = (record.id, record.txn, record.trace, Raw(record.payload), record.producer, created_at(record.ts))
    front = _Front(*about, pid, partition)
    timer = b"" if record.timer_key is None else b"," + encode(_Timer(record.timer_key))[1:-1]
    return encode(front)[:-1], b',"offset":%d%b},' % (record.offset, timer)


def render_messages(
    sub: str, claim: Claim, lease_id: str, group: str, spellings: Spellings | None = None
) -> Iterable[bytes]:
    """A claim as events: of its one partition, in offset order, each about `WS_EVENT_BYTES` at the most."""
    if spellings is not None and spellings.shared:
        lease = _about_lease(lease_id, group)
        head = b'%b%b,"messages":[' % (_about(sub, claim.queue, claim.partition, claim.pid), lease)
        return spellings.under(claim, head, b'%b,"deliveryAttempt":%d' % (lease, claim.attempt))
    about = (sub, claim.queue, claim.partition, str(claim.pid), lease_id, group)
    return [encode(_Messages(*about, messages_of(part, lease_id, group, timer_keys=True))) for part in _parts(claim)]


def render_tail(sub: str, claim: Claim, spellings: Spellings | None = None) -> Iterable[bytes]:
    """What a tail reads of one partition, as events."""
    if spellings is not None and spellings.shared:
        head = _about(sub, claim.queue, claim.partition, claim.pid) + b',"messages":['
        return spellings.under(claim, head, b"")
    about = (sub, claim.queue, claim.partition, str(claim.pid))
    if len(claim.records) == 1:
        return (encode(_TailMessages(*about, tail_messages_of(claim))),)
    return [encode(_TailMessages(*about, tail_messages_of(part))) for part in _parts(claim)]


def render_gap(sub: str, partition: str, first: int, last: int) -> bytes:
    """Retention has removed the messages `first`..`last`, which the tail was to deliver."""
    return encode(_Gap(sub, partition, first, last))


def _about(sub: str, queue: str, partition: str, pid: int) -> bytes:
    """What every `messages` event begins with: the fields of `_TailMessages` before the last, in their order."""
    return b'{"event":"messages","sub":%b,"queue":%b,"partition":%b,"partitionId":"%d"' % (
        _quoted(sub),
        _quoted(queue),
        encode(partition),
        pid,
    )


@lru_cache(1024)
def _quoted(name: str) -> bytes:
    return encode(name)


@lru_cache(256)
def _about_lease(lease_id: str, group: str) -> bytes:
    """What comes next under a lease: of up to 64 partitions, and of each message."""
    return b"," + encode(_Lease(lease_id, group))[1:-1]


def _parts(claim: Claim) -> Sequence[Claim]:
    """Most claims are one part."""
    records = claim.records
    payloads = limits.WS_EVENT_BYTES - _ENVELOPE_BYTES * len(records)
    if len(records) == 1 or sum([len(record.payload) for record in records]) <= payloads:
        return (claim,)
    return list(_cut(claim))


def _cut(claim: Claim) -> Iterator[Claim]:
    first, size = 0, 0
    for place, record in enumerate(claim.records):
        if size and size + len(record.payload) > limits.WS_EVENT_BYTES:
            yield replace(claim, records=claim.records[first:place])
            first, size = place, 0
        size += len(record.payload) + _ENVELOPE_BYTES
    yield replace(claim, records=claim.records[first:]) if first else claim
