"""One WebSocket of `queen.v1` (`websocket.md`), and who shares it.

The reader never waits for anybody: what comes is handed on at once, so pings are answered and leases are kept however
slow one of those is who share the line. One task writes, so that a caller who is cancelled leaves no half frame behind.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, cast

import trio
import trio_websocket as ws
from msgspec import Struct

from queen_actors import errors
from queen_actors.errors import QueenError

from .address import Address, Stream, open_stream
from .encoding import decode, encode
from .errors import AnswerTimeout, ConnectionFailed, ProtocolError, from_answer
from .shapes import as_object
from .transport import ANSWER_SECONDS, OPENING_SECONDS, SUB

log = logging.getLogger("queen_actors.client")

PATH = "/api/v1/ws"
SUBPROTOCOL = "queen.v1"
HEARTBEAT_SECONDS = 20.0  # when the broker's welcome does not tell its own
CLOSE_SECONDS = 0.5  # for the closing handshake; the broker gives leases back at the end of the stream anyway
FRAME_BYTES = 256 << 20
QUEUED_FRAMES = 64  # between the library's reader and ours, which never waits
READ_BYTES = 65_536
OUTBOX = 1024  # requests on their way out, as many as the broker takes in flight
MEMBERS = 100  # who share a line; below what any broker bounds (1,024 subscriptions and as many watches)

REFUSALS: dict[int, type[QueenError]] = {4401: errors.Unauthorized, 4403: errors.Forbidden, 4429: errors.Overloaded}
"""Close codes after which connecting again is of no use."""


class Member(Protocol):
    """Who shares a line. No method waits."""

    def heard(self, frame: dict[str, Any]) -> None:
        """An event that names it."""
        ...

    def failed(self, error: QueenError) -> None:
        """The line has ended, or the broker has ended what this member had there."""
        ...


class Pending(Struct):
    """A request that waits for its reply. `then` is told of it in its place among the frames."""

    done: trio.Event
    then: Callable[[dict[str, Any]], None] | None = None
    reply: dict[str, Any] | None = None


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
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            self.ended()
            raise

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


class Line:
    """One connection, from its handshake to its end."""

    def __init__(self, address: Address) -> None:
        self.members: dict[str, Member] = {}
        self.ready = trio.Event()
        """The handshake is done, or the line has ended."""
        self.ended = trio.Event()
        self.full = False
        """The broker takes no more on it."""
        self._address = address
        self._names = 0
        self._stopped = trio.Event()
        self._heartbeat = HEARTBEAT_SECONDS
        self._welcomed = trio.Event()
        self._pending: dict[int, Pending] = {}
        self._asked = 0
        self._said: deque[bytes] = deque()
        self._credit: dict[str, int] = {}
        self._outbox, self._to_send = trio.open_memory_channel[bytes | None](OUTBOX)
        self._running = trio.CancelScope()
        self._failure: QueenError | None = None

    # Who shares it

    @property
    def has_room(self) -> bool:
        """Whether one more may join."""
        return not (self.full or self._stopped.is_set() or self._running.cancel_called or self.ended.is_set()) and (
            len(self.members) < MEMBERS
        )

    def join(self, member: Member) -> str:
        """The name under which it is known on this line; no other has or had it."""
        self._names += 1
        name = SUB if self._names == 1 else f"{SUB}{self._names}"
        self.members[name] = member
        return name

    def leave(self, name: str) -> None:
        """Hear nothing more. The last one closes the line."""
        self.members.pop(name, None)
        self._credit.pop(name, None)
        if not self.members:
            self.stop()

    def stop(self) -> None:
        """Close in good order, soon; at once when it is not open yet."""
        self._stopped.set()
        if not self.ready.is_set():
            self._running.cancel()

    # Its life

    async def run(self) -> None:
        """Until it ends; whoever shares it then is told why."""
        failure: QueenError | None = None
        try:
            with self._running:
                await self._run()
        except QueenError as error:
            failure = error
        finally:
            self._end(self._failure or failure or ConnectionFailed("the connection was closed", sent=True))

    async def _run(self) -> None:
        stream = _Stream((await open_stream(self._address))[0])
        failure: QueenError | None = None
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await self._talk(nursery, stream)
                except QueenError as error:
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(stream)
        if failure is not None:
            raise failure

    async def _talk(self, nursery: trio.Nursery, stream: _Stream) -> None:
        try:
            with trio.fail_after(OPENING_SECONDS):
                connection = await self._connect(nursery, stream)
        except trio.TooSlowError:
            raise ConnectionFailed("the broker did not open the connection in time", sent=False) from None
        self.ready.set()
        nursery.start_soon(self._send, connection)
        nursery.start_soon(self._ping, connection)
        nursery.start_soon(self._close, connection)
        try:
            while True:
                self._take(_frame(await connection.get_message()))
        except ws.ConnectionClosed as closed:
            raise _closed(closed) from None

    async def _connect(self, nursery: trio.Nursery, stream: _Stream) -> ws.WebSocketConnection:
        headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in self._address.headers.items()]
        with trio.CancelScope() as opening:
            stream.ended = opening.cancel  # the library would wait for ever for the rest of the handshake
            return await ws.wrap_client_stream(
                cast("trio.Nursery", _Guard(nursery, lambda error: self._break(_broke(error)))),
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

    def _break(self, error: QueenError) -> None:
        self._failure = self._failure or error
        self._running.cancel()

    def _end(self, failure: QueenError) -> None:
        """Wake who waits for a reply, and tell who shares it."""
        self._outbox.close()
        self._to_send.close()
        self.ready.set()
        self.ended.set()
        for pending in self._pending.values():
            pending.done.set()
        self._pending.clear()
        for member in list(self.members.values()):
            member.failed(failure)

    # What comes

    def _take(self, frame: dict[str, Any]) -> None:
        """One frame of the broker's. Never waits."""
        event = frame.get("event")
        if event is None:
            pending = self._pending.pop(frame.get("id", -1), None)
            if pending is not None:
                pending.reply = frame
                if pending.then is not None:
                    pending.then(frame)
                pending.done.set()
        elif event == "welcome":
            self._heartbeat = float(frame.get("heartbeatSeconds") or HEARTBEAT_SECONDS)
            self._welcomed.set()
        elif event == "lock":  # it names a lock, and who waits for one has the line for itself
            for waiting in list(self.members.values()):
                waiting.heard(frame)
        else:
            member = self.members.get(frame.get("sub") or frame.get("watch") or "")
            if event == "error":
                self._reported(frame, member)
            elif member is not None and event in ("messages", "lease", "gap", "kv"):
                member.heard(frame)

    @staticmethod
    def _reported(frame: dict[str, Any], member: Member | None) -> None:
        """An error that is no reply. One that names a member has ended what it had."""
        if member is None:
            log.warning("the broker reports: %s", frame.get("error"))
        else:
            member.failed(refusal(frame))

    # What goes

    def say(self, request: dict[str, Any], then: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Send a request, before any that `ask` sends from now on; its reply is told to `then`. Does not wait: a
        member says no more than that it comes and goes."""
        if not self.ended.is_set():
            self._said.append(self._asking(request, Pending(trio.Event(), then)))
            self._wake_writer()

    async def ask(self, request: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any] | None:
        """The reply; None when the connection ended before it. Raises AnswerTimeout."""
        if self.ended.is_set():
            return None
        pending = Pending(trio.Event())
        text = self._asking(request, pending)
        number = self._asked
        try:
            with trio.fail_after(seconds):
                await self._outbox.send(text)
                await pending.done.wait()
        except trio.TooSlowError:
            raise AnswerTimeout(f"no reply within {seconds:g} s", sent=True) from None
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        finally:
            self._pending.pop(number, None)
        return pending.reply

    def _asking(self, request: dict[str, Any], pending: Pending) -> bytes:
        self._asked += 1
        self._pending[self._asked] = pending
        return encode({"id": self._asked, **request})

    def grant(self, name: str, messages: int) -> None:
        """Give a member's credit back; what gathers while a frame is written goes out as one."""
        self._credit[name] = self._credit.get(name, 0) + messages
        self._wake_writer()

    def _wake_writer(self) -> None:
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            # no room: it has work, and looks at what was said and at the credit by itself
            self._outbox.send_nowait(None)

    async def _send(self, connection: ws.WebSocketConnection) -> None:
        try:
            async with self._to_send:
                async for frame in self._to_send:
                    while self._said:
                        await connection.send_message(self._said.popleft().decode())
                    if frame is not None:
                        await connection.send_message(frame.decode())
                    while self._credit:
                        name, added = self._credit.popitem()
                        await connection.send_message(encode({"op": "credit", "sub": name, "add": added}).decode())
        except ws.ConnectionClosed:
            pass  # the reader tells why

    async def _ping(self, connection: ws.WebSocketConnection) -> None:
        """The broker must answer a ping within a heartbeat, or it is taken for dead."""
        await self._welcomed.wait()
        try:
            while True:
                await trio.sleep(self._heartbeat)
                with trio.fail_after(self._heartbeat):
                    await connection.ping()
        except trio.TooSlowError:
            self._break(ConnectionFailed(f"no pong within {self._heartbeat:g} s", sent=True))
        except ws.ConnectionClosed:
            pass  # the reader tells why

    async def _close(self, connection: ws.WebSocketConnection) -> None:
        await self._stopped.wait()
        with trio.move_on_after(CLOSE_SECONDS):
            await connection.aclose()
        self._running.cancel()


def _frame(text: str | bytes) -> dict[str, Any]:
    """A frame of the broker's. Raises ProtocolError."""
    try:
        frame = decode(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise ProtocolError("a frame is not JSON") from error
    return as_object(frame)


def refusal(reply: dict[str, Any]) -> QueenError:
    """The broker's error, as HTTP would have it."""
    return from_answer(int(reply.get("status") or 500), {}, encode(reply.get("error") or {}))


def _broke(error: BaseException) -> QueenError:
    """What the library's reader failed by; a refused upgrade is the broker's own error, unless it may pass."""
    if not isinstance(error, ws.ConnectionRejected):
        return ConnectionFailed(f"the connection broke: {error!r}", sent=True)
    told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in error.headers or ()}
    refused = from_answer(error.status_code, told, error.body or b"")
    if error.status_code >= 500 or error.status_code == 429:
        return ConnectionFailed(refused.detail, sent=False)
    return refused


def _closed(closed: ws.ConnectionClosed) -> QueenError:
    reason = closed.reason
    if reason is None:
        return ConnectionFailed("the connection ended", sent=True)
    told = f"the broker closed the connection: {reason.code} {reason.reason or reason.name}"
    kind = REFUSALS.get(reason.code)
    return kind(told) if kind is not None else ConnectionFailed(told, sent=True)
