"""Configure, reads, dead letters, traces and consumer groups (`wire-messaging.md` 5, 10 to 15), and what is shared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queen_actors.domain.effects import DeadLetterPut, QueueOptions, Record
from queen_actors.domain.queue import (
    CONFIGURE_DEFAULTS,
    Configure,
    DeadLetterView,
    GroupDeleted,
    GroupPosition,
    MessageView,
    PartitionView,
    QueueView,
)
from queen_actors.errors import BadRequest, QueenError
from queen_actors.values import parse_instant
from queen_actors.wire import groups, queue
from queen_actors.wire.frames import Unsuccessful, parse_query, query_bool, query_int, unescape

AT = parse_instant("2026-08-01T00:00:00Z")
AT_TEXT = "2026-08-01T00:00:00.000000Z"


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_captured_configures_become_commands() -> None:
    """The two of Appendix A; null labels at the top are not named."""
    text = (
        b'{"queue":"orders","namespace":null,"task":null,"options":{"leaseTime":300,"retryLimit":3,"priority":0,'
        b'"delayedProcessing":0,"windowBuffer":0,"maxSize":0,"retentionSeconds":0,"completedRetentionSeconds":0,'
        b'"encryptionEnabled":false}}'
    )
    command = queue.parse_configure(text)
    assert (command.queue, command.namespace, command.task, command.replace) == ("orders", None, None, False)
    assert command.options == {
        "lease_seconds": 300, "retry_limit": 3, "priority": 0, "delayed_processing_seconds": 0,
        "window_buffer_seconds": 0, "max_size": 0, "retention_seconds": 0, "completed_retention_seconds": 0,
        "encryption_enabled": False,
    }  # fmt: skip
    labelled = queue.parse_configure(body(queue="orders", namespace="acme", task="mail", mode="replace"))
    assert labelled == Configure("orders", {}, "acme", "mail", True)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"options": {"leaseTime": 5}, "retryLimit": 1}, {"lease_seconds": 5, "retry_limit": 1}),
        ({"options": {"leaseTime": 5}, "leaseTime": 9}, {"lease_seconds": 5}),
        ({"options": {"leaseTime": None, "retentionSinkHold": None, "deadLetterQueue": None}},
         {"lease_seconds": 300, "retention_sink_hold": "", "dead_letter_queue": True}),
        ({"options": {"dedupWindowSeconds": -1, "minPopWaitTime": 70_000}},
         {"dedup_window_seconds": 0, "min_pop_wait_ms": 60_000}),
        ({"options": {"priority": -3, "leaseTime": 60.0}}, {"priority": -3, "lease_seconds": 60}),
        ({"options": {"deliveryLimit": 0, "unknown": "ignored"}}, {"delivery_limit": 0}),
        ({"options": {"retentionSinkHold": "a.B-c_9", "retentionSinkHoldMaxSeconds": 60}},
         {"retention_sink_hold": "a.B-c_9", "retention_sink_hold_max_seconds": 60}),
        ({}, {}),
    ],
)  # fmt: skip
def test_options(given: dict[str, Any], options: dict[str, Any]) -> None:
    """Inside `options` or at the top; null is the default; clamps; unknown ones ignored."""
    assert queue.parse_configure(body(queue="q", **given)).options == options


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "bad_body"),
        (b"[]", "bad_body"),
        (b'{"queue":"\xff"}', "bad_body"),
        (body(), "bad_request"),
        (body(queue=7), "bad_request"),
        (body(queue="a\n"), "bad_request"),
        (body(queue="q", mode="upsert"), "bad_request"),
        (body(queue="q", options=[1]), "bad_request"),
        (body(queue="q", options={"leaseTime": "5"}), "bad_request"),
        (body(queue="q", options={"leaseTime": 1.5}), "bad_request"),
        (body(queue="q", options={"leaseTime": True}), "bad_request"),
        (body(queue="q", options={"encryptionEnabled": 1}), "bad_request"),
        (body(queue="q", options={"retentionSinkHold": "a b"}), "bad_request"),
        (body(queue="q", options={"retentionSinkHoldMaxSeconds": 59}), "bad_request"),
        (body(queue="q", options={"namespace": 7}), "bad_request"),
    ],
)
def test_a_malformed_configure_is_refused(text: bytes, code: str) -> None:
    """400, with the field's name in the prose."""
    with pytest.raises(BadRequest) as caught:
        queue.parse_configure(text)
    assert caught.value.code == code


def test_labels_in_the_options_win() -> None:
    """Also as an explicit null, which empties the label."""
    inside = queue.parse_configure(body(queue="q", namespace="top", options={"namespace": "in", "task": None}))
    assert (inside.namespace, inside.task) == ("in", "")


VIEW = QueueView(
    1, "uid", "orders", "acme", "mail", CONFIGURE_DEFAULTS, AT,
    (PartitionView(7, "p1", AT, 5, 3, 1, 2, 1, AT), PartitionView(8, "p2", AT, 1, 1, 0, 0, 0, None)),
)  # fmt: skip


