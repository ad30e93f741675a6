"""The transport in process: every call is a request to the broker's own API, without a socket in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
from msgspec import Raw

from queen_actors import limits
from queen_actors.actors.permits import Permit, holding
from queen_actors.actors.subscription import Lost, subscribed
from queen_actors.actors.tail import Gap, Tail
from queen_actors.api import Api, Request
from queen_actors.broker import Broker
from queen_actors.domain.subscription import Terms
from queen_actors.errors import Overloaded, QueenError, StorageFull, Unavailable
from queen_actors.values import QUEUE_MODE
from queen_actors.wire.delivery import render_gap, render_tail
from queen_actors.wire.frames import encode as encode_structs
from queen_actors.wire.frames import op_fields
from queen_actors.wire.locks import lock_element, parse_waiting, render_lock_lost
from queen_actors.wire.pop import messages_of
from queen_actors.wire.socket import Frame, parse_frame, parse_tail
from queen_actors.wire.watch import parse_watch, render_changes, render_watched

from .encoding import decode, encode
from .transport import SUB, Answer, Caller, Retry, Sink, Start, Talk, Wanted

T = TypeVar("T")
AGAIN_SECONDS = 0.5


class LocalTransport:
    """Calls to the API of a broker in this process. What fails there is not tried again, but for a 429."""

    retry = Retry(attempts=1)

    def __init__(self, broker: Broker, api: Api) -> None:
        self._broker = broker
        self._api = api
        self._closed = False

    def begin(self, start: Start) -> None:
        """As `Transport.begin`; nothing here runs by itself."""

    def new_id(self) -> str:
        """As `Transport.new_id`, from the broker's own source."""
        return self._broker.ids.uuid(self._broker.clock.now())

    async def call(self, method: str, path: str, query: str, body: bytes | None, seconds: float) -> Answer:
        """As `Transport.call`. `seconds` is not looked at: the broker bounds every call by itself."""
        if self._closed:
            raise Unavailable("the client is closed")
        reply = await self._api.handle(Request(method, path.encode("ascii"), query.encode("ascii"), {}, body or b""))
        return Answer(reply.status, reply.headers, reply.body)

    def subscribe(self, wanted: Wanted, caller: Caller) -> LocalFeed:
        """As `Transport.subscribe`."""
        return LocalFeed(self._broker, wanted, caller)

    def talk(self, talk: Talk) -> LocalStream:
        """As `Transport.talk`."""
        return LocalStream(self._broker, talk)

    async def aclose(self) -> None:
        """Take no more calls."""
        self._closed = True


