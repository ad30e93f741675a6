"""For tests of programs that use the broker, and of the broker itself (docs/testing.md).

`memory_broker` is a broker in memory that a test can restart and make to fail; `fixtures` has it for pytest. `run`
repeats a whole Trio program on virtual time, scheduled by a seed. `sim` and `mutants` are commands.
"""

from .determinism import deterministic, run
from .memory import MemoryLog, memory_broker

__all__ = ["MemoryLog", "deterministic", "memory_broker", "run"]
