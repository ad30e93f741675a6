"""A subscription's terms (`websocket.md`, section 3)."""

from __future__ import annotations

from msgspec import Struct

from queen_actors.limits import WS_CREDIT_DEFAULT
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
