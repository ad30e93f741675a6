"""Every scenario of the published SDK, one test each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sdk_kit import Play
from server_process import ServerProcess

MODULES = (
    "seed_page",
    "vectors",
    "readme",
    "readme_more",
    "errors_seen",
    "ephemeral_queues",
    "section_23",
    "operations",
)


def scenarios() -> Iterator[tuple[str, str]]:
    """The public coroutine functions of the modules, in their order."""
    for module in MODULES:
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text())
        for node in tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield module, node.name


@pytest.mark.timeout(900)  # the first one plays them all
@pytest.mark.parametrize(("module", "function"), list(scenarios()), ids=str)
def test_scenario(outcomes: dict[tuple[str, str], str], module: str, function: str) -> None:
    """What its docstring says."""
    error = outcomes[module, function]
    assert not error, error


def test_vector_24_a_handle_notices_that_the_broker_is_gone(play: Play, tmp_path: Path) -> None:
    """It lives on through renewals for three lifetimes; when the server stops, it is lost within one lifetime."""
    server = ServerProcess(tmp_path / "server.log")
    server.start()
    try:
        (error,) = play("lost_broker", ["a_handle_outlives_its_lifetime_and_then_the_broker"], server).values()
        assert not error, error
    finally:
        server.stop()