def test_configured_shows_every_option() -> None:
    """Section 5's answer, with the alias `maxQueueSize`."""
    answer = json.loads(queue.render_configured(VIEW))
    options = answer.pop("options")
    assert answer == {"configured": True, "queueId": "uid", "partitionId": None, "queue": "orders",
                      "namespace": "acme", "task": "mail", "storage": "segments"}  # fmt: skip
    assert options == {
        "leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "deadLetterQueue": True, "dlqAfterMaxRetries": True,
        "delayedProcessing": 0, "windowBuffer": 0, "retentionEnabled": False, "retentionSeconds": 0,
        "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "dedupWindowSeconds": 3600, "minPopWaitTime": 0,
        "priority": 0, "maxSize": 0, "maxQueueSize": 0, "ttl": 3600, "encryptionEnabled": False,
        "retentionSinkHold": "", "retentionSinkHoldMaxSeconds": 604_800, "deliveryLimit": 20,
    }  # fmt: skip
    assert set(queue.options_of(QueueOptions())) == set(options), "every field of the options has a name on the wire"
    assert len(options) == len(QueueOptions.__struct_fields__) + 1


def test_a_queue_is_shown_with_its_partitions() -> None:
    """Section 13: ids are strings, totals are sums."""
    shown = json.loads(queue.render_queue(VIEW))
    first = shown["partitions"][0]
    counts = {"total": 5, "pending": 3, "processing": 1, "completed": 2, "failed": None, "deadLetter": 1}
    assert (first["id"], first["name"], first["lastActivity"]) == ("7", "p1", AT_TEXT)
    assert first["messages"] == first["stats"] == counts
    assert shown["totals"] == {**counts, "total": 6, "pending": 4}
    assert shown["partitions"][1]["lastActivity"] is None
    assert (shown["id"], shown["createdAt"]) == ("uid", AT_TEXT)


def test_a_delete_is_always_an_answer() -> None:
    """Section 12."""
    assert json.loads(queue.render_deleted("q", True)) == {"deleted": True, "existed": True, "queue": "q"}
    gone = json.loads(queue.render_deleted("q", False))
    assert (gone["deleted"], gone["existed"], gone["queue"]) == (False, False, "q")
    assert gone["message"]


RECORD = Record(3, AT, "m", "t", b'{"a":1.50}')


def test_dead_letters() -> None:
    """Section 11: payload under both names, text as it was sent; total counts all."""
    letter = DeadLetterView("orders", "p1", DeadLetterPut("d", 1, 7, "g", RECORD, "poison", 2, AT))
    asked = queue.parse_letters(parse_query(b"queue=orders&limit=10&offset=5&consumerGroup=g&partition=p1"))
    text = queue.render_letters([letter], 6, asked)
    assert text.count(b'{"a":1.50}') == 2
    assert json.loads(text) == {
        "messages": [{
            "id": "d", "queue": "orders", "partition": "p1", "partitionId": "7", "createdAt": AT_TEXT,
            "consumerGroup": "g", "offset": 3, "messageId": "m", "transactionId": "t", "data": {"a": 1.5},
            "payload": {"a": 1.5}, "errorMessage": "poison", "retryCount": 2, "failedAt": AT_TEXT,
        }],
        "total": 6,
        "pagination": {"limit": 10, "offset": 5},
    }  # fmt: skip


def test_dead_letter_queries() -> None:
    """The defaults, the clamps, and instants; an unreadable instant is a 400."""
    assert queue.parse_letters({}) == queue.LettersQuery(None, None, None, None, None, 100, 0)
    asked = queue.parse_letters(parse_query(b"from=2026-08-01T00%3A00%3A00Z&to=2026-08-01T00:00:01%2B00:00&limit=5000"))
    assert (asked.since, asked.until, asked.limit) == (AT, AT + 1_000_000, 1000)
    with pytest.raises(BadRequest):
        queue.parse_letters({"from": "yesterday"})


def test_a_message_is_shown_with_its_groups() -> None:
    """Section 14: which kinds of consumers the queue has decides the mode."""

    def view(mode: bool, *names: str) -> Any:
        positions = tuple(GroupPosition(name, 3, True, AT) for name in names)
        message = MessageView(VIEW, "p1", 7, RECORD, "completed", None, 0, positions, mode)
        return json.loads(queue.render_message(message))

    shown = view(True, "__QUEUE_MODE__", "g")
    assert shown["consumerGroups"][1] == {"name": "g", "committed": 3, "consumed": True, "leaseExpiresAt": AT_TEXT}
    assert shown["mode"] == {"hasQueueMode": True, "busGroupsCount": 1, "type": "hybrid"}
    assert [view(*a)["mode"]["type"] for a in ((False,), (True, "__QUEUE_MODE__"), (False, "g"))] == [
        "none", "queue", "bus",
    ]  # fmt: skip
    for name, value in {"id": "m", "transactionId": "t", "data": {"a": 1.5}, "partitionId": "7", "queue": "orders",
                        "queuePath": "orders/p1", "status": "completed", "errorMessage": None}.items():  # fmt: skip
        assert shown[name] == value
    assert shown["queueConfig"]["leaseTime"] == 300


