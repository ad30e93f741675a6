"""The terms of a subscription and of a tail (`websocket.md`, sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from queen_actors.limits import WS_CREDIT_DEFAULT, WS_TAIL_CREDIT_DEFAULT
from queen_actors.values import QUEUE_MODE


class Terms(Struct, frozen=True):
    """What a subscriber asks for: a `queue` (and perhaps one `partition` of it), or the queues of a `namespace` and
    `task`. `credit`: how many delivered messages may be unsettled at once; `batch` and `partitions`: the most that one
    claim takes. A lease lasts `lease_seconds`, kept alive until `max_lease_seconds` after its delivery."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    credit: int = WS_CREDIT_DEFAULT
    batch: int = 100
    partitions: int = 16
    auto_ack: bool = False
    lease_seconds: int = 60
    max_lease_seconds: int = 3600
    subscription_mode: str | None = None
    subscription_from: str | None = None


class TailTerms(Struct, frozen=True):
    """What a reader without a lease asks for: a `queue`, or one `partition` of it. It begins `start`: now, at the
    start of what is kept, at an instant (microseconds), or at the next offset of each partition (a partition that is
    not named: from its start). `credit`: how many messages may be delivered until it grants more."""

    queue: str
    partition: str | None = None
    start: Literal["now", "start"] | int | Mapping[str, int] = "now"
    credit: int = WS_TAIL_CREDIT_DEFAULT
