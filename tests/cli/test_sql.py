"""`queen-actors sql`: a stopped broker's log as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import trio

from queen_actors import open_broker
from queen_actors.cli import main
from queen_actors.storage.sql import VIEWS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data directory with three messages and a key."""
    directory = tmp_path_factory.mktemp("data")

    async def fill() -> None:
        async with open_broker(directory) as queen:
            for number in range(3):
                await queen.queue("orders").partition(f"p{number % 2}").push({"data": {"n": number}})
            await queen.kv.put("carts", "customer-42", {"items": 3}, forever=True)

    trio.run(fill)
    return str(directory)


COUNT = 'SELECT queue, "partition", count(*) AS messages FROM messages GROUP BY ALL ORDER BY ALL'


def test_a_table_is_aligned(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are as wide as their widest value, numbers stand to the right, and the rows are counted."""
    assert main(["sql", COUNT, "--data", data]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "queue   partition  messages",
        "------  ---------  --------",
        "orders  p0                2",
        "orders  p1                1",
        "(2 rows)",
    ]


def test_json_is_an_array_of_objects(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row is an object; instants are ISO 8601 and NULL is null."""
    query = "SELECT namespace, key, value, expires_at, created_at FROM kv"
    assert main(["sql", query, "--data", data, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row.pop("created_at").startswith("20")
    assert row == {"namespace": "carts", "key": "customer-42", "value": '{"items":3}', "expires_at": None}


def test_csv_has_a_header(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first record has the columns' names, the others are the rows."""
    assert main(["sql", COUNT, "--data", data, "--format", "csv"]) == 0
    records = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert records == [["queue", "partition", "messages"], ["orders", "p0", "2"], ["orders", "p1", "1"]]


def test_an_empty_result_is_a_table_without_rows(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No row is an answer, not an error, in every format."""
    for form in ("table", "json", "csv"):
        assert main(["sql", "SELECT key FROM kv WHERE false", "--data", data, "--format", form]) == 0
    assert capsys.readouterr().out == "key\n---\n(0 rows)\n[]\nkey\r\n"


@pytest.mark.parametrize("query", ["SELEC 1", "SELECT * FROM nothing", "DROP VIEW kv"])
def test_a_query_that_fails_is_one_sentence(data: str, query: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong statement ends with code 1 and one line on stderr, and nothing on stdout."""
    assert main(["sql", query, "--data", data]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("queen-actors: ")
    assert told.err.count("\n") == 1


def test_a_missing_directory_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that is not there ends with code 2, and is not created."""
    missing = tmp_path / "missing"
    assert main(["sql", "SELECT 1", "--data", str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err
    assert not missing.exists()


def test_a_directory_in_use_is_one_sentence(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """While a broker has the directory, a query ends with code 2."""

    async def query_while_open() -> int:
        async with open_broker(data):
            return await trio.to_thread.run_sync(main, ["sql", "SELECT 1", "--data", data])

    assert trio.run(query_while_open) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_names_every_view(capsys: pytest.CaptureFixture[str]) -> None:
    """What can be asked for is what `--help` says, and what the README says."""
    with pytest.raises(SystemExit):
        main(["sql", "--help"])
    told = capsys.readouterr().out
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert [view for view in VIEWS if view not in told or f"`{view}`" not in readme] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`version` prints the name and the version."""
    assert main(["version"]) == 0
    name, version = capsys.readouterr().out.split()
    assert name == "queen-actors"
    assert version[0].isdigit()


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, argparse says what there is and ends with code 2."""
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
