"""Encryption at rest (`encryptionEnabled`): no payload of such a queue lies in the clear in any file, whatever way it
took; with the key nobody notices, without it nobody reads, and nothing is lost by trying."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import trio
from trio.testing import MockClock
from wire_kit import Direct, Wire, direct, schedule

from queen_actors.api import Api
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.storage import DurableStore
from queen_actors.storage.memory import MemoryStore

KEY, OTHER = "00" * 32, base64.b64encode(b"k" * 32).decode()
MARK = "a phrase that is told to nobody"


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


@asynccontextmanager
async def opened(path: Path, key: str = KEY) -> AsyncIterator[tuple[Wire, Broker]]:
    settings = Settings(data=str(path), encryption_key=key)
    store = DurableStore(str(path), snapshot_bytes=1)
    async with running(store, settings) as broker:
        yield Wire(Direct(Api(broker, settings))), broker


def files(path: Path, kind: str) -> list[Path]:
    return list(path.glob(f"{kind}-*"))


def files_with(path: Path, text: str) -> list[str]:
    """Names of the files whose bytes, or whose tables' values, hold the text."""
    found: list[str] = []
    for file in sorted(path.rglob("*")):
        if not file.is_file():
            continue
        if text.encode() in file.read_bytes():
            found.append(file.name)
        elif file.suffix == ".duckdb":
            with duckdb.connect(str(file), read_only=True) as connection:
                tables = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
                rows = [row for table in tables for row in connection.execute(f'FROM "{table}"').fetchall()]
            if any(text.encode() in (v if isinstance(v, bytes) else str(v).encode()) for row in rows for v in row):
                found.append(file.name)
    return found


async def fill(wire: Wire, queue: str) -> dict[str, Any]:
    """Payloads of the queue by every road: pushes, a transaction, a timer that waits and one that fired, a dead
    letter, state and a sink of a stream."""
    await wire.push(queue, {"road": "push", "text": MARK})
    push = {"type": "push", "queue": queue, "payload": {"road": "transaction", "text": MARK}, "transactionId": "x"}
    assert (await wire.transaction(operations=[push]))["success"] is True
    await wire.timers(
        schedule(queue, "waits", {"road": "timer", "text": MARK}, 3_600_000),
        schedule(queue, "fires", {"road": "fired", "text": MARK}, 0, partition="timers"),
    )
    await wire.push(queue, {"road": "dead", "text": MARK}, partition="dead")
    (dead,) = await wire.pop(queue, "dead", consumerGroup="g", subscriptionMode="all")
    await wire.ack((dead, "dlq", "bad"), group="g")
    query = await wire.ok(
        "POST", "/streams/v1/queries", {"name": "s", "source_queue": queue, "config_hash": "h", "reset": False}
    )
    await wire.ok(
        "POST",
        "/streams/v1/cycle",
        {
            "query_id": query["query_id"],
            "partition_id": dead["partitionId"],
            "consumer_group": "g",
            "state_ops": [{"type": "upsert", "key": "k", "value": {"text": MARK}}],
            "push_items": [{"queue": queue, "partition": "sink", "payload": {"road": "stream", "text": MARK}}],
            "ack": None,
            "release_lease": False,
        },
    )
    return {"query": query["query_id"], "pid": dead["partitionId"]}


async def test_nothing_lies_in_the_clear(tmp_path: Path) -> None:
    """Not in a journal, a segment or a snapshot; a queue without the option shows that the search finds something. The
    key opens all of it again after a restart, by every road back: pop, fetch, list, message, dead letter, peek, state,
    replay, and a timer that fires."""
    async with opened(tmp_path) as (wire, broker):
        await wire.configure("secret", encryptionEnabled=True)
        made = await fill(wire, "secret")
        assert files_with(tmp_path, MARK) == []
        await wire.push("open", f"{MARK} of the other queue")
        assert [name[:7] for name in files_with(tmp_path, MARK)] == ["journal"]
        await wire.ok("DELETE", "/api/v1/resources/queues/open")
        await broker.seal()
        await broker.seal()
    async with opened(tmp_path) as (wire, broker):
        while not files(tmp_path, "snapshot"):
            await wire.put("k", 1)
            await broker.seal()
            await trio.sleep(0.05)
        assert all(name.startswith("segment") for name in files_with(tmp_path, f"{MARK} of the other queue"))
        assert files_with(tmp_path, '"road"') == []
        roads = [row["road"] for row in data(await wire.pop("secret", batch=10, partitions=10))]
        assert sorted(roads) == ["dead", "fired", "push", "stream", "transaction"]
        asked = {"entries": [{"queue": "secret", "partition": "Default", "offset": 0}]}
        (entry,) = (await wire.ok("POST", "/api/v1/fetch", asked))["entries"]
        assert [record["payload"]["text"] for record in entry["records"]] == [MARK, MARK]
        listed = (await wire.ok("GET", "/api/v1/messages?queue=secret"))["messages"]
        assert {(row["data"]["text"], row["isEncrypted"]) for row in listed} == {(MARK, True)}
        assert (await wire.message(made["pid"], "t0"))["data"]["text"] == MARK
        (letter,) = await wire.dead_letters("secret")
        assert letter["data"] == letter["payload"] == {"road": "dead", "text": MARK}
        peek = await wire.ok("GET", "/api/v1/timers/secret/waits")
        assert MARK.encode() in base64.b64decode(peek["payload"])
        state = {"query_id": made["query"], "partition_id": made["pid"], "keys": []}
        (row,) = (await wire.ok("POST", "/streams/v1/state/get", state))["rows"]
        assert row["value"] == {"text": MARK}
        await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
        again = await wire.pop("secret", "dead", consumerGroup="g")
        assert data(again) == [{"road": "dead", "text": MARK}]
        await wire.timers(schedule("secret", "waits", {"road": "timer", "text": MARK}, 0, partition="timers"))
        late = await wire.pop("secret", "timers", consumerGroup="g", batch=1)
        await wire.ack((late[0], "completed"), group="g")
        late += await wire.pop("secret", "timers", consumerGroup="g", batch=1, wait=True)
        assert [row["road"] for row in data(late)] == ["fired", "timer"]


