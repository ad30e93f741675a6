"""Deliveries on the WebSocket: the same text for all who get it (`websocket.md`, sections 3 and 4)."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import Record
from queen_actors.wire import delivery
from queen_actors.wire.delivery import Spellings, render_messages, render_tail
from queen_actors.wire.socket import joined_frames, text_frames

NAMES = ("s", 'q"\\', "päd\u2028", "g\t", "lease-1")
PLAIN = Record(3, 1_764_446_450_000_001, "id-3", 'txn"3', b'{"a": [1, "\\u00e9"]}')
FULL = Record(4, 1_764_446_450_000_002, "id-4", "txn-4", b"null", "trace", "producer", "timer\n4")


def claim(*records: Record, attempt: int = 2) -> Claim:
    return Claim(NAMES[1], NAMES[2], 7, attempt, records)


@dataclass
class Count:
    """How often something was called."""

    calls: int = 0


@pytest.fixture
def shared() -> Spellings:
    spellings = Spellings()
    spellings.readers = 2
    return spellings


def leased(spellings: Spellings | None, *records: Record) -> list[bytes]:
    return list(render_messages(NAMES[0], claim(*records), NAMES[4], NAMES[3], spellings))


def tailed(spellings: Spellings | None, *records: Record) -> list[bytes]:
    return list(render_tail(NAMES[0], claim(*records), spellings))


def test_shared_texts_are_the_same_texts(shared: Spellings) -> None:
    """What is put together from kept texts is, byte by byte, what is encoded for one reader alone: names that need
    escapes, all optional fields, a first and a second time."""
    for records in ((PLAIN,), (FULL,), (PLAIN, FULL)):
        for _ in range(2):
            assert leased(shared, *records) == leased(None, *records)
            assert tailed(shared, *records) == tailed(None, *records)


def test_an_event_has_the_fields_of_its_record() -> None:
    """In their order, so that the protocol's description, which is made from the record types, is true."""
    (event,) = map(json.loads, leased(None, FULL))
    fields = list(delivery.EVENTS["messages"].__struct_encode_fields__)
    assert list(event) == ["event", *fields]
    assert (event["sub"], event["queue"], event["partition"], event["partitionId"]) == (*NAMES[:3], "7")
    assert (event["leaseId"], event["consumerGroup"]) == (NAMES[4], NAMES[3])
    (message,) = event["messages"]
    assert message["deliveryAttempt"] == 2
    assert message["timerKey"] == "timer\n4"
    (event,) = map(json.loads, tailed(None, PLAIN))
    fields = list(delivery.EVENTS["tailMessages"].__struct_encode_fields__)
    assert list(event) == ["event", *fields]
    assert list(event["messages"][0]) == [
        *("id", "transactionId", "traceId", "data", "producerSub", "createdAt", "partitionId", "partition", "offset")
    ]


def test_a_message_is_encoded_once_for_all(shared: Spellings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten groups, each with a lease of its own, and ten tails cost one encoding of a message; a reader alone keeps
    nothing."""
    count = Count()

    def counted(record: Record, pid: str, partition: str) -> tuple[bytes, bytes]:
        count.calls += 1
        return spell(record, pid, partition)

    spell = delivery._spell
    monkeypatch.setattr(delivery, "_spell", counted)
    for number in range(10):
        (event,) = render_messages(f"s{number}", claim(PLAIN, FULL), f"lease-{number}", f"g{number}", shared)
        assert [message["leaseId"] for message in json.loads(event)["messages"]] == [f"lease-{number}"] * 2
        tailed(shared, PLAIN, FULL)
    assert count.calls == 2
    shared.readers = 1
    tailed(shared, replace(PLAIN, offset=9))
    assert count.calls == 2


def test_kept_texts_are_bounded(shared: Spellings, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages pass, no more than `WS_SPELLINGS_BYTES` of text stay."""
    monkeypatch.setattr(limits, "WS_SPELLINGS_BYTES", 100_000)
    for offset in range(2_000):
        tailed(shared, replace(PLAIN, offset=offset, payload=b'"' + b"x" * 998 + b'"'))
    kept = sum(len(front) for known in (shared._known, shared._older) for front, _ in known.values())
    assert 40_000 < kept <= 101_500


def test_kept_events_are_bounded(shared: Spellings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do more stay when messages come many at a time, in overlapping claims."""
    monkeypatch.setattr(limits, "WS_SPELLINGS_BYTES", 100_000)
    texts = [replace(PLAIN, offset=offset, payload=b'"' + b"x" * 998 + b'"') for offset in range(2_000)]
    most = 0
    for first in range(0, 1_990, 3):
        tailed(shared, *texts[first : first + 10])
        kept = {id(front): len(front) for known in (shared._known, shared._older) for front, _ in known.values()}
        for events in (*shared._events.values(), *shared._older_events.values()):
            kept.update({id(text): len(text) for event in events for text in event})
        most = max(most, sum(kept.values()))
    assert 20_000 < most <= 130_000, "the bound, and the claim that went over it"


def test_overlapping_claims_have_their_own_events(shared: Spellings) -> None:
    """What is kept of one claim is not taken for another one that begins or ends with the same message."""
    records = [replace(PLAIN, offset=offset) for offset in range(6)]
    wanted = [(0, 3), (0, 6), (3, 6), (2, 4), (0, 1), (0, 3), (5, 6), (0, 6)]
    for first, last in wanted:
        for number in range(2):
            (event,) = render_messages("s", claim(*records[first:last]), f"lease-{number}", f"g{number}", shared)
            messages = json.loads(event)["messages"]
            assert [message["offset"] for message in messages] == list(range(first, last))
            assert {message["leaseId"] for message in messages} == {f"lease-{number}"}
        (event,) = tailed(shared, *records[first:last])
        assert [message["offset"] for message in json.loads(event)["messages"]] == list(range(first, last))
        assert b"lease" not in event
    (event,) = tailed(shared, records[0], records[5])
    assert [message["offset"] for message in json.loads(event)["messages"]] == [0, 5]


def test_a_long_claim_is_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each about `WS_EVENT_BYTES` long, what a message carries beside its payload included; none is empty."""
    monkeypatch.setattr(limits, "WS_EVENT_BYTES", 10_000)
    for payload, most in ((b"1", 30), (b'"' + b"x" * 4_000 + b'"', 3), (b'"' + b"x" * 50_000 + b'"', 1)):
        records = [replace(PLAIN, offset=offset, payload=payload) for offset in range(100)]
        shared = Spellings()
        shared.readers = 2
        for spellings in (None, shared, shared):
            events = [json.loads(event)["messages"] for event in tailed(spellings, *records)]
            assert [message["offset"] for event in events for message in event] == list(range(100))
            assert 1 <= max(len(event) for event in events) <= most


@pytest.mark.parametrize("sizes", [[], [0], [10] * 50, [99, 100, 101], [300, 5, 1_000, 5, 5], [90, 90, 90]])
def test_joined_frames_are_the_frames(sizes: list[int]) -> None:
    """In their order and whole, whatever their sizes; pieces are about as long as may be."""
    payloads = [bytes([65 + place % 26]) * size for place, size in enumerate(sizes)]
    pieces = list(joined_frames(payloads, 100))
    assert b"".join(pieces) == b"".join(frame for payload in payloads for frame in text_frames(payload, 100))
    assert all(0 < len(piece) <= 110 for piece in pieces)
    if sizes == [10] * 50:
        assert len(pieces) <= 7
