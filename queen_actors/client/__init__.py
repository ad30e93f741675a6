"""The Python client, one surface: `open_broker()` for a broker in this process, `connect()` for one elsewhere."""

from __future__ import annotations

from .ephemeral import Ephemeral, EphemeralMessage
from .errors import (
    AnswerTimeout,
    ConnectionFailed,
    LockLostError,
    LockNotHeldError,
    ProtocolError,
    PushError,
    TransactionError,
)
from .hold import Hold
from .kv import UNSET, Kv, KvResults
from .lock import Lock
from .locks import Locks
from .message import Delivered, Message
from .opening import connect, open_broker, serving
from .queen import Queen
from .queue import DeadLetters, Queue
from .results import (
    AckResult,
    KvResult,
    LockResult,
    PushResult,
    RenewResult,
    Result,
    TimerResult,
    TransactionResult,
)
from .subscription import Subscription
from .tail import Gap, Tail
from .timers import TimerBuilder, Timers
from .transaction import Transaction
from .transport import Answer, Retry, Transport
from .watch import KvChange, Watch

__all__ = [
    "UNSET",
    "AckResult",
    "Answer",
    "AnswerTimeout",
    "ConnectionFailed",
    "DeadLetters",
    "Delivered",
    "Ephemeral",
    "EphemeralMessage",
    "Gap",
    "Hold",
    "Kv",
    "KvChange",
    "KvResult",
    "KvResults",
    "Lock",
    "LockLostError",
    "LockNotHeldError",
    "LockResult",
    "Locks",
    "Message",
    "ProtocolError",
    "PushError",
    "PushResult",
    "Queen",
    "Queue",
    "RenewResult",
    "Result",
    "Retry",
    "Subscription",
    "Tail",
    "TimerBuilder",
    "TimerResult",
    "Timers",
    "Transaction",
    "TransactionError",
    "TransactionResult",
    "Transport",
    "Watch",
    "connect",
    "open_broker",
    "serving",
]
