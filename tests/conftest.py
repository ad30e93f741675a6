"""Shared by every test."""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import openapi_kit
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings


def pytest_configure() -> None:
    """Ctrl-C works, for the tests and for the processes that they start: a shell that runs them in the background has
    it ignored, and what is ignored stays so in every child. Hypothesis takes no slow machine for a fault."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("tests", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")
    openapi_kit.watch()


@pytest.fixture(autouse=True)
def answers_are_as_described() -> Iterator[None]:
    """Whatever an `Api` answered during the test is what the OpenAPI description says of it."""
    openapi_kit.DIFFERENCES.clear()
    yield
    assert openapi_kit.DIFFERENCES == []


@pytest.fixture(autouse=True)
def _log_level_comes_back() -> Iterator[None]:
    """The demo and the simulation set it for their process; what a later test expects to be logged is."""
    logger = logging.getLogger("queen_actors")
    level = logger.level
    yield
    logger.setLevel(level)


def _on_virtual_time(main: Any, clock: trio.abc.Clock | None = None, instruments: Sequence[Any] = ()) -> Any:
    return trio.run(main, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a module that says `VIRTUAL_TIME = True`, time passes at once whenever everybody waits."""
    for item in items:
        virtual = getattr(getattr(item, "module", None), "VIRTUAL_TIME", False)
        if virtual and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=_on_virtual_time), append=False)
