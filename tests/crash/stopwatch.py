"""Real time, measured fairly on a machine that has other things to do as well."""

from __future__ import annotations

import os
import time
from pathlib import Path

CPUS = os.cpu_count() or 1


class Stopwatch:
    """How long something took, without the time for which those who did it had no processor.

    They are this process and others by their ids. Linux tells for how long each thread was ready to run and stood in
    line, and what the host of a virtual machine kept for itself. On a machine with processors to spare both are
    nothing, and this is the time of the clock, as it is where the system does not tell."""

    def __init__(self, *pids: int) -> None:
        self._pids = [os.getpid(), *pids]
        self._in_line = {thread: waited for pid in self._pids for thread, waited in _in_line(pid).items()}
        self._stolen = _stolen()
        self._began = time.monotonic()

    def add(self, pid: int) -> None:
        """A process that was started since."""
        self._pids.append(pid)

    def seconds(self) -> float:
        """Since it was made."""
        passed = time.monotonic() - self._began
        now = {thread: waited for pid in self._pids for thread, waited in _in_line(pid).items()}
        in_line = sum(waited - self._in_line.get(thread, 0) for thread, waited in now.items())
        return max(0.0, passed - in_line - (_stolen() - self._stolen))


def _in_line(pid: int) -> dict[str, float]:
    """Seconds by thread; nothing for a process that is gone."""
    told: dict[str, float] = {}
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            told[str(path)] = int(path.read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            continue
    return told


def _stolen() -> float:
    """Seconds that the host has kept from each processor, on average."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK") / CPUS
    except (OSError, IndexError):
        return 0.0
