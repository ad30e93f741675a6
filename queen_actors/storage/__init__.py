"""Where the log lives: `DurableStore` in a directory, `MemoryStore` in memory; both fulfil `ports.Store`."""

from __future__ import annotations

from queen_actors.config import Settings
from queen_actors.ports import Store

from .durable import DurableStore
from .memory import Faults, MemoryStore

__all__ = ["DurableStore", "Faults", "MemoryStore", "store_of"]


def store_of(settings: Settings) -> Store:
    """The store that the settings ask for; not open yet."""
    if settings.data is None:
        return MemoryStore()
    return DurableStore(
        settings.data,
        roll_bytes=settings.journal_roll_bytes,
        roll_seconds=settings.journal_roll_seconds,
        snapshot_bytes=settings.snapshot_bytes,
    )
