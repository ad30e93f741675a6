"""Where the log lives: `DurableStore` in a directory, `MemoryStore` in memory; both fulfil `ports.Store`."""

from __future__ import annotations

from .durable import DurableStore
from .memory import Faults, MemoryStore

__all__ = ["DurableStore", "Faults", "MemoryStore"]
