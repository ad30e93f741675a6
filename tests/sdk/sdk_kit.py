"""What the tests of the SDK share."""

from __future__ import annotations

from collections.abc import Callable

from server_process import ServerProcess

Play = Callable[[str, str, ServerProcess], None]
"""Runs a module's scenario in a process of its own, against a server."""
