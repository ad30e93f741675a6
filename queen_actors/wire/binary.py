"""Binary bodies of push and transaction (`wire-messaging.md` 6.5, `wire-kv-locks-timers-transactions.md` 5.12).

All integers are little-endian. Every length is checked against what is there before it is believed, and what is
compressed is let out only up to the bound of a body.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zstandard
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.errors import BadRequest, TooLarge
from queen_actors.values import DEFAULT_PARTITION

from .frames import check_names, check_txn, encode, is_json
from .transaction import parse_transaction, render_riders

CONTENT_TYPE = "application/x-queen-push"
_PUSH, _TRANSACTION = b"QPB1", b"QTB1"
_ZSTD, _COUNTS, _TXNS, _FRAMES = 1, 2, 4, 8
_KNOWN = _ZSTD | _COUNTS | _TXNS | _FRAMES
_GROUPS_MAX = limits.PUSH_ITEMS
_ID_BYTES = 16


class Push(NamedTuple):
    """A binary push: its items, and whether the caller wants counts instead of one entry for each."""

    items: list[PushItem]
    counts: bool


class BinaryTransaction(NamedTuple):
    """A binary transaction; `counts`: pushes and acks are counted in the answer, and have no elements."""

    transaction: Transaction
    counts: bool


class _Reader:
    """Reads a body from its start. Raises BadRequest when it ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._data):
            raise _malformed(f"it ends at byte {len(self._data)}, inside a field that ends at {end}")
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def text(self) -> str:
        """A name: u16 length, UTF-8."""
        try:
            return self.take(self.number(2)).decode()
        except UnicodeDecodeError:
            raise _malformed("a name in it is not UTF-8") from None

    @property
    def left(self) -> int:
        return len(self._data) - self.at


def _malformed(what: str) -> BadRequest:
    return BadRequest(f"the binary body cannot be read: {what}", code="bad_body")


def parse_binary_push(body: bytes) -> Push:
    """Raises BadRequest `bad_body`, TooLarge."""
    reader = _Reader(body)
    if reader.take(4) != _PUSH:
        raise _malformed("it does not begin with QPB1")
    flags = reader.number(1)
    if flags & ~_KNOWN:
        raise _malformed(f"unknown flags {flags & ~_KNOWN:#x}")
    if flags & _ZSTD:
        size = reader.number(4)
        reader = _Reader(_decompress(reader.take(reader.left), size))
    items: list[PushItem] = []
    groups = reader.number(4)
    if groups > _GROUPS_MAX:
        raise TooLarge(f"{groups} groups; one push takes at most {_GROUPS_MAX}")
    room = _Room(limits.PUSH_ITEMS, limits.BODY_BYTES)
    for _ in range(groups):
        items.extend(_framed(reader, room) if flags & _FRAMES else _plain(reader, room, txns=bool(flags & _TXNS)))
    if reader.left:
        raise _malformed(f"{reader.left} bytes follow its last group")
    return Push(items, bool(flags & _COUNTS))


def parse_binary_transaction(body: bytes, horizon: int, producer: str | None) -> BinaryTransaction:
    """Head operations first, then the groups' messages. Raises as `parse_transaction`, and BadRequest `bad_body`."""
    reader = _Reader(body)
    if reader.take(4) != _TRANSACTION:
        raise _malformed("it does not begin with QTB1")
    flags = reader.number(1)
    if flags & ~_COUNTS:
        raise _malformed(f"unknown flags {flags & ~_COUNTS:#x}")
    head = reader.take(reader.number(4))
    pushes: list[PushItem] = []
    room = _Room(limits.TRANSACTION_STEPS, limits.BODY_BYTES)
    for _ in range(reader.number(4)):
        pushes.extend(_framed(reader, room))
    if reader.left:
        raise _malformed(f"{reader.left} bytes follow its last group")
    return BinaryTransaction(parse_transaction(head or b"{}", horizon, producer, pushes), bool(flags & _COUNTS))