def test_traces() -> None:
    """Section 15: camel and snake case, one name or several, data kept as text."""
    text = (
        b'{"transactionId":"t0","partitionId":"7","consumerGroup":"g","traceNames":["a","b"],"eventType":"step",'
        b'"data":{"n": 1.0}}'
    )
    assert queue.parse_trace(text) == queue.Trace(7, "t0", "g", ("a", "b"), "step", b'{"n": 1.0}', None)
    snake = b'{"transaction_id":"t0","partition_id":9,"names":"a","type":"x","worker":"w","traceNames":null}'
    assert queue.parse_trace(snake) == queue.Trace(9, "t0", "__QUEUE_MODE__", ("a",), "x", b"null", "w")
    for bad in (b"", b"[]", b"{}", b'{"transactionId":""}', b'{"transactionId":"t","traceNames":[1]}',
                b'{"transactionId":"t","eventType":7}'):  # fmt: skip
        with pytest.raises(BadRequest):
            queue.parse_trace(bad)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'{"toEnd":true}', b' {"toEnd":true,"timestamp":7} '])
def test_a_seek_without_a_timestamp_goes_to_the_end(text: bytes) -> None:
    """The four empty bodies, and the flag."""
    assert groups.parse_seek(text) is None


@pytest.mark.parametrize("text", [b"{", b"7", b'{"position":3}', b'{"toEnd":false}', b'{"timestamp":"soon"}'])
def test_a_malformed_seek_has_the_routes_own_shape(text: bytes) -> None:
    """400 `{"success":false,"error":...}`."""
    with pytest.raises(Unsuccessful) as caught:
        groups.parse_seek(text)
    answer = json.loads(caught.value.body())
    assert (caught.value.status, answer["success"]) == (400, False)


def test_group_answers() -> None:
    """Section 10's bodies."""
    assert groups.parse_seek(b'{"timestamp":"2026-08-01T00:00:00Z"}') == AT
    assert json.loads(groups.render_sought("g", "q", None, AT, 3)) == {
        "success": True, "consumerGroup": "g", "queueName": "q", "partitionName": None, "seekToEnd": False,
        "targetTimestamp": AT_TEXT, "partitionsUpdated": 3, "updated": True,
    }  # fmt: skip
    gone = json.loads(groups.render_seek_not_found("g", "q", "p"))
    assert gone == {"success": False, "error": "Partition not found", "consumerGroup": "g", "queueName": "q",
                    "partitionsUpdated": 0}  # fmt: skip
    assert json.loads(groups.render_seek_not_found("g", "q", None))["error"] == "Queue not found or has no partitions"
    assert json.loads(groups.render_group_deleted("g", None, GroupDeleted(0, 0, ()))) == {
        "success": True, "consumerGroup": "g", "queueName": None, "deletedPartitions": 0, "metadataDeleted": False,
        "queues": [],
    }  # fmt: skip
    assert groups.parse_subscription(b'{"subscriptionTimestamp":"2026-08-01T00:00:00Z"}') == AT
    assert json.loads(groups.render_subscription("g", AT, 2))["newTimestamp"] == AT_TEXT
    for bad in (b"", b'{"subscriptionTimestamp":7}', b'{"subscriptionTimestamp":"soon"}'):
        with pytest.raises(BadRequest):
            groups.parse_subscription(bad)


def test_query_strings_are_forms() -> None:
    """1.6: plus is a space, escapes are decoded, the last of a repeated field counts, blank values stay."""
    assert parse_query(b"after=x%2Fy+z&a=1&a=2&b=") == {"after": "x/y z", "a": "2", "b": ""}
    for bad in (b"a=%ff", "a=é".encode(), b"&".join(b"a%d=1" % n for n in range(70))):
        with pytest.raises(BadRequest):
            parse_query(bad)


def test_path_pieces_are_decoded_once() -> None:
    """1.6: a plus stays a plus, `%2541` is `%41`; what is not UTF-8 is refused."""
    assert [unescape(piece) for piece in (b"order%2F9137%20x%3F", b"a+b", b"%2541", b"%zz")] == [
        "order/9137 x?", "a+b", "%41", "%zz",
    ]  # fmt: skip
    with pytest.raises(QueenError):
        unescape(b"%ff")


def test_query_scalars() -> None:
    """Numbers may be floats, and are clamped; booleans have two spellings each."""
    assert query_int({"n": "1500.7"}, "n", 0, 0, 5000) == 1500
    assert query_int({"n": "1e999"}, "n", 0, 0, 5000) == 5000
    assert query_int({}, "n", 7, 0, 5000) == 7
    assert (query_bool({"b": "TRUE"}, "b"), query_bool({"b": "0"}, "b"), query_bool({}, "b", True)) == (
        True,
        False,
        True,
    )
    for bad in ("x", "nan", "1_0"):
        with pytest.raises(BadRequest):
            query_int({"n": bad}, "n", 0, 0, 9)
    with pytest.raises(BadRequest):
        query_bool({"b": "yes"}, "b")
