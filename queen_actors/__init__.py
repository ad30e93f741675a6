"""A message broker on Trio: partitioned queues, keys, locks and timers in one durable log.

`open_broker()` runs a broker in this process, `connect()` is a client of one elsewhere; both give a `Queen`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .client import (
        AckResult,
        ConnectionFailed,
        Gap,
        KvChange,
        KvResult,
        Lock,
        LockLostError,
        LockNotHeldError,
        LockResult,
        Message,
        PushError,
        PushResult,
        Queen,
        Queue,
        Result,
        Retry,
        Subscription,
        TimerResult,
        Transaction,
        TransactionError,
        TransactionResult,
        connect,
        open_broker,
    )
    from .config import Settings
    from .errors import (
        BadRequest,
        Conflict,
        DataDirectoryError,
        Forbidden,
        InternalError,
        NotFound,
        Overloaded,
        QueenError,
        StorageFailed,
        StorageFull,
        TooLarge,
        Unauthorized,
        Unavailable,
    )

__all__ = [
    "AckResult",
    "BadRequest",
    "Conflict",
    "ConnectionFailed",
    "DataDirectoryError",
    "Forbidden",
    "Gap",
    "InternalError",
    "KvChange",
    "KvResult",
    "Lock",
    "LockLostError",
    "LockNotHeldError",
    "LockResult",
    "Message",
    "NotFound",
    "Overloaded",
    "PushError",
    "PushResult",
    "Queen",
    "QueenError",
    "Queue",
    "Result",
    "Retry",
    "Settings",
    "StorageFailed",
    "StorageFull",
    "Subscription",
    "TimerResult",
    "TooLarge",
    "Transaction",
    "TransactionError",
    "TransactionResult",
    "Unauthorized",
    "Unavailable",
    "connect",
    "open_broker",
]

_PLACES = ("client", "errors", "config")


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first asked for: a module below needs none of the client above it."""
    if name in __all__:
        for place in _PLACES:
            module = import_module(f"{__name__}.{place}")
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
