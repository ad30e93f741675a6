"""docs/promises.md is honest: what it names as the test of a promise is one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROMISES = (TESTS.parent / "docs" / "promises.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PROMISES.splitlines() if line.startswith("| ") and "`" in line]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", PROMISES)))


@cache
def _tests_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file, and of the test cases that Hypothesis makes of its machines."""
    found: set[str] = set()
    for node in ast.parse((TESTS / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in found if name.lower().startswith("test"))


@pytest.mark.parametrize("test", NAMED)
def test_every_test_that_is_named_exists(test: str) -> None:
    """A test that was renamed, or removed, takes its promise's proof with it."""
    file, name = test.split("::")
    assert name in _tests_in(file)


def test_every_promise_names_its_tests() -> None:
    """No row without a test, and nothing else in the column of the tests."""
    promises = [row for row in ROWS if len(row) == 2]
    assert len(promises) == len(ROWS) > 40
    for promise, tests in promises:
        assert re.fullmatch(r"(`[\w/]+\.py::\w+` ?)+", tests.strip()), promise
