"""A message broker on Trio: partitioned queues, keys, locks and timers in one durable log."""

from __future__ import annotations

__version__ = "0.1.0"