async def test_configuring_without_a_key_is_refused(wire: Wire) -> None:
    """400, and the queue is as it was; a push into a queue that became encrypted elsewhere is refused too."""
    await wire.push("q", 1)
    for body in ({"options": {"encryptionEnabled": True}}, {"options": {"encryptionEnabled": True}, "mode": "replace"}):
        answer = await wire.request("POST", "/api/v1/configure", {"queue": "q", **body})
        assert (answer.status, answer.json["code"]) == (400, "encryption_key_missing")
    assert (await wire.ok("GET", "/api/v1/resources/queues/q"))["options"]["encryptionEnabled"] is False
    await wire.configure("q", encryptionEnabled=False)


@pytest.mark.parametrize(("key", "code"), [("", "encryption_key_missing"), (OTHER, "encryption_key_wrong")])
async def test_without_the_right_key(durable: MemoryStore, autojump_clock: MockClock, key: str, code: str) -> None:
    """Every read is refused with 503 and says why; nothing is leased, committed or lost by it, not even by a pop that
    commits at delivery; and with the key back everything is there."""
    settings = Settings(data=None, encryption_key=KEY)
    async with direct(durable, settings=settings) as wire:
        await wire.configure("q", encryptionEnabled=True, retryLimit=0)
        await wire.push("q", 1, 2)
        (dead,) = await wire.pop("q", batch=1)
        await wire.ack((dead, "failed", "bad"))
        await wire.timers(schedule("q", "k", 3, 3_600_000))
        await wire.push("plain", "clear")
    store = durable.reopen()
    async with direct(store, settings=Settings(data=None, encryption_key=key)) as wire:
        place = f"/api/v1/messages/{dead['partitionId']}/t1"
        for method, path, body in (
            ("GET", "/api/v1/pop/queue/q", None),
            ("GET", "/api/v1/pop/queue/q?autoAck=true", None),
            ("GET", "/api/v1/pop/queue/q?wait=true&timeout=1000", None),
            ("GET", "/api/v1/dlq?queue=q", None),
            ("GET", "/api/v1/messages?queue=q", None),
            ("GET", place, None),
            ("GET", "/api/v1/timers/q/k", None),
            ("POST", "/api/v1/fetch", {"entries": [{"queue": "q", "partition": "Default", "offset": 0}]}),
        ):
            answer = await wire.request(method, path, *(() if body is None else (body,)))
            if "/timers/" in path:  # whose refusals have the shape of their family
                assert (answer.status, answer.json["error"]) == (503, "timers_unavailable")
                assert "key" in answer.json["detail"]
            else:
                assert (answer.status, answer.json["code"]) == (503, code), path
        if not key:
            answer = await wire.request("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 4}]})
            assert (answer.status, answer.json["code"]) == (400, code)
        assert data(await wire.pop("plain")) == ["clear"]
        depth = await wire.ok("GET", "/api/v1/resources/queues/q/depth")
        assert (depth["pending"], depth["processing"]) == (1, 0)
        (letter_moved,) = [await wire.request("POST", f"{place[:-1]}0/retry")]
        assert letter_moved.status == 200, "a replay moves the ciphertext as it is"
    async with direct(store.reopen(), settings=settings) as wire:
        again = await wire.pop("q", batch=10)
        assert [(m["data"], m["deliveryAttempt"]) for m in again] == [(2, 1), (1, 1)]
        assert await wire.dead_letters("q") == []


async def test_what_was_stored_before_the_option_stays_readable(autojump_clock: MockClock) -> None:
    """Turned on, it holds for what comes; turned off, what is encrypted stays so, and both are read alike."""
    async with direct(settings=Settings(data=None, encryption_key=KEY)) as wire:
        await wire.push("q", "before", txn="a")
        await wire.configure("q", encryptionEnabled=True)
        await wire.push("q", "during", txn="b")
        await wire.configure("q", encryptionEnabled=False)
        await wire.push("q", "after", txn="c")
        listed = (await wire.ok("GET", "/api/v1/messages?queue=q"))["messages"]
        assert [(row["data"], row["isEncrypted"]) for row in listed] == [
            ("after", False),
            ("during", True),
            ("before", False),
        ]
        assert data(await wire.pop("q")) == ["before", "during", "after"]


async def test_equal_payloads_do_not_look_equal(tmp_path: Path) -> None:
    """A nonce each: the log does not tell who sent the same."""
    async with opened(tmp_path) as (wire, broker):
        await wire.configure("q", encryptionEnabled=True)
        await wire.push("q", *["same"] * 20)
        await broker.seal()
    (segment,) = files(tmp_path, "segment")
    with duckdb.connect(str(segment), read_only=True) as connection:
        payloads = [row[0] for row in connection.execute("SELECT payload FROM messages").fetchall()]
    assert len(set(payloads)) == 20
    assert len({payload[:15] for payload in payloads}) == 20
    assert all(payload.startswith(b"\x00E1") for payload in payloads)
