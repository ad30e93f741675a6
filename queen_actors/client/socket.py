"""Subscriptions, tails, watches and held locks over the WebSocket `queen.v1` (`websocket.md`): a connection each.

A lost connection is opened again, within bounds: what a subscription had been delivered comes again under new leases,
tails and watches go on where they were.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import trio
import trio_websocket as ws
from msgspec import Struct

from queen_actors import errors
from queen_actors.errors import QueenError

from .address import Address, Stream, open_stream
from .encoding import decode, encode
from .errors import AnswerTimeout, ConnectionFailed, ProtocolError, from_answer
from .shapes import as_object, as_rows
from .transport import ANSWER_SECONDS, OPENING_SECONDS, SUB, Retry, Sink, Talk, Wanted

log = logging.getLogger("queen_actors.client")

PATH = "/api/v1/ws"
SUBPROTOCOL = "queen.v1"
HEARTBEAT_SECONDS = 20.0  # when the broker's welcome does not tell its own
CLOSE_SECONDS = 0.5  # for the closing handshake; the broker gives leases back at the end of the stream anyway
FRAME_BYTES = 256 << 20
QUEUED_FRAMES = 64  # between the library's reader and ours, which never waits
READ_BYTES = 65_536
OUTBOX = 1024  # acknowledgments on their way out, as many as the broker takes in flight
RECONNECTS = 8  # attempts in a row, about two minutes in all

REFUSALS: dict[int, type[QueenError]] = {4401: errors.Unauthorized, 4403: errors.Forbidden, 4429: errors.Overloaded}
"""Close codes after which connecting again is of no use."""


class _Pending(Struct):
    """A request that waits for its reply."""

    done: trio.Event
    reply: dict[str, Any] | None = None


class SocketStream:
    """One talk over one connection at a time."""

    def __init__(self, address: Address, talk: Talk, retry: Retry) -> None:
        self._address = address
        self._talk = talk
        self._retry = retry
        self._session: _Session | None = None
        self._stopped = trio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        failures = 0
        bound = self._retry.attempts
        while not self._stopped.is_set():
            session = self._session = _Session(self._address, self._talk, self._stopped)
            try:
                await session.run(started)
                return
            except ConnectionFailed as error:
                self._talk.disconnected()
                if session.opened:
                    failures, bound = 0, RECONNECTS
                failures += 1
                if failures >= bound:
                    raise
                log.warning("%s is connected again: %s", self._talk.about, error)
            finally:
                self._session = None
                session.end()
            with trio.move_on_after(self._retry.pause_after(failures)):
                await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def grant(self, messages: int) -> None:
        if self._session is not None:
            self._session.grant(messages)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply; None when there is no connection, or it ended before the reply. Raises AnswerTimeout."""
        return None if self._session is None else await self._session.ask(request)


