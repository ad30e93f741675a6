"""Shared by every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C works, for the tests and for the processes that they start: a shell that runs them in the background has
    it ignored, and what is ignored stays so in every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
