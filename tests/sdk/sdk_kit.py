"""What the tests of the SDK share."""

from __future__ import annotations

from collections.abc import Callable

from server_process import ServerProcess

Play = Callable[[str, list[str], ServerProcess], dict[str, str]]
"""Runs functions of a module in one process, against a server; what went wrong with each, "" for nothing."""