class SocketFeed:
    """The feed of one subscription."""

    def __init__(self, address: Address, wanted: Wanted, retry: Retry) -> None:
        self._talk = _Subscribing(wanted)
        self._stream = SocketStream(address, self._talk, retry)

    async def run(self, sink: Sink, started: Callable[[], None]) -> None:
        self._talk.sink = sink
        await self._stream.run(started)

    def stop(self) -> None:
        self._stream.stop()

    def grant(self, messages: int) -> None:
        self._stream.grant(messages)

    async def acknowledge(self, acks: Sequence[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
        reply = await self._stream.ask({"op": "ack", "acknowledgments": acks, "consumerGroup": group})
        if reply is None:
            # Its lease ended with the connection: what had not reached the broker comes again.
            told = "the connection ended before the answer"
            return [{"transactionId": ack["transactionId"], "success": False, "error": told} for ack in acks]
        if not reply.get("ok"):
            raise _refusal(reply)
        return as_rows(reply.get("body"))


class _Subscribing:
    """What a subscription says and hears."""

    patience = OPENING_SECONDS

    def __init__(self, wanted: Wanted) -> None:
        self.about = f"the subscription to {wanted.queue}"
        self.sink: Sink | None = None
        self._wanted = wanted

    def opening(self) -> dict[str, Any]:
        return {"op": "subscribe", "sub": SUB, **_fields(self._wanted)}

    def opened(self, body: dict[str, Any]) -> None:
        pass

    def event(self, frame: dict[str, Any]) -> None:
        assert self.sink is not None
        if frame.get("event") == "messages":
            queue = {"queue": frame.get("queue")}
            messages = [{**message, **queue} for message in as_rows(frame.get("messages"))]
            self.sink.deliver(frame.get("leaseId") or "", frame.get("partitionId") or "", messages)
        elif frame.get("event") == "lease":
            self.sink.lost(frame.get("leaseId"), frame.get("partitionId"), str(frame.get("reason")))

    def disconnected(self) -> None:
        if self.sink is not None:
            self.sink.lost(None, None, "disconnected")


class _Stream(trio.abc.Stream):
    """The connection's stream, which says when it has ended."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.ended: Callable[[], None] = _nothing

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self.ended()
            raise
        if not data:
            self.ended()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self.ended()
        await self._stream.aclose()


def _nothing() -> None:
    pass


class _Guard:
    """The nursery as the library sees it: its reader fails by errors of several packages when the other side speaks
    something else, and by exceptions where its caller waits for a value."""

    def __init__(self, nursery: trio.Nursery, failed: Callable[[Exception], None]) -> None:
        self._nursery = nursery
        self._failed = failed

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._run, task)

    async def _run(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except Exception as error:  # the boundary to the library: whatever it is, this connection is of no use
            self._failed(error)


class _Session:
    """One connection, from its handshake to its end."""

    def __init__(self, address: Address, talk: Talk, stopped: trio.Event) -> None:
        self.opened = False
        self._address = address
        self._what = talk
        self._stopped = stopped
        self._heartbeat = HEARTBEAT_SECONDS
        self._welcomed = trio.Event()
        self._pending: dict[int, _Pending] = {}
        self._asked = 0
        self._credit = 0
        self._outbox, self._to_send = trio.open_memory_channel[bytes | None](OUTBOX)
        self._failure: QueenError | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """Raises ConnectionFailed when the connection is lost, another QueenError when the broker refuses. Returns
        when stopped."""
        stream = _Stream((await open_stream(self._address))[0])
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._talk(nursery, stream, started)
                except QueenError as error:
                    self._failure = self._failure or error
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)
        if self._failure is not None:
            raise self._failure

    async def _talk(self, nursery: trio.Nursery, stream: _Stream, started: Callable[[], None]) -> None:
        try:
            with trio.fail_after(OPENING_SECONDS):
                connection = await self._connect(nursery, stream)
            nursery.start_soon(self._send, nursery, connection)
            nursery.start_soon(self._ping, nursery, connection)
            nursery.start_soon(self._close, connection)
            with trio.fail_after(self._what.patience):
                await self._open(connection)
        except trio.TooSlowError:
            raise ConnectionFailed(f"the broker did not take {self._what.about} in time", sent=True) from None
        except ws.ConnectionClosed as closed:
            if self._stopped.is_set():
                return
            raise _closed(closed) from None
        self.opened = True
        started()
        try:
            while True:
                self._take(_frame(await connection.get_message()))
        except ws.ConnectionClosed as closed:
            if not self._stopped.is_set():
                raise _closed(closed) from None

    async def _connect(self, nursery: trio.Nursery, stream: _Stream) -> ws.WebSocketConnection:
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in self._address.headers.items()]
        with trio.CancelScope() as opening:
            stream.ended = opening.cancel  # the library would wait for ever for the rest of the handshake
            return await ws.wrap_client_stream(
                cast("trio.Nursery", _Guard(nursery, lambda error: self._broken(nursery, _broke(error)))),
                cast("trio.SocketStream", stream),
                self._address.authority,
                self._address.prefix + PATH,
                subprotocols=[SUBPROTOCOL],
                extra_headers=headers,
                message_queue_size=QUEUED_FRAMES,
                max_message_size=FRAME_BYTES,
                receive_buffer_size=READ_BYTES,
            )
        raise ConnectionFailed("the connection ended during the handshake", sent=False)

    async def _open(self, connection: ws.WebSocketConnection) -> None:
        asked = await self._request(self._what.opening())
        while asked.reply is None:
            self._take(_frame(await connection.get_message()))
        if not asked.reply.get("ok"):
            raise _refusal(asked.reply)
        self._what.opened(as_object(asked.reply.get("body")))

    def _take(self, frame: dict[str, Any]) -> None:
        """One frame of the broker's. Never waits."""
        event = frame.get("event")
        if event in ("messages", "lease", "gap", "kv", "lock"):
            self._what.event(frame)
        elif event == "welcome":
            self._heartbeat = float(frame.get("heartbeatSeconds") or HEARTBEAT_SECONDS)
            self._welcomed.set()
        elif event == "error":
            self._reported(frame)
        elif event is None:
            pending = self._pending.pop(frame.get("id", -1), None)
            if pending is not None:
                pending.reply = frame
                pending.done.set()

    def _reported(self, frame: dict[str, Any]) -> None:
        """An error that is no reply. One that names what this connection is for has ended it."""
        if frame.get("sub") == SUB:
            raise _refusal(frame)
        log.warning("the broker reports: %s", frame.get("error"))

    # Sending: one task writes, so that a caller who is cancelled leaves no half frame behind.

    async def _request(self, request: dict[str, Any]) -> _Pending:
        self._asked += 1
        pending = self._pending[self._asked] = _Pending(trio.Event())
        try:
            await self._outbox.send(encode({"id": self._asked, **request}))
        except BaseException:
            self._pending.pop(self._asked, None)
            raise
        return pending

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply; None when the connection ended before it. Raises AnswerTimeout."""
        if not self.opened or self._failure is not None:
            return None
        try:
            with trio.fail_after(ANSWER_SECONDS):
                pending = await self._request(request)
                await pending.done.wait()
        except trio.TooSlowError:
            raise AnswerTimeout(f"no reply within {ANSWER_SECONDS:g} s", sent=True) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        return pending.reply

    def grant(self, messages: int) -> None:
        """Give credit back; what gathers while a frame is written goes out as one."""
        self._credit += messages
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            # no room: the writer looks at the credit by itself
            self._outbox.send_nowait(None)

    async def _send(self, nursery: trio.Nursery, connection: ws.WebSocketConnection) -> None:
        try:
            async with self._to_send:
                async for frame in self._to_send:
                    if frame is not None:
                        await connection.send_message(frame.decode())
                    if self._credit:
                        added, self._credit = self._credit, 0
                        await connection.send_message(encode({"op": "credit", "sub": SUB, "add": added}).decode())
        except ws.ConnectionClosed as closed:
            self._broken(nursery, _closed(closed))

    async def _ping(self, nursery: trio.Nursery, connection: ws.WebSocketConnection) -> None:
        """The broker must answer a ping within a heartbeat, or it is taken for dead."""
        await self._welcomed.wait()
        try:
            while True:
                await trio.sleep(self._heartbeat)
                with trio.fail_after(self._heartbeat):
                    await connection.ping()
        except trio.TooSlowError:
            self._broken(nursery, ConnectionFailed(f"no pong within {self._heartbeat:g} s", sent=True))
        except ws.ConnectionClosed:
            pass  # the reader tells why

    async def _close(self, connection: ws.WebSocketConnection) -> None:
        await self._stopped.wait()
        with trio.move_on_after(CLOSE_SECONDS):
            await connection.aclose()

    def _broken(self, nursery: trio.Nursery, error: QueenError) -> None:
        if not self._stopped.is_set():
            self._failure = self._failure or error
        nursery.cancel_scope.cancel()

    def end(self) -> None:
        """Nobody answers any more: wake who waits."""
        self._outbox.close()
        self._to_send.close()
        for pending in self._pending.values():
            pending.done.set()
        self._pending.clear()


def _fields(wanted: Wanted) -> dict[str, Any]:
    fields = {
        "queue": wanted.queue,
        "partition": wanted.partition,
        "namespace": wanted.namespace,
        "task": wanted.task,
        "group": wanted.group,
        "batch": wanted.batch,
        "credit": wanted.credit,
        "partitions": wanted.partitions,
        "autoAck": wanted.auto_ack,
        "leaseSeconds": wanted.lease_seconds,
        "maxLeaseSeconds": wanted.max_lease_seconds,
        "subscriptionMode": wanted.subscription_mode,
        "subscriptionFrom": wanted.subscription_from,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _frame(text: str | bytes) -> dict[str, Any]:
    """A frame of the broker's. Raises ProtocolError."""
    try:
        frame = decode(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise ProtocolError("a frame is not JSON") from error
    return as_object(frame)


def _refusal(reply: dict[str, Any]) -> QueenError:
    return from_answer(int(reply.get("status") or 500), {}, encode(reply.get("error") or {}))


def _broke(error: BaseException) -> QueenError:
    """What the library's reader failed by; a refused upgrade is the broker's own error, unless it may pass."""
    if not isinstance(error, ws.ConnectionRejected):
        return ConnectionFailed(f"the connection broke: {error!r}", sent=True)
    told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in error.headers or ()}
    refusal = from_answer(error.status_code, told, error.body or b"")
    if error.status_code >= 500 or error.status_code == 429:
        return ConnectionFailed(refusal.detail, sent=False)
    return refusal


def _closed(closed: ws.ConnectionClosed) -> QueenError:
    reason = closed.reason
    if reason is None:
        return ConnectionFailed("the connection ended", sent=True)
    told = f"the broker closed the connection: {reason.code} {reason.reason or reason.name}"
    kind = REFUSALS.get(reason.code)
    return kind(told) if kind is not None else ConnectionFailed(told, sent=True)
