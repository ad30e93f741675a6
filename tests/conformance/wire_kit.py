"""The broker as its wire, for tests: one request in, its answer out, over `Api.handle` or over a socket."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import httpx
import trio
from msgspec import Struct

from queen_actors.api import Api, Request
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.ports import Clock
from queen_actors.serve.listen import serve
from queen_actors.storage.memory import MemoryStore

UNSENT: Any = object()
"""The body is not JSON: it is given as bytes, or there is none."""


class Answer(Struct, frozen=True):
    """What came back; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, which its content type must promise."""
        assert self.headers.get("content-type", "").startswith("application/json"), self.headers
        return json.loads(self.body)


def refusal(answer: Answer) -> tuple[int, str, str]:
    """Status, code and reason of a refusal in the shape of keys, locks and timers, whose detail must say something."""
    said = answer.json
    assert set(said) == {"error", "reason", "detail"}
    assert said["detail"]
    return answer.status, said["error"], said["reason"]


class Transport(Protocol):
    async def send(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer: ...


class Direct:
    """`Api.handle` itself."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def send(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        reply = await self._api.handle(Request(method, path.encode(), query.encode(), headers, body))
        return Answer(reply.status, reply.headers, reply.body)


class Socket:
    """A server at `url`."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def send(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Answer:
        url = f"{self._url}{path}?{query}" if query else self._url + path
        answer = await self._client.request(method, url, headers=dict(headers), content=body)
        return Answer(answer.status_code, answer.headers, answer.content)


class Wire:
    """Requests by their routes. Every method gives the decoded body of the status that success has."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def request(
        self, method: str, path: str, json_body: Any = UNSENT, *, body: bytes = b"", headers: Mapping[str, str] = {}
    ) -> Answer:
        """`path` is raw, with its query behind a `?`; `json_body` is sent as JSON."""
        path, _, query = path.partition("?")
        if json_body is not UNSENT:
            body = json.dumps(json_body, separators=(",", ":"), ensure_ascii=False).encode()
            headers = {"content-type": "application/json", **headers}
        return await self._transport.send(method, path, query, headers, body)

    async def ok(self, method: str, path: str, json_body: Any = UNSENT, *, status: int = 200) -> Any:
        answer = await self.request(method, path, json_body)
        assert answer.status == status, (answer.status, answer.body)
        return answer.json

    # -- keys, locks, timers, transactions

    async def kv_call(self, *ops: Any) -> Any:
        return await self.ok("POST", "/api/v1/kv", {"operations": list(ops)})

    async def kv(self, *ops: Any) -> list[Any]:
        """The elements, which must stand at their own index."""
        results: list[Any] = (await self.kv_call(*ops))["results"]
        assert [element["index"] for element in results] == list(range(len(ops)))
        return results

    async def kv1(self, op: str, ns: str, key: str, **fields: Any) -> Any:
        (element,) = await self.kv({"op": op, "ns": ns, "key": key, **fields})
        return element

    async def put(self, key: str, value: Any, ns: str = "ns", **fields: Any) -> Any:
        fields = fields if {"ttlSeconds", "forever"} & fields.keys() else {"forever": True, **fields}
        return await self.kv1("put", ns, key, value=value, **fields)

    async def get(self, key: str, ns: str = "ns") -> Any:
        return await self.kv1("get", ns, key)

    async def locks(self, *ops: Any) -> list[Any]:
        results: list[Any] = (await self.ok("POST", "/api/v1/locks", {"operations": list(ops)}))["results"]
        assert [element["index"] for element in results] == list(range(len(ops)))
        return results

    async def lock(self, op: str, name: str, **fields: Any) -> Any:
        (element,) = await self.locks({"op": op, "name": name, **fields})
        return element

    async def timers(self, *ops: Any) -> list[Any]:
        results: list[Any] = (await self.ok("POST", "/api/v1/timers", {"operations": list(ops)}))["results"]
        return results

    async def transaction(self, **parts: Any) -> Any:
        return await self.ok("POST", "/api/v1/transaction", parts)

    # -- messages

    async def configure(self, queue: str, **options: Any) -> Any:
        return await self.ok("POST", "/api/v1/configure", {"queue": queue, "options": options})

    async def push(self, queue: str, *payloads: Any, partition: str | None = None, txn: str = "t") -> list[Any]:
        """The payloads as messages `<txn>0`, `<txn>1`, ..."""
        items: list[Any] = [
            {"queue": queue, "payload": payload, "transactionId": f"{txn}{place}"}
            | ({} if partition is None else {"partition": partition})
            for place, payload in enumerate(payloads)
        ]
        results: list[Any] = await self.ok("POST", "/api/v1/push", {"items": items}, status=201)
        return results

    async def pop_answer(self, queue: str | None, partition: str | None = None, **query: Any) -> Answer:
        path = "/api/v1/pop" if queue is None else f"/api/v1/pop/queue/{quote(queue, safe='')}"
        if partition is not None:
            path += f"/partition/{quote(partition, safe='')}"
        words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
        return await self.request("GET", f"{path}?{urlencode(words)}")

    async def pop(self, queue: str | None, partition: str | None = None, **query: Any) -> list[Any]:
        """The messages; an empty pop must be a 204 without a body."""
        answer = await self.pop_answer(queue, partition, **query)
        if answer.status == 204:
            assert answer.body == b""
            return []
        assert answer.status == 200, answer.body
        messages: list[Any] = answer.json["messages"]
        assert messages
        return messages

    async def ack(self, *acks: Any, group: str | None = None) -> list[Any]:
        """Entries for `(message, status)` pairs, or for acks as they lie on the wire."""
        body = {"acknowledgments": [_ack(ack) for ack in acks], "consumerGroup": group}
        entries: list[Any] = await self.ok("POST", "/api/v1/ack/batch", body)
        assert [entry["index"] for entry in entries] == list(range(len(acks)))
        return entries

    async def dead_letters(self, queue: str, **query: Any) -> list[Any]:
        answer = await self.ok("GET", f"/api/v1/dlq?{urlencode({'queue': queue, **query})}")
        letters: list[Any] = answer["messages"]
        return letters

    async def message(self, partition_id: str, txn: str) -> Any:
        return await self.ok("GET", f"/api/v1/messages/{partition_id}/{quote(txn, safe='')}")

    async def committed(self, message: Mapping[str, Any], group: str = "__QUEUE_MODE__") -> int:
        """Where the group's cursor stands in the partition of this message."""
        view = await self.message(message["partitionId"], message["transactionId"])
        committed: int = {row["name"]: row["committed"] for row in view["consumerGroups"]}[group]
        return committed

    async def state(self, *queues: str) -> Any:
        """What can be read of everything: keys of the namespaces `ns` and `other` (first letters a to z), locks
        `held` and `free`, and of each queue its counts, its timers and its dead letters."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        prefixes = [{"op": "getPrefix", "ns": ns, "prefix": x, "limit": 15} for ns in ("ns", "other") for x in letters]
        keys = [(row["key"], row["version"], row["value"]) for page in await self.kv(*prefixes) for row in page["rows"]]
        held = await self.locks({"op": "get", "name": "held"}, {"op": "get", "name": "free"})
        found = []
        for queue in queues:
            name = quote(queue, safe="")
            view = await self.request("GET", f"/api/v1/resources/queues/{name}")
            timers = await self.ok("GET", f"/api/v1/timers/{name}")
            found.append((view.status, view.json, timers, await self.dead_letters(queue)))
        return keys, held, found


def _ack(ack: Any) -> Any:
    if not isinstance(ack, tuple):
        return ack
    message, status, *rest = ack
    return {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "status": status,
        "error": rest[0] if rest else None,
    }


def schedule(queue: str, key: str, value: Any, delay_ms: float, **fields: Any) -> dict[str, Any]:
    """A schedule as it lies on the wire; the message's transactionId is `fire-<key>`."""
    payload = base64.b64encode(json.dumps(value).encode()).decode()
    op = {"op": "schedule", "queue": queue, "timerKey": key, "payload": payload, "delayMs": delay_ms}
    return {**op, "txn": f"fire-{key}", **fields}


@asynccontextmanager
async def direct(
    store: MemoryStore | None = None, clock: Clock | None = None, settings: Settings | None = None
) -> AsyncIterator[Wire]:
    """A broker, and its wire. Two that shall live one after the other on virtual time share a clock."""
    settings = settings or Settings(data=None)
    async with running(store or MemoryStore(), settings, clock=clock) as broker:
        yield Wire(Direct(Api(broker, settings)))


@asynccontextmanager
async def served() -> AsyncIterator[Wire]:
    """The real server on a port of its own, and its wire through a socket."""
    settings = Settings(data=None, port=0)
    async with running(MemoryStore(), settings) as broker, trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, broker, settings))
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
            yield Wire(Socket(client, url))
        nursery.cancel_scope.cancel()
