"""Transports for tests: one without a broker, which answers as it is told, and one that stands before a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from queen_actors.api import Api
from queen_actors.broker import running
from queen_actors.client import Queen, serving
from queen_actors.client.errors import ConnectionFailed
from queen_actors.client.local import LocalTransport
from queen_actors.client.transport import Answer, Caller, Retry, Sink, Stream, Talk, Transport, Wanted
from queen_actors.config import Settings
from queen_actors.storage.memory import MemoryStore


class Asked(msgspec.Struct, frozen=True):
    """One request as the transport got it."""

    method: str
    path: str
    query: str
    body: Any
    seconds: float


Script = Answer | Exception | Callable[[Asked], Awaitable[Answer]]


def answer(body: Any = None, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """A JSON answer; without a body an empty one."""
    return Answer(status, headers or {}, b"" if body is None else msgspec.json.encode(body))


def lost(*, sent: bool) -> ConnectionFailed:
    return ConnectionFailed("no connection", sent=sent)


class FakeTransport:
    """Answers come from `script`, one after the other; when it is empty, from `server`."""

    def __init__(
        self,
        *script: Script,
        server: Callable[[Asked], Awaitable[Answer]] | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.retry = retry or Retry()
        self.asked: list[Asked] = []
        self.script = list(script)
        self.server = server
        self.feed: FakeFeed | None = None
        self.closed = False
        self._ids = 0

    def begin(self, start: Callable[..., None]) -> None:
        pass

    def new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    async def call(self, method: str, path: str, query: str, body: bytes | None, seconds: float) -> Answer:
        await trio.lowlevel.checkpoint()
        asked = Asked(method, path, query, None if body is None else msgspec.json.decode(body), seconds)
        self.asked.append(asked)
        if self.script:
            told = self.script.pop(0)
            if isinstance(told, Exception):
                raise told
            return told if isinstance(told, Answer) else await told(asked)
        assert self.server is not None, f"nothing answers {asked}"
        return await self.server(asked)

    def subscribe(self, wanted: Wanted, caller: Caller) -> FakeFeed:
        self.feed = FakeFeed(wanted)
        return self.feed

    def talk(self, talk: Talk) -> Stream:
        raise AssertionError(f"nobody tells anything here: {talk.about}")

    async def aclose(self) -> None:
        self.closed = True

    @property
    def bodies(self) -> list[Any]:
        return [asked.body for asked in self.asked]


class FakeFeed:
    """A feed that delivers what a test puts into its sink."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.sink: Sink | None = None
        self.acks: list[tuple[Sequence[dict[str, Any]], str | None]] = []
        self.granted = 0
        self.refusal: Exception | None = None
        self.deaf = False
        """Does not end when it is asked to."""
        self._stopped = trio.Event()
        self.fail = trio.Event()

    async def run(self, sink: Sink, started: Callable[[], None]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.sink = sink
        started()
        if self.deaf:
            await trio.sleep_forever()
        await self._stopped.wait()
        if self.fail.is_set():
            raise lost(sent=True)

    def stop(self) -> None:
        self._stopped.set()

    def break_off(self) -> None:
        """The broker cannot be reached any more."""
        self.fail.set()
        self._stopped.set()

    def grant(self, messages: int) -> None:
        self.granted += messages

    async def acknowledge(self, acks: Sequence[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
        await trio.lowlevel.checkpoint()
        self.acks.append((acks, group))
        return [{"index": index, "success": True, "error": None} for index in range(len(acks))]

    def deliver(self, *offsets: int, lease: str = "L1", partition: str = "1") -> None:
        assert self.sink is not None
        self.sink.deliver(
            lease,
            partition,
            [
                {
                    "id": f"m{offset}",
                    "transactionId": f"t{offset}",
                    "data": offset,
                    "partitionId": partition,
                    "leaseId": lease,
                    "consumerGroup": "g",
                    "offset": offset,
                }
                for offset in offsets
            ],
        )


class Between(FakeTransport):
    """Stands between a client and a real transport: it records, and a hook may lose or delay what passes."""

    def __init__(self, real: Transport) -> None:
        super().__init__(retry=real.retry)
        self.real = real
        self.before: Callable[[Asked], Awaitable[None]] | None = None
        self.after: Callable[[Asked], Awaitable[None]] | None = None

    def new_id(self) -> str:
        return self.real.new_id()

    def begin(self, start: Callable[..., None]) -> None:
        self.real.begin(start)

    def talk(self, talk: Talk) -> Stream:
        return self.real.talk(talk)

    async def call(self, method: str, path: str, query: str, body: bytes | None, seconds: float) -> Answer:
        asked = Asked(method, path, query, None if body is None else msgspec.json.decode(body), seconds)
        self.asked.append(asked)
        if self.before is not None:
            await self.before(asked)
        answered = await self.real.call(method, path, query, body, seconds)
        if self.after is not None:
            await self.after(asked)
        return answered

    def ops(self, family: str) -> list[str]:
        """The words of the operations that were sent to a batch route."""
        return [
            op["op"] for asked in self.asked if asked.path == f"/api/v1/{family}" for op in asked.body["operations"]
        ]


@asynccontextmanager
async def two_clients() -> AsyncIterator[tuple[Queen, Between, Queen]]:
    """A broker in memory; a client of it with something between, and another one without."""
    settings = Settings(data=None)
    async with running(MemoryStore(), settings) as broker:
        api = Api(broker, settings)
        between = Between(LocalTransport(broker, api))
        async with serving(LocalTransport(broker, api)) as other, serving(between) as queen:
            yield queen, between, other
