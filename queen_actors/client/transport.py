"""What the client needs of a transport, and the one way in which everything above it calls the broker."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import trio
from msgspec import Struct

from .encoding import decode, encode
from .errors import ConnectionFailed, ProtocolError, from_answer, retry_after

ANSWER_SECONDS = 30.0  # the wire's own deadline of a call (wire 5.5)
OPENING_SECONDS = 10.0  # for the handshake of a WebSocket and the reply to its first request
SUB = "s"  # the first name on a connection

Start = Callable[..., None]
"""Starts a task of the client: the async function, and its arguments. Raises Unavailable when it is closed."""

SAFE_503 = frozenset({"unavailable", "starting", "stopping", "retry", "no_leader", "overloaded"})
"""Codes of a 503 that say that nothing was applied, so that any call may be sent again."""


class Answer(Struct, frozen=True):
    """What the broker answered. Header names are lower-cased; `body` is empty for a 204."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wanted(Struct, frozen=True):
    """A subscription as the user asked for it (`websocket.md` 3); None leaves the choice to the broker."""

    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    group: str | None
    batch: int
    credit: int
    partitions: int | None
    auto_ack: bool
    lease_seconds: int | None
    max_lease_seconds: int | None
    subscription_mode: str | None
    subscription_from: str | None


class Sink(Protocol):
    """Where a feed puts what it gets; neither call waits, the credit bounds what can come."""

    def deliver(self, lease_id: str, partition_id: str, messages: Sequence[dict[str, Any]]) -> None:
        """Messages of one partition, in offset order, shaped as the wire shapes them."""
        ...

    def lost(self, lease_id: str | None, partition_id: str | None, reason: str) -> None:
        """A lease ended before its messages were settled, in one partition or (None) in all that it covers; no lease:
        all leases ended, the connection is gone."""
        ...


class Feed(Protocol):
    """The transport's half of a subscription."""

    async def run(self, sink: Sink, started: Callable[[], None]) -> None:
        """Deliver to the sink until stopped or cancelled; `started` is called when the subscription holds.

        Raises QueenError when the broker refuses or cannot be reached any more. When it ends, however it ends, what
        is still leased is given back.
        """
        ...

    def stop(self) -> None:
        """Let `run` end in good order, soon."""
        ...

    async def acknowledge(self, acks: Sequence[dict[str, Any]], group: str | None) -> list[dict[str, Any]]:
        """Settle messages; one entry per acknowledgment, in order (messaging 8)."""
        ...

    def grant(self, messages: int) -> None:
        """Give credit back for messages that nobody will acknowledge (`auto_ack`)."""
        ...


class Talk(Protocol):
    """What a tail, a watch or a held lock has to say and to hear, in the frames of `queen.v1`. No method waits."""

    @property
    def about(self) -> str:
        """What it is, for people."""
        ...

    @property
    def patience(self) -> float:
        """How long the broker may take for the reply to `opening`, seconds."""
        ...

    def opening(self) -> dict[str, Any]:
        """The request that opens it, without an id and a name; asked again for every connection."""
        ...

    def opened(self, body: dict[str, Any]) -> None:
        """The reply to it; events come after that."""
        ...

    def event(self, frame: dict[str, Any]) -> None:
        """What the broker tells, after the reply."""
        ...

    def disconnected(self) -> None:
        """The connection is lost, and opened again."""
        ...


class Stream(Protocol):
    """The transport's half of a talk."""

    async def run(self, started: Callable[[], None]) -> None:
        """Carry what is said until stopped or cancelled; `started` is called when the broker has taken the opening.

        Raises QueenError when the broker refuses or cannot be reached any more.
        """
        ...

    def stop(self) -> None:
        """Let `run` end in good order, soon."""
        ...

    def grant(self, messages: int) -> None:
        """Give credit back."""
        ...


class Transport(Protocol):
    """One way to a broker. `retry` says how often a call may be sent again over it."""

    retry: Retry

    def begin(self, start: Start) -> None:
        """The client is open, and this is how a task of it is started."""
        ...

    def new_id(self) -> str:
        """A text that no other message, timer or owner has."""
        ...

    async def call(self, method: str, path: str, query: str, body: bytes | None, seconds: float) -> Answer:
        """Send one request and wait for its answer. Raises ConnectionFailed.

        `path` and `query` are escaped; a `body` is JSON. A cancelled call leaves nothing behind at the broker that
        waits for it.
        """
        ...

    def subscribe(self, wanted: Wanted, caller: Caller) -> Feed:
        """A feed for one subscription; nothing happens before it runs."""
        ...

    def talk(self, talk: Talk) -> Stream:
        """A stream that carries this talk; nothing happens before it runs."""
        ...

    async def aclose(self) -> None:
        """Take no more calls, and let go of what rests."""
        ...


class Retry(Struct, frozen=True):
    """How often a call is sent in all, and how long the pauses are, in seconds.

    `attempts` counts sendings that failed by the connection or a 5xx; `overloaded` those that were answered 429, which
    were not done and so can always be sent again.
    """

    attempts: int = 4
    pause: float = 0.2
    overloaded: int = 10
    longest: float = 30.0

    def pause_after(self, failures: int) -> float:
        """Exponential, with jitter down to 75 % so that a crowd spreads."""
        return min(self.pause * 2.0 ** (failures - 1), self.longest) * random.uniform(0.75, 1.0)


class Caller:
    """Calls the broker: JSON out, JSON or the broker's error back, sent again within bounds where that is safe."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._retry = transport.retry

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        repeatable: bool = True,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        """The decoded answer, None for an empty one. Raises QueenError.

        `repeatable`: sent twice, it does and answers the same as sent once. What is not is sent again only when it
        is certain that it was not done.
        """
        answer = await self.send(method, path, body, query=query, repeatable=repeatable, seconds=seconds)
        if answer.status >= 400:
            raise from_answer(answer.status, answer.headers, answer.body)
        return self.read(answer)

    @staticmethod
    def read(answer: Answer) -> Any:
        """The body of an answer, decoded. Raises ProtocolError."""
        if not answer.body:
            return None
        try:
            return decode(answer.body)
        except ValueError as error:
            raise ProtocolError(f"the answer is not JSON: {answer.body[:80]!r}") from error

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        repeatable: bool = True,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """As `call`, but the answer as it came, whatever its status."""
        text = None if body is None else encode(body)
        asked = _query(query)
        failures = refusals = 0
        while True:
            try:
                answer = await self.transport.call(method, path, asked, text, seconds)
            except ConnectionFailed as error:
                failures += 1
                if failures >= self._retry.attempts or (error.sent and not repeatable):
                    raise
                await trio.sleep(self._retry.pause_after(failures))
                continue
            if answer.status == 429:
                refusals += 1
                if refusals >= self._retry.overloaded:
                    return answer
                await trio.sleep(min(retry_after(answer.headers), self._retry.longest) * random.uniform(1.0, 1.2))
            elif answer.status >= 500 and (repeatable or _not_done(answer)):
                failures += 1
                if failures >= self._retry.attempts or answer.status == 507:
                    return answer
                await trio.sleep(self._retry.pause_after(failures))
            else:
                return answer


def _not_done(answer: Answer) -> bool:
    return answer.status == 503 and from_answer(answer.status, answer.headers, answer.body).code in SAFE_503


def _query(query: Mapping[str, object] | None) -> str:
    """A query string, form-encoded; what is None is left out, booleans are `true` and `false`."""
    if not query:
        return ""
    return urlencode(
        [
            (name, str(value).lower() if isinstance(value, bool) else str(value))
            for name, value in query.items()
            if value is not None
        ]
    )