def _decompress(data: bytes, size: int) -> bytes:
    """One zstd frame of `size` bytes."""
    if size > limits.BODY_BYTES:
        raise TooLarge(f"{size} bytes once decompressed; a body takes at most {limits.BODY_BYTES}")
    raw = _inflate(data, size)
    if len(raw) != size:
        raise _malformed(f"it says {size} bytes and holds {len(raw)}")
    return raw


def _inflate(data: bytes, most: int) -> bytes:
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as stream:
            raw = stream.read(most + 1)
    except zstandard.ZstdError as wrong:
        raise _malformed(f"it is not one zstd frame ({wrong})") from None
    if len(raw) > most:
        raise TooLarge(f"more than {most} bytes once decompressed")
    return raw


def _names(reader: _Reader) -> tuple[str, str]:
    queue, partition = reader.text(), reader.text() or DEFAULT_PARTITION
    check_names(queue, partition)
    return queue, partition


class _Room:
    """What one call may still hold; groups are small on the wire, and large once decompressed."""

    def __init__(self, items: int, size: int) -> None:
        self._most = self._items = items
        self.size = size

    def take(self, items: int, size: int = 0) -> int:
        """The items. Raises TooLarge."""
        self._items -= items
        self.size -= size
        if self._items < 0:
            raise TooLarge(f"more than {self._most} items; one call takes no more")
        return items


def _plain(reader: _Reader, room: _Room, *, txns: bool) -> Iterator[PushItem]:
    queue, partition = _names(reader)
    for _ in range(room.take(reader.number(4))):
        txn = reader.text() if txns else ""
        yield _item(queue, partition, txn, reader.take(reader.number(4)), None)


def _framed(reader: _Reader, room: _Room) -> Iterator[PushItem]:
    """A group whose messages are one zstd frame of frames, each with the id that the client minted."""
    queue, partition = _names(reader)
    count = room.take(reader.number(4))
    raw = _inflate(reader.take(reader.number(4)), room.size)
    room.take(0, len(raw))
    inner = _Reader(raw)
    for _ in range(count):
        frame = _Reader(inner.take(inner.number(4)))
        if frame.number(1):
            raise _malformed("a frame in it has flags")
        mid = str(uuid.UUID(bytes=frame.take(_ID_BYTES)))
        txn = frame.text()
        yield _item(queue, partition, txn or mid, frame.take(frame.left), mid)
    if inner.left:
        raise _malformed(f"{inner.left} bytes follow the last message of a group")


def _item(queue: str, partition: str, txn: str, payload: bytes, mid: str | None) -> PushItem:
    check_txn(txn)
    payload = payload or b"null"
    if not is_json(payload):
        raise _malformed("a payload in it is not JSON")
    return PushItem(queue, partition, payload, txn or None, id=mid)


def render_counts(outcomes: Sequence[PushOutcome]) -> bytes:
    """The answer of a push that asked for counts."""
    repeats = sum(1 for outcome in outcomes if outcome.status == "duplicate")
    failed = sum(1 for outcome in outcomes if outcome.status == "failed")
    total = len(outcomes)
    return encode({"count": total, "queued": total - repeats - failed, "duplicate": repeats, "error": failed})


class _Counted(Struct, rename="camel"):
    transaction_id: str
    success: bool
    results: list[object]
    pushed: int
    duplicate: int
    acked: int


def render_committed_counts(reply: Committed, transaction_id: str) -> bytes:
    """The answer of a committed transaction that asked for counts: only the riders have elements, at their flat
    indexes."""
    pushes = [step for step in reply.steps if isinstance(step, PushOutcome)]
    repeats = sum(1 for step in pushes if step.status == "duplicate")
    riders = render_riders(reply)
    acked = len(reply.steps) - len(pushes)
    return encode(_Counted(transaction_id, True, riders, len(pushes) - repeats, repeats, acked))