class LocalFeed:
    """A subscription in process. Its leases live with it."""

    def __init__(self, broker: Broker, wanted: Wanted, caller: Caller) -> None:
        self._broker = broker
        self._terms = _terms(wanted)
        self._caller = caller
        self._running = trio.CancelScope()
        self._granted = 0
        self._grant: Callable[[int], None] | None = None

    async def run(self, sink: Sink, started: Callable[[], None]) -> None:
        """As `Feed.run`."""

        def lost(end: Lost) -> None:
            sink.lost(end.lease_id, str(end.pid), end.reason)

        failure: QueenError | None = None
        try:
            async with subscribed(self._broker, self._terms, lost) as subscription:
                self._grant = subscription.grant
                started()
                try:
                    with self._running:
                        while True:
                            for delivery in await _again(subscription.next):
                                claim = delivery.claim
                                shaped = messages_of(claim, delivery.lease_id, delivery.group, timer_keys=True)
                                messages = decode(encode_structs(shaped))
                                for message in messages:
                                    message["queue"] = claim.queue
                                sink.deliver(delivery.lease_id, str(claim.pid), messages)
                except QueenError as error:
                    failure = error
        except* QueenError as group:  # the keeper of the leases, beside the loop above
            failure = failure or _first(group)
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """As `Feed.stop`."""
        self._running.cancel()

    def grant(self, messages: int) -> None:
        """As `Feed.grant`."""
        if self._grant is not None:
            self._grant(messages)

    async def acknowledge(self, acks: Sequence[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
        """As `Feed.acknowledge`."""
        body = {"acknowledgments": acks, "consumerGroup": group}
        answers: list[dict[str, Any]] = await self._caller.call("POST", "/api/v1/ack/batch", body)
        return answers


class LocalStream:
    """A talk in process: the same frames, without a connection."""

    def __init__(self, broker: Broker, talk: Talk) -> None:
        self._broker = broker
        self._talk = talk
        self._running = trio.CancelScope()
        self._tail: Tail | None = None

    async def run(self, started: Callable[[], None]) -> None:
        """As `Stream.run`."""
        frame = parse_frame(encode({"sub": SUB, "watch": SUB, **self._talk.opening()}))
        carry = {"tail": self._carry_tail, "watch": self._carry_watch, "lock.acquire": self._carry_permit}[frame.op]
        with self._running:
            await carry(frame, started)

    def stop(self) -> None:
        """As `Stream.stop`."""
        self._running.cancel()

    def grant(self, messages: int) -> None:
        """As `Stream.grant`."""
        if self._tail is not None:
            self._tail.grant(messages)

    async def _carry_tail(self, frame: Frame, started: Callable[[], None]) -> None:
        name, terms = parse_tail(frame)
        self._tail = tail = self._broker.tail(terms)
        try:
            self._talk.opened({"sub": name, "from": await tail.open()})
            started()
            while True:
                for found in await _again(tail.next):
                    if isinstance(found, Gap):
                        self._tell(render_gap(name, found.partition, found.first, found.last))
                    else:
                        for event in render_tail(name, found):
                            self._tell(event)
        finally:
            tail.close()

    async def _carry_watch(self, frame: Frame, started: Callable[[], None]) -> None:
        name, terms = parse_watch(frame)
        watch = self._broker.watch(terms)
        try:
            self._talk.opened(decode(render_watched(name, await watch.open())))
            started()
            while True:
                for news in await _again(watch.next):
                    self._tell(render_changes(name, news))
        finally:
            watch.close()

    async def _carry_permit(self, frame: Frame, started: Callable[[], None]) -> None:
        op, wait, session = parse_waiting(op_fields(Raw(frame.text)) or {})
        permits = self._broker.permits(self._lost)
        holding.set(permits)
        try:
            result = await self._broker.acquire(op, wait, session=session)
            self._talk.opened(decode(encode_structs(lock_element(0, result))))
            started()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(limits.WS_GIVE_BACK_SECONDS):
                await permits.close()

    def _lost(self, permit: Permit, reason: str) -> None:
        self._tell(render_lock_lost(permit.name, permit.token, permit.slot, reason))

    def _tell(self, event: bytes) -> None:
        self._talk.event(decode(event))


async def _again(ask: Callable[[], Awaitable[T]]) -> T:
    """While the broker is overloaded, its disk is full, or it reads its state again after that, ask again."""
    while True:
        try:
            return await ask()
        except (Overloaded, StorageFull):
            pass
        except Unavailable as error:
            if error.code != "retry":
                raise
        await trio.sleep(AGAIN_SECONDS)


def _terms(wanted: Wanted) -> Terms:
    """The subscription's terms; what the user left open takes their defaults."""
    told = {
        "partitions": wanted.partitions,
        "lease_seconds": wanted.lease_seconds,
        "max_lease_seconds": wanted.max_lease_seconds,
    }
    chosen: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    return Terms(
        queue=wanted.queue,
        partition=wanted.partition,
        namespace=wanted.namespace,
        task=wanted.task,
        group=wanted.group or QUEUE_MODE,
        credit=wanted.credit,
        batch=wanted.batch,
        auto_ack=wanted.auto_ack,
        subscription_mode=wanted.subscription_mode,
        subscription_from=wanted.subscription_from,
        **chosen,
    )


def _first(group: BaseExceptionGroup[QueenError]) -> QueenError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, QueenError)
    return found
