"""Cases from the field that need a death of the real process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .node import Node


class Client:
    """One process's connection; every answer is one that a living broker gives."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answer = self._http.request(method, f"/api/v1{path}", json=body, params=query)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def push(self, queue: str, txn: str, payload: Any = None) -> dict[str, Any]:
        item = {"queue": queue, "partition": "p", "transactionId": txn, "payload": payload}
        (told,) = self.ask("POST", "/push", {"items": [item]})
        result: dict[str, Any] = told
        return result

    def pop(self, queue: str, batch: int = 1, **query: Any) -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/pop/queue/{queue}", None, batch=batch, **query)
        return [] if answer is None else list(answer["messages"])

    def ack(self, message: dict[str, Any], status: str, error: str | None = None) -> dict[str, Any]:
        names = ("transactionId", "partitionId", "leaseId")
        body = {**{name: message[name] for name in names}, "status": status, "error": error, "consumerGroup": None}
        (told,) = self.ask("POST", "/ack", body)
        result: dict[str, Any] = told
        return result

    def kv(self, op: str, key: str, **more: Any) -> dict[str, Any]:
        (told,) = self.ask("POST", "/kv", [{"op": op, "ns": "ns", "key": key, **more}])["results"]
        result: dict[str, Any] = told
        return result


class Broker:
    """The process, and clients of it."""

    def __init__(self, directory: Path) -> None:
        self.node = Node(directory)
        self.node.start()

    @contextmanager
    def client(self) -> Iterator[Client]:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.node.port}", trust_env=False, timeout=60) as http:
            yield Client(http)

    def die_and_come_back(self) -> None:
        self.node.kill()
        self.node.start()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.node.close()


def test_a05_attempts_are_counted_over_consumers_and_deaths(broker: Broker) -> None:
    """Failed by two consumers, then the broker is killed: the third delivery is the third, and past the limit the
    message is dead-lettered with its payload and the last error."""
    with broker.client() as client:
        client.ask("POST", "/configure", {"queue": "q", "options": {"retryLimit": 2}})
        client.push("q", "poison", {"n": 1})
    for attempt in (1, 2):
        with broker.client() as consumer:
            (message,) = consumer.pop("q")
            assert message["deliveryAttempt"] == attempt
            assert consumer.ack(message, "failed", "broken")["success"] is True
    broker.die_and_come_back()
    with broker.client() as consumer:
        (message,) = consumer.pop("q")
        assert (message["deliveryAttempt"], message["data"]) == (3, {"n": 1})
        assert consumer.ack(message, "failed", "broken for good")["dlq"] is True
    broker.die_and_come_back()
    with broker.client() as client:
        (letter,) = client.ask("GET", "/dlq", None, queue="q")["messages"]
        assert (letter["data"], letter["errorMessage"]) == ({"n": 1}, "broken for good")
        assert client.pop("q") == []


def test_a17_a_delete_is_durable_and_covers_what_is_leased_and_given_back(broker: Broker) -> None:
    """Some messages nacked, some held, the queue deleted, the broker killed: nothing comes back, and a late ack is
    refused in its entry."""
    with broker.client() as client:
        for number in range(10):
            client.push("q", f"t{number}", number)
        nacked = client.pop("q", 3)
        assert client.ack(nacked[0], "failed")["success"] is True
        held = client.pop("q", 3)
        assert [message["data"] for message in held] == [0, 1, 2]
        assert client.ask("DELETE", "/resources/queues/q")["existed"] is True
    broker.die_and_come_back()
    with broker.client() as client:
        assert client.pop("q", 10) == []
        assert client.ask("GET", "/resources/queues/q/depth")["pending"] == 0
        assert client.ack(held[0], "completed")["success"] is False
        told = client.push("q", "t0", "new")
        assert (told["status"], told["offset"]) == ("queued", 0)
        assert [message["data"] for message in client.pop("q", 10)] == ["new"]


def test_a26_dedup_has_one_rule_over_deaths(broker: Broker) -> None:
    """A repeat gets the original's offset and id, killed between or not; a delete of the queue begins anew, killed
    between or not."""
    with broker.client() as client:
        client.push("q", "before")
        first = client.push("q", "x")
        again = client.push("q", "x")
        assert (again["status"], again["offset"], again["message_id"]) == ("duplicate", 1, first["message_id"])
    broker.die_and_come_back()
    with broker.client() as client:
        assert client.push("q", "x") == again
        client.ask("DELETE", "/resources/queues/q")
        without = client.push("q", "x")
        client.ask("DELETE", "/resources/queues/q")
    broker.die_and_come_back()
    with broker.client() as client:
        after = client.push("q", "x")
    assert (without["status"], without["offset"]) == (after["status"], after["offset"]) == ("queued", 0)
    assert len({first["message_id"], without["message_id"], after["message_id"]}) == 3


def test_a42_an_expired_key_is_absent_and_its_versions_are_not_used_again(broker: Broker) -> None:
    """An expired key is absent before any sweep, also for the start after a kill; what is put in its place has a
    higher version, the old one holds no longer, and of 20 who race for it one wins."""
    with broker.client() as client:
        old = client.kv("putIfAbsent", "k", value=1, ttlSeconds=1)
        client.kv("putIfAbsent", "gone", value=1, ttlSeconds=1)
        time.sleep(1.05)
        assert client.kv("get", "k")["found"] is False
        lost = client.kv("put", "k", value=2, forever=True, expect=old["version"])
        assert (lost["applied"], lost["reason"]) == (False, "absent")
        new = client.kv("putIfAbsent", "k", value=2, ttlSeconds=1)
        assert new["applied"] is True
        assert new["version"] > old["version"]
        time.sleep(0.5)
    broker.die_and_come_back()
    with broker.client() as client:
        while client.kv("get", "k")["found"]:
            time.sleep(0.05)
        assert client.kv("get", "gone")["found"] is False

        def race(number: int) -> dict[str, Any]:
            with broker.client() as other:
                return other.kv("putIfAbsent", "k", value=number, forever=True)

        with ThreadPoolExecutor(20) as pool:
            told = list(pool.map(race, range(20)))
        (winner,) = [result for result in told if result["applied"]]
        assert winner["version"] > new["version"]
        assert {result["value"] for result in told} == {winner["value"]}
        assert client.kv("get", "k")["version"] == winner["version"]
