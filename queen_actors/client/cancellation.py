"""Telling a cancellation from a failure."""

from __future__ import annotations

from typing import cast

import trio


def is_cancellation(error: BaseException) -> bool:
    """Cancelled, bare or as a nursery wraps it (Trio's own `open_tcp_stream` has one): it is for a scope to take."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled)
