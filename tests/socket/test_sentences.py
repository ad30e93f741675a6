"""Each sentence of the protocol's specification has tests over real sockets, and the table that says which is honest.

`sentences.toml` has the table. Where the specification lies beside the checkout, its sentences are compared with the
table's, one by one; where it does not, the table itself is held to everything else that is said of it here.
"""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parents[1]
SPECIFICATION = TESTS.parents[1] / "shared" / "spec" / "websocket.md"
FOLDERS = ("socket", "client", "serve", "browser", "examples")


class Demand(NamedTuple):
    """Something that a broker could fail at; the tests as `folder/file.py::test`."""

    what: str
    tests: tuple[str, ...]


class Sentence(NamedTuple):
    """One sentence, row or example of the specification; `nothing`: why it demands nothing."""

    place: str
    mark: str
    nothing: str
    demands: tuple[Demand, ...]


def table() -> Iterator[Sentence]:
    """The rows of `sentences.toml`."""
    for place, row in tomllib.loads(Path(__file__).with_name("sentences.toml").read_text()).items():
        mark, nothing = row.pop("mark"), row.pop("nothing", "")
        demands = [Demand(what, tuple(map(full_name, tests))) for what, tests in row.items()]
        yield Sentence(place, mark, nothing, tuple(demands))


def full_name(test: str) -> str:
    return test if "/" in test else "socket/test_socket_{}.py::{}".format(*test.split("::"))


SENTENCES = tuple(table())
DEMANDS = [demand for sentence in SENTENCES for demand in sentence.demands]
NAMED = sorted({test for demand in DEMANDS for test in demand.tests})
SERVERS = {"House", "house", "hall", "narrow_peer", "ServerProcess", "serve", "serving", "a_broker", "HttpPeer"}
"""What a test reaches, itself or by what it uses of its file, when it speaks with a server over sockets."""
ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*{\"0-9])")
SECONDS = re.compile(r"\b\d+ (?:s|seconds?|ms)\b|within a second")
CLOSE_CODES = (1000, 1001, 1003, 1009, 1011, 4400, 4401, 4403, 4408, 4429)


# -- the specification -------------------------------------------------------------------------------------------------


def sentences_of(page: str) -> Iterator[tuple[str, str]]:
    """Place and text of each sentence of a page: a bullet begins one, a row of a table is one, and so is an example.
    The place is the number of the section and the number within it."""
    section, count, block = "0", 0, list[str]()

    def flush() -> Iterator[tuple[str, str]]:
        nonlocal count
        whole = " ".join(" ".join(block).split())
        block.clear()
        for sentence in ENDS.split(whole) if whole else ():
            count += 1
            yield f"{section}.{count}", sentence

    for line in page.splitlines():
        if heading := re.match(r"#+ (?:(\d+)\.)?", line):
            yield from flush()
            section, count = heading[1] or "0", 0
        elif not line.strip() or line.startswith(("|", "- ")):
            yield from flush()
            if line.startswith("|") and not line.startswith("| ---"):
                block.append(line)
                count += 1
                yield f"{section}.{count}", " ".join(block.pop().split())
            elif line.startswith("- "):
                block.append(line[2:])
        else:
            block.append(line)
    yield from flush()


def mark(sentence: str) -> str:
    return hashlib.sha256(sentence.encode()).hexdigest()[:10]


def test_a_page_is_split_into_its_sentences() -> None:
    """Paragraphs, bullets, examples and rows, numbered within their sections."""
    page = "# T\n\nOne. `Two` is\nlonger: so.\n\n## 1. A\n\n- Three, e.g. this.\n- **Label.** Four. Five\n\n"
    page += "    {an: 1}\n\n"
    page += "## 2. B\n\n| a | b |\n| --- | --- |\n| c | d. E |\n"
    assert list(sentences_of(page)) == [
        ("0.1", "One."),
        ("0.2", "`Two` is longer: so."),
        ("1.1", "Three, e.g. this."),
        ("1.2", "**Label.** Four."),
        ("1.3", "Five"),
        ("1.4", "{an: 1}"),
        ("2.1", "| a | b |"),
        ("2.2", "| c | d. E |"),
    ]


