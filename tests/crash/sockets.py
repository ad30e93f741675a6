"""A WebSocket client of `queen.v1`: requests and replies into the history, events to whoever waits for them."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
import trio
from trio_websocket import ConnectionClosed, HandshakeError, wrap_client_stream

from .history import Call, History
from .peer import ANSWER_SECONDS, Lost

FRAME_BYTES = 32 << 20
SOCKET_OPS = frozenset({"push", "pop", "ack", "kv", "locks", "timers", "transaction", "configure"})
"""Those whose answers are those of HTTP, and which the auditor takes as such."""
TRUTHS = {"true": True, "false": False}


class Connection(Protocol):
    """What carries the frames; it loses none, and keeps their order."""

    async def send_message(self, message: str) -> None: ...

    async def get_message(self) -> str | bytes: ...


class Arrival(NamedTuple):
    """An event, when it came, and an instant before which nothing of it can have been decided (`Exchanges`)."""

    frame: dict[str, Any]
    at: float
    since: float


class Exchanges:
    """When the events of one connection can have been decided, at the earliest; however late they are read.

    Every answer waits for all that the broker decided before it to be durable, and frames keep their order. What was
    decided before a request was sent so leaves the broker at about the time of its answer, and before the answer to
    another request that was sent when the first had been answered. What comes behind that one was decided later than
    the first request was sent. No clock and no bound on any delay is in this.
    """

    def __init__(self, began: float) -> None:
        self.since = began
        """What comes now was decided after this instant."""
        self.alive = began
        """The last request that was answered was sent then: until then the broker had the connection."""
        self._last = (began, began)

    def answered(self, sent: float, at: float) -> None:
        """The answer to a request that was sent at `sent` came at `at`."""
        self.alive = max(self.alive, sent)
        if sent >= self._last[1]:
            self.since, self._last = self._last[0], (sent, at)


class SocketPeer:
    """One connection. Requests may overlap; each waits for the reply with its own id."""

    def __init__(self, connection: Connection, history: History, worker: int, grace: float) -> None:
        self._connection = connection
        self.history = history
        self.worker = worker
        self._grace = grace
        self._serial = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._arrived: dict[int, trio.Event] = {}
        self._events: dict[str, list[Arrival]] = defaultdict(list)
        self._ordered: dict[int, float] = {}
        """When the requests under way were sent whose answers wait for what was decided before them."""
        self._news = trio.Event()
        self._closed = False
        self.heard = time.monotonic()
        """When the last frame came."""
        self.exchanges = Exchanges(self.heard)

    async def call(self, op: str, body: dict[str, Any]) -> Call:
        """As `Peer.call`."""
        call = self.history.begin(self.worker, op, body)
        fields = {name: TRUTHS.get(value, value) if isinstance(value, str) else value for name, value in body.items()}
        if op == "pop":
            del fields["batch"]
            fields["batch"] = body["batch"]
        await self._exchange(call, op, fields)
        return call

    async def acquire(self, op: dict[str, Any], **waiting: Any) -> Call:
        """`lock.acquire`, in the history as the `locks` call of that one operation."""
        call = self.history.begin(self.worker, "locks", {"operations": [op]})
        fields = {name: value for name, value in op.items() if name != "op"}
        await self._exchange(call, "lock.acquire", {**fields, **waiting})
        call.answer = {"results": [call.answer]}
        return call

    async def beat(self) -> None:
        """An exchange that tells how late events may be, and that the connection is alive; not in the history."""
        fields = {"operations": [{"op": "get", "ns": "beats", "key": "none"}]}
        await self._exchange(Call(self.history.round, self.worker, "kv", fields, time.monotonic()), "kv", fields)

    async def _exchange(self, call: Call, op: str, fields: dict[str, Any]) -> None:
        self._serial += 1
        number = self._serial
        if op in SOCKET_OPS:
            self._ordered[number] = call.sent
        arrived = self._arrived[number] = trio.Event()
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await self._connection.send_message(msgspec.json.encode({"id": number, "op": op, **fields}).decode())
                await arrived.wait()
        except trio.Cancelled:  # the process is dead
            call.answered = time.monotonic()
            raise
        except (ConnectionClosed, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await self._lost(call, op, error)
        reply = self._replies.pop(number, None)
        if reply is None:
            await self._lost(call, op, ConnectionError("it ended before an answer came"))
            return
        call.answered = time.monotonic()
        call.status = reply["status"]
        call.answer = reply["body"] if reply["ok"] else reply["error"]
        if not call.acknowledged:
            raise Lost(f"{op} was answered {call.status} {call.answer}")

    async def _lost(self, call: Call, op: str, error: Exception) -> None:
        """Raises Lost, when whatever was under way is over."""
        try:
            await trio.sleep(self._grace)
        finally:
            call.answered = time.monotonic()
        raise Lost(f"{op}: {error!r}") from error

    async def event(self, name: str, seconds: float = math.inf) -> Arrival | None:
        """The next event of this subscription, tail or watch; None after that time. Raises Lost."""
        with trio.move_on_after(max(seconds, 0.0)):
            while not self._events[name]:
                if self._closed:
                    raise Lost("the connection ended")
                await self._news.wait()
            return self._events[name].pop(0)
        return None

    async def read(self) -> None:
        """Until it ends."""
        try:
            while True:
                frame = msgspec.json.decode(await self._connection.get_message())
                self.heard = time.monotonic()
                if "event" not in frame:
                    number = frame["id"]
                    sent = self._ordered.pop(number, None)
                    if sent is not None and frame["ok"]:
                        self.exchanges.answered(sent, self.heard)
                    self._replies[number] = frame
                    self._arrived.pop(number).set()
                    continue
                name = frame.get("sub") or frame.get("watch") or frame["event"]
                self._events[name].append(Arrival(frame, self.heard, self.exchanges.since))
                self._wake()
        except (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._closed = True
            for arrived in self._arrived.values():
                arrived.set()
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()


async def on_socket(
    port: int, history: History, worker: int, use: Callable[[SocketPeer], Awaitable[object]], grace: float = 0.0
) -> None:
    """Use a connection of its own, which ends without a close. `grace`: how long after its end nothing of it can be
    under way any more. Raises Lost."""
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError as error:
        raise Lost(f"nobody listens: {error}") from error
    lost: Lost | None = None
    async with trio.open_nursery() as nursery:
        try:
            with trio.fail_after(ANSWER_SECONDS):
                connection = await wrap_client_stream(
                    nursery, stream, "localhost", "/api/v1/ws", subprotocols=["queen.v1"], max_message_size=FRAME_BYTES
                )
            peer = SocketPeer(connection, history, worker, grace)
            nursery.start_soon(peer.read)
            await use(peer)
        except Lost as error:
            lost = error
        except (HandshakeError, ConnectionClosed, trio.TooSlowError, trio.BrokenResourceError) as error:
            lost = Lost(f"no socket: {error!r}")
        finally:
            await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()
    if lost is not None:
        raise lost
