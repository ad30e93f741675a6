"""Shared by every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import openapi_kit
import pytest


def pytest_configure() -> None:
    """Ctrl-C works, for the tests and for the processes that they start: a shell that runs them in the background has
    it ignored, and what is ignored stays so in every child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    openapi_kit.watch()


@pytest.fixture(autouse=True)
def answers_are_as_described() -> Iterator[None]:
    """Whatever an `Api` answered during the test is what the OpenAPI description says of it."""
    openapi_kit.DIFFERENCES.clear()
    yield
    assert openapi_kit.DIFFERENCES == []