PAGE = dict(sentences_of(SPECIFICATION.read_text())) if SPECIFICATION.exists() else {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each row and, where the specification is there, each sentence of it that has no row."""
    if "place" in metafunc.fixturenames:
        rows = [sentence.place for sentence in SENTENCES]
        metafunc.parametrize("place", [*rows, *(place for place in PAGE if place not in rows)])


ROWS = {sentence.place: sentence for sentence in SENTENCES}


def test_each_sentence_is_the_one_that_was_read(place: str) -> None:
    """A sentence that was changed, added or removed since its tests were chosen fails here. Without the specification
    each row is at least one of its own, and in its place."""
    row = ROWS.get(place)
    assert row is not None, f"a sentence without a row: {place} {mark(PAGE[place])}"
    if PAGE:
        assert place in PAGE, "there is no such sentence any more"
        assert row.mark == mark(PAGE[place]), f"{place} was changed: {mark(PAGE[place])}"
    assert re.fullmatch(r"[0-9a-f]{10}", row.mark)
    assert [other.place for other in SENTENCES if other.mark == row.mark] == [place]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_section_is_there_from_its_first_sentence_to_its_last() -> None:
    """Sections 0 (what comes before the first) to 7, each numbered without a gap."""
    places = [tuple(map(int, sentence.place.split("."))) for sentence in SENTENCES]
    sections = {section: [count for _, count in found] for section, found in groupby(places, lambda place: place[0])}
    assert list(sections) == list(range(8))
    for section, counts in sections.items():
        assert counts == list(range(1, len(counts) + 1)), section
    assert len(places) == len(set(places)) == 79


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.place)
def test_a_row_demands_something_and_names_its_tests(sentence: Sentence) -> None:
    """Each demand is a sentence of our own with tests; what demands nothing of a broker says why."""
    assert bool(sentence.nothing) == (not sentence.demands)
    for demand in sentence.demands:
        assert 10 < len(demand.what) < 200
        assert demand.tests, demand.what
        assert len(demand.tests) == len(set(demand.tests)), demand.what


def test_what_is_said_is_said_once() -> None:
    """No demand is there twice."""
    said = [demand.what for demand in DEMANDS]
    assert len(said) == len(set(said))


def test_every_close_code_has_a_test_of_its_own() -> None:
    """The list of the codes names a test for each."""
    (row,) = [sentence for sentence in SENTENCES if sentence.place == "7.5"]
    assert [int(demand.what.split()[0]) for demand in row.demands] == list(CLOSE_CODES)
    for demand in row.demands:
        code = demand.what.split()[0]
        assert any(code in found.text for found in map(_found, demand.tests)), demand.what


# -- the tests that it names -------------------------------------------------------------------------------------------


class Found:
    """A test function and its file."""

    def __init__(self, file: str, name: str) -> None:
        self.file = file
        self.text = _text(file)
        self.module = _tree(file)
        self.functions = {
            node.name: node
            for node in self.module.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
        self.node = self.functions[name]


@cache
def _text(file: str) -> str:
    return (TESTS / file).read_text()


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(_text(file))


def _found(test: str) -> Found:
    file, _, name = test.partition("::")
    return Found(file, name)


def _names(node: ast.AST) -> set[str]:
    """Whatever a function mentions: names, attributes, and its fixtures."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    found |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return found | {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}


def _reached(found: Found) -> set[str]:
    """Names that a test mentions, directly or by functions, classes and fixtures of its file and its folder."""
    conftest = (TESTS / found.file).with_name("conftest.py")
    functions = dict(found.functions)
    for node in ast.parse(conftest.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.setdefault(node.name, node)
    seen: set[str] = set()
    ahead = [found.node.name]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += _names(functions[name]) if name in functions else ()
    return seen


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> set[str]:
    """What pytest collects of the files that are named, without the parameters: here, or else asked by itself."""
    here = {
        f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}"
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path.is_relative_to(TESTS)
    }
    files = sorted({str(TESTS / test.partition("::")[0]) for test in NAMED if test not in here})
    if not files:
        return here
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    told = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=300)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    lines = (line for line in told.stdout.splitlines() if "::" in line)
    return here | {line.removeprefix("tests/").partition("[")[0] for line in lines}


def test_every_test_is_collected(collected: set[str]) -> None:
    """It exists, under that name, and pytest runs it."""
    assert set(NAMED) - collected == set()


@pytest.mark.parametrize("test", NAMED)
def test_a_named_test_can_fail_and_speaks_with_a_server(test: str) -> None:
    """It is neither skipped nor expected to fail, it asserts something, and it reaches a server over sockets."""
    assert test.split("/")[0] in FOLDERS
    found = _found(test)
    assert isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef)
    marks = [ast.unparse(decorator) for decorator in found.node.decorator_list]
    assert not any(word in one for one in marks for word in ("skip", "xfail"))
    body = ast.unparse(found.node)
    assert "pytest.skip" not in body
    assert "importorskip" not in found.text
    reached = _reached(found)
    said = [found.functions[name] for name in reached if name in found.functions]
    asserts = [one for node in said for one in ast.walk(node) if isinstance(one, ast.Assert)]
    assert asserts or "raises" in reached, "it asserts nothing"
    assert reached & SERVERS, sorted(reached)


def test_few_sentences_demand_nothing() -> None:
    """A broker can be held to all of them but the one that is about another broker."""
    assert [sentence.place for sentence in SENTENCES if sentence.nothing] == ["0.1"]


@pytest.mark.parametrize("demand", [one for one in DEMANDS if SECONDS.search(one.what)], ids=lambda one: one.what)
def test_what_takes_time_is_tested_on_virtual_time(demand: Demand) -> None:
    """A demand that names seconds has a test whose seconds pass at once, and to the microsecond."""
    assert any("\nVIRTUAL_TIME = True" in _text(test.partition("::")[0]) for test in demand.tests)
