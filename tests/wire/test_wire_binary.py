"""Binary bodies, as the published SDK writes them (`wire-messaging.md` 6.5, wire-kv 5.12)."""

from __future__ import annotations

import struct

import pytest
import zstandard
from queen.http import push_binary

from queen_actors import limits
from queen_actors.domain.cursor import Ack
from queen_actors.domain.partition import PushItem
from queen_actors.errors import BadRequest, QueenError
from queen_actors.wire.binary import parse_binary_push, parse_binary_transaction

WORKED = bytes.fromhex(
    "51504231040100000006006f72646572730100700200000002007431070000007b2261223a317d020074320400000022c3a922"
)
COMPRESSED = bytes.fromhex(
    "51504231080100000006006f7264657273010070020000004600000028b52ffd203de901001c0000000001a227b186977252a38d2d40bf81"
    "60c8020074317b2261223a317d190000000001a227b1869777b588a50be21c3725630200743222c3a922"
)
HORIZON = 10**15


def test_the_worked_example_is_read() -> None:
    """The specification's own bytes: queue, partition, transaction ids and payloads."""
    items, counts = parse_binary_push(WORKED)
    assert items == [PushItem("orders", "p", b'{"a":1}', "t1"), PushItem("orders", "p", '"é"'.encode(), "t2")]
    assert not counts


def test_frames_keep_the_ids_that_the_client_minted() -> None:
    """The captured compressed body: each message has the id of its frame."""
    items, _ = parse_binary_push(COMPRESSED)
    assert [item.txn for item in items] == ["t1", "t2"]
    assert [item.id for item in items] == [
        "01a227b1-8697-7252-a38d-2d40bf8160c8",
        "01a227b1-8697-77b5-88a5-0be21c372563",
    ]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_what_the_sdk_encodes_is_read(compress: bool, counts: bool) -> None:
    """Several groups, an empty transaction id, compressed or not, both kinds of answer."""
    batches: list[push_binary.PushBatch] = []
    for queue, partition, txn, payload in (("q", "a", "t1", 1), ("q", "a", "", {"x": None}), ("q/2", "b", "t3", "é")):
        push_binary_add(batches, queue, partition, txn, payload)
    items, asked = parse_binary_push(push_binary.encode_push_binary(batches, compress=compress, counts=counts))
    assert asked is counts
    assert [(item.queue, item.partition, item.txn) for item in items] == [
        ("q", "a", "t1"),
        ("q", "a", None),
        ("q/2", "b", "t3"),
    ]


def push_binary_add(
    batches: list[push_binary.PushBatch], queue: str, partition: str, txn: str, payload: object
) -> None:
    item = {"queue": queue, "partition": partition, "transactionId": txn, "payload": payload}
    assert push_binary._add_item(batches, item)


@pytest.mark.parametrize("body", [WORKED, COMPRESSED])
def test_a_body_cut_anywhere_is_refused(body: bytes) -> None:
    """No prefix is mistaken for a whole body, and none raises anything but a refusal."""
    for end in range(len(body)):
        with pytest.raises(BadRequest) as refusal:
            parse_binary_push(body[:end])
        assert refusal.value.code == "bad_body"


@pytest.mark.parametrize("body", [WORKED, COMPRESSED])
def test_a_flipped_bit_is_read_or_refused(body: bytes) -> None:
    """Whatever the bytes say, the answer is items or a refusal with a code."""
    for place in range(len(body)):
        for bit in range(8):
            broken = bytearray(body)
            broken[place] ^= 1 << bit
            assert _status(bytes(broken)) in (201, 400, 413)


def _status(body: bytes) -> int:
    try:
        parse_binary_push(body)
    except QueenError as refusal:
        return refusal.status
    return 201


def test_a_compressed_bomb_is_refused_before_it_is_let_out() -> None:
    """A small body that grows past the bound of a body."""
    bomb = zstandard.ZstdCompressor().compress(bytes(80 << 20))
    with pytest.raises(QueenError) as refusal:
        parse_binary_push(b"QPB1\x01" + struct.pack("<I", 80 << 20) + bomb)
    assert refusal.value.status == 413


def test_a_payload_that_is_no_json_is_refused() -> None:
    """Nothing gets into the log that a consumer could not read."""
    with pytest.raises(BadRequest, match="not JSON"):
        parse_binary_push(WORKED.replace(b'{"a":1}', b'{"a":1 '))


def test_a_binary_transaction_is_its_head_and_then_its_groups() -> None:
    """The head's acks come first, then the messages in order; the riders are the head's."""
    batches: list[push_binary.PushBatch] = []
    push_binary_add(batches, "r", "Default", "t1", {"n": 1})
    push_binary_add(batches, "r", "Default", "t2", {"n": 2})
    head = (
        b'{"operations":[{"type":"ack","transactionId":"a","partitionId":"7","leaseId":"L1"}],"requiredLeases":["L1"],'
        b'"kv":[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]}'
    )
    bundle, counts = parse_binary_transaction(push_binary.encode_transaction_frames(head, batches), HORIZON, None)
    assert not counts
    assert isinstance(bundle.steps[0], Ack)
    assert [step.txn for step in bundle.steps[1:] if isinstance(step, PushItem)] == ["t1", "t2"]
    assert bundle.required_leases == ("L1",)
    assert len(bundle.kv) == 1


def test_many_small_bombs_are_one_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds of a body and of a push are of all groups together, and hold before anything is made of them."""
    monkeypatch.setattr(limits, "BODY_BYTES", 1 << 20)
    payload = b'"' + b"x" * (600 << 10) + b'"'
    frame = bytes(1 + 16) + struct.pack("<H", 1) + b"t" + payload
    group = b"\x01\x00q\x00\x00" + struct.pack("<I", 1)
    small = zstandard.ZstdCompressor().compress(struct.pack("<I", len(frame)) + frame)
    one = group + struct.pack("<I", len(small)) + small
    assert len(parse_binary_push(b"QPB1\x08" + struct.pack("<I", 1) + one).items) == 1
    with pytest.raises(QueenError) as refusal:
        parse_binary_push(b"QPB1\x08" + struct.pack("<I", 2) + one + one)
    assert refusal.value.status == 413
    crowd = b"\x01\x00q\x00\x00" + struct.pack("<I", limits.PUSH_ITEMS + 1)
    with pytest.raises(QueenError) as refusal:
        parse_binary_push(b"QPB1\x00" + struct.pack("<I", 1) + crowd)
    assert refusal.value.status == 413
