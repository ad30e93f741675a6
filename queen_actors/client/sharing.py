"""Subscriptions, tails, watches and held locks over WebSockets (`websocket.md`): who shares which, and what follows
when one is lost.

What consumes, tails and watches shares one connection: each has its own credit, so none holds up another, and leaving
is an `unsubscribe`. Who waits for a lock has a connection of its own: to end it is the only way out of the line.
A lost connection is opened again, within bounds: what a subscription had been delivered comes again under new leases,
tails and watches go on where they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import trio

from queen_actors.errors import Overloaded, QueenError, Unavailable

from .address import Address
from .errors import AnswerTimeout, ConnectionFailed
from .shapes import as_object, as_rows
from .socket import CLOSE_SECONDS, Line, refusal
from .transport import OPENING_SECONDS, Retry, Sink, Start, Talk, Wanted

log = logging.getLogger("queen_actors.client")

RECONNECTS = 8  # attempts in a row, about two minutes in all
NAMED_BY = {"subscribe": "sub", "tail": "sub", "watch": "watch"}
"""The field with the name of what these open. Nothing else can share a line, for it could not leave it."""
ENDED_BY = {"subscribe": "unsubscribe", "tail": "unsubscribe", "watch": "unwatch"}


class Sockets:
    """The connections of one client."""

    def __init__(self, address: Address) -> None:
        self.start: Start | None = None
        """Starts a task of the client, in which a line runs."""
        self._address = address
        self._shared: list[Line] = []

    def line(self, *, alone: bool) -> Line:
        """A line with room for one more; a new one if need be. Raises Unavailable when the client is closed."""
        if self.start is None:
            raise Unavailable("the client is not open")
        if not alone:
            for line in self._shared:
                if line.has_room:
                    return line
        line = Line(self._address)
        self.start(self._carry, line)
        if not alone:
            self._shared.append(line)
        return line

    async def _carry(self, line: Line) -> None:
        try:
            await line.run()
        finally:
            with suppress(ValueError):
                self._shared.remove(line)


class SocketStream:
    """One talk, over one line at a time."""

    def __init__(self, sockets: Sockets, talk: Talk, retry: Retry) -> None:
        self._sockets = sockets
        self._talk = talk
        self._retry = retry
        self._line: Line | None = None
        self._name = ""
        self._asked_for: dict[str, Any] = {}
        self._opened = self._stopped = False
        self._failure: QueenError | None = None
        self._connecting = trio.CancelScope()
        self._news = trio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        """As `transport.Stream.run`."""
        failures = 0
        bound = self._retry.attempts
        while not self._stopped:
            asked_for = self._talk.opening()
            line = self._sockets.line(alone=asked_for["op"] not in NAMED_BY)
            try:
                await self._follow(line, asked_for, started)
                return
            except Overloaded:
                if not line.members:
                    raise
                line.full = True  # this broker allows fewer on one connection
                continue
            except ConnectionFailed as error:
                self._talk.disconnected()
                if self._opened:
                    failures, bound = 0, RECONNECTS
                failures += 1
                if failures >= bound:
                    raise
                log.warning("%s is connected again: %s", self._talk.about, error)
            self._failure = None
            with trio.move_on_after(self._retry.pause_after(failures)):
                await self._until_stopped()

    async def _follow(self, line: Line, asked_for: dict[str, Any], started: Callable[[], None]) -> None:
        """One line, until it or the talk ends. Raises ConnectionFailed when it is lost, another QueenError when the
        broker refuses. Returns when stopped."""
        self._opened, self._failure = False, None
        self._connecting = trio.CancelScope()
        self._name = name = line.join(self)
        named_by = NAMED_BY.get(asked_for["op"])
        line.say(asked_for if named_by is None else {**asked_for, named_by: name}, self._answered)
        self._line = line
        left = False
        try:
            with self._connecting:
                await line.ready.wait()
            with trio.move_on_after(self._talk.patience):
                await self._until(lambda: self._opened)
            self._check()
            if not self._opened and not self._stopped:
                raise ConnectionFailed(f"the broker did not take {self._talk.about} in time", sent=True)
            if self._opened:
                started()
            await self._until_stopped()
            self._check()
            left = await self._say_goodbye(line, asked_for["op"])
        finally:
            self._line = None
            if not left and len(line.members) > 1 and not line.ended.is_set():
                line.say(self._ending(asked_for["op"]))
            line.leave(name)

    async def _say_goodbye(self, line: Line, op: str) -> bool:
        """Whether it has left in good order, or is the last one, whose end is the line's."""
        if len(line.members) > 1:
            with suppress(AnswerTimeout):
                await line.ask(self._ending(op), CLOSE_SECONDS)
            return True  # what was sent and not answered yet takes effect all the same
        line.stop()
        await line.ended.wait()
        return True

    def _ending(self, op: str) -> dict[str, Any]:
        return {"op": ENDED_BY[op], NAMED_BY[op]: self._name}

    def _check(self) -> None:
        if self._failure is not None and not self._stopped:
            raise self._failure

    async def _until(self, done: Callable[[], bool]) -> None:
        while not (done() or self._stopped or self._failure is not None):
            self._news = trio.Event()
            await self._news.wait()

    async def _until_stopped(self) -> None:
        await self._until(lambda: False)

    def _answered(self, reply: dict[str, Any]) -> None:
        """The reply to the opening; events come behind it."""
        if reply.get("ok"):
            self._talk.opened(as_object(reply.get("body")))
            self._opened = True
            self._news.set()
        else:
            self.failed(refusal(reply))

    # What the line calls (socket.Member)

    def heard(self, frame: dict[str, Any]) -> None:
        """An event for the talk."""
        self._talk.event(frame)

    def failed(self, error: QueenError) -> None:
        """The line has ended, or what the talk had on it."""
        self._failure = self._failure or error
        self._news.set()

    # What the client calls (transport.Stream)

    def stop(self) -> None:
        """As `transport.Stream.stop`."""
        self._stopped = True
        self._connecting.cancel()
        self._news.set()

    def grant(self, messages: int) -> None:
        """As `transport.Stream.grant`; of a line that is lost, nothing need be given back."""
        if self._line is not None:
            self._line.grant(self._name, messages)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The reply; None when there is no connection, or it ended before the reply. Raises AnswerTimeout."""
        return None if self._line is None or not self._opened else await self._line.ask(request)


class SocketFeed:
    """The feed of one subscription."""

    def __init__(self, sockets: Sockets, wanted: Wanted, retry: Retry) -> None:
        self._talk = _Subscribing(wanted)
        self._stream = SocketStream(sockets, self._talk, retry)

    async def run(self, sink: Sink, started: Callable[[], None]) -> None:
        """As `Feed.run`."""
        self._talk.sink = sink
        await self._stream.run(started)

    def stop(self) -> None:
        """As `Feed.stop`."""
        self._stream.stop()

    def grant(self, messages: int) -> None:
        """As `Feed.grant`."""
        self._stream.grant(messages)

    async def acknowledge(self, acks: Sequence[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
        """As `Feed.acknowledge`, over the connection that has the leases."""
        reply = await self._stream.ask({"op": "ack", "acknowledgments": acks, "consumerGroup": group})
        if reply is None:
            # Its lease ended with the connection: what had not reached the broker comes again.
            told = "the connection ended before the answer"
            return [{"transactionId": ack["transactionId"], "success": False, "error": told} for ack in acks]
        if not reply.get("ok"):
            raise refusal(reply)
        return as_rows(reply.get("body"))


class _Subscribing:
    """What a subscription says and hears."""

    patience = OPENING_SECONDS

    def __init__(self, wanted: Wanted) -> None:
        self.about = f"the subscription to {wanted.queue}"
        self.sink: Sink | None = None
        self._wanted = wanted

    def opening(self) -> dict[str, Any]:
        return {"op": "subscribe", **_fields(self._wanted)}

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
