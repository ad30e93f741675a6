"""What needs a browser or node runs where there is one; where there is none, the run's end says what was left out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess
from webdriver import Browser, browsing, find_browser

HERE = Path(__file__).parent
left_out: dict[str, int] = {}


def _missing(name: str) -> str | None:
    """What a test file of this directory needs and this machine does not have."""
    if name == "test_browser.py" and find_browser() is None:
        return "no Chromium with its driver is installed (Debian: apt-get install chromium chromium-driver)"
    if name == "test_node.py" and shutil.which("node") is None:
        return "no node is installed (Debian: apt-get install nodejs)"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, out = [], []
    for item in items:
        why = _missing(item.path.name) if item.path.parent == HERE else None
        (kept if why is None else out).append(item)
        if why is not None:
            left_out[why] = left_out.get(why, 0) + 1
    if out:
        items[:] = kept
        config.hook.pytest_deselected(items=out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for why, count in left_out.items():
        terminalreporter.write_line(f"tests/{HERE.name}: {count} left out, {why}", yellow=True, bold=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; each opens a page of its own."""
    with browsing(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a data directory, which a test may kill and start again."""
    directory = tmp_path_factory.mktemp("server")
    process = ServerProcess(directory / "server.log", directory / "data")
    process.start()
    try:
        yield process
    finally:
        process.stop()
