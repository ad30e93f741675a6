"""SQL over a stopped broker's data: the views, and what a statement cannot do."""

from __future__ import annotations

import os
import pathlib
from datetime import datetime

import pytest
from storage_kit import Model, Workload, cursor, dead_letter, entry, kv, queue, record

from queen_actors.domain.effects import (
    Appended,
    Effect,
    GroupPut,
    KvDropped,
    KvPut,
    PartitionPut,
    QueueDropped,
    Record,
    StreamPut,
    StreamRowPut,
    TimerPut,
    TracePut,
)
from queen_actors.errors import BadRequest, DataDirectoryError
from queen_actors.storage import DurableStore
from queen_actors.storage.sql import query

FUTURE = 4_000_000_000_000_000
ROUND = 1_700_000_000_000_000
ROUND_TIME = datetime(2023, 11, 14, 22, 13, 20)


async def log(path: pathlib.Path, *steps: list[Effect], seal: int = 0) -> str:
    """A stopped broker's directory with one entry for each step, the first `seal` of them sealed one by one."""
    store = DurableStore(str(path / "data"))
    await store.open(Model())
    for number, step in enumerate(steps):
        await store.commit([entry(ROUND + number, *step)])
        if number < seal:
            await store.seal()
    await store.close()
    return str(path / "data")


PLACE: list[Effect] = [queue(), PartitionPut(7, 1, "east", ROUND, 1), PartitionPut(8, 1, "west", ROUND, 0)]


@pytest.mark.parametrize("seal", [0, 1, 3])
async def test_messages(tmp_path: pathlib.Path, seal: int) -> None:
    """Every live message with its queue and partition by name, its payload as JSON text and its instant as one."""
    full = Record(2, ROUND, "id-2", "txn-2", b'{"n": [1, "\xc3\xa9"]}', "tr", "me", "daily", True)
    steps: list[list[Effect]] = [
        PLACE,
        [Appended(7, (record(0), record(1, ROUND)))],
        [Appended(7, (full,)), Appended(8, (record(0, ROUND + 1, b"null"),))],
        [Appended(9, (record(0),))],
    ]
    path = await log(tmp_path, *steps, seal=seal)
    columns, rows = query(path, 'SELECT * FROM messages ORDER BY "partition", "offset"')
    assert columns[:7] == ["queue", "partition", "offset", "id", "transaction_id", "payload", "created_at"]
    assert rows[0][:7] == ("q", "east", 1, "id-1", "txn-1", '{"n":1}', ROUND_TIME)
    assert rows[1] == ("q", "east", 2, "id-2", "txn-2", '{"n": [1, "é"]}', ROUND_TIME, "tr", "me", "daily", True, 7)
    assert rows[2][:3] == ("q", "west", 0)
    assert len(rows) == 3
    assert query(path, "SELECT payload::JSON ->> '$.n[1]' FROM messages WHERE id = 'id-2'")[1] == [("é",)]


async def test_keys_and_locks(tmp_path: pathlib.Path) -> None:
    """The latest value of each key, without the deleted and the expired; permits are shown by lock and slot."""
    past, future = KvPut("n", "old", b"1", 5, ROUND, 1, 1), KvPut("n", "new", b'"x"', 6, FUTURE, ROUND, ROUND)
    permit = KvPut("queen-locks", "a#b#3", b'{"owner":"me"}', 8, FUTURE, ROUND, ROUND)
    nobody = KvPut("queen-locks", "plain#0", b'{"owner":null}', 9, FUTURE, ROUND, ROUND)
    steps: list[list[Effect]] = [
        [kv("a", 1), kv("b", 2), past, permit],
        [
            kv("a", 3),
            KvDropped("n", "b", 4, False),
            future,
            nobody,
            KvPut("queen-locks", "no slot", b"1", 7, None, 1, 1),
        ],
    ]
    path = await log(tmp_path, *steps, seal=1)
    _, rows = query(
        path, "SELECT key, value, version, expires_at, created_at FROM kv WHERE namespace = 'n' ORDER BY key"
    )
    assert rows == [
        ("a", '{"v":3}', 3, None, datetime(1970, 1, 1, 0, 0, 0, 3)),
        ("new", '"x"', 6, datetime(2096, 10, 2, 7, 6, 40), ROUND_TIME),
    ]
    _, rows = query(path, "SELECT lock, slot, owner, token FROM locks ORDER BY lock")
    assert rows == [("a#b", 3, "me", 8), ("plain", 0, None, 9)]


async def test_an_expiry_beyond_all_dates(tmp_path: pathlib.Path) -> None:
    """A lifetime that no date can hold shows as the last instant there is."""
    path = await log(tmp_path, [KvPut("n", "k", b"1", 1, 10**18, 1, 1)])
    assert query(path, "SELECT expires_at FROM kv")[1] == [(datetime(9999, 12, 31, 23, 59, 59, 999_999),)]


async def test_the_other_views(tmp_path: pathlib.Path) -> None:
    """Queues, partitions, groups, cursors, timers, dead letters, traces and streams, without a deleted queue's."""
    timer = TimerPut("q", "k", "east", ROUND, "t", "m", b"[1]", False, None, 1, "full", ROUND, ROUND)
    steps: list[list[Effect]] = [
        [
            *PLACE,
            queue(2, "gone"),
            PartitionPut(9, 2, "x", 1, 0),
            cursor(9, "g", 1),
            GroupPut(2, "g", "all", 0, False, 1),
        ],
        [GroupPut(1, "g", "new", ROUND, True, ROUND), cursor(7, "g", 4), timer, dead_letter(1, 1, 7)],
        [TracePut("tr", 7, "t", "g", ("a", "b"), "info", b"{}", "w", ROUND), QueueDropped(2, "gone")],
        [
            StreamPut("s", 1, "totals", "hash", "out", "streams.totals", "before", ROUND, ROUND),
            StreamRowPut("before", 7, "k", b"1", ROUND),
            StreamPut("s", 1, "totals", "hash", "out", "streams.totals", "after", ROUND, ROUND),
            StreamRowPut("after", 8, "k", b"2", ROUND),
        ],
    ]
    path = await log(tmp_path, *steps, seal=2)
    assert query(path, "SELECT queue, namespace, options::JSON ->> '$.retry_limit' FROM queues")[1] == [
        ("q", "space", "1")
    ]
    assert query(path, 'SELECT queue, "partition", partition_id, log_start FROM partitions ORDER BY 3')[1] == [
        ("q", "east", 7, 1),
        ("q", "west", 8, 0),
    ]
    assert query(path, "SELECT * EXCLUDE created_at FROM groups")[1] == [("q", "g", "new", ROUND_TIME, True)]
    assert query(path, 'SELECT queue, "partition", consumer_group, committed, lease_id FROM cursors')[1] == [
        ("q", "east", "g", 4, "lease-4")
    ]
    assert query(path, 'SELECT queue, timer_key, "partition", due, payload, last_error FROM timers')[1] == [
        ("q", "k", "east", ROUND_TIME, "[1]", "full")
    ]
    assert query(path, 'SELECT queue, "partition", consumer_group, "offset", id, error FROM dead_letters')[1] == [
        ("q", "east", "g", 1, "dead-1", "no")
    ]
    assert query(path, 'SELECT queue, "partition", names, event, data FROM traces')[1] == [
        ("q", "east", ["a", "b"], "info", "{}")
    ]
    assert query(path, "SELECT name, queue, sink, consumer_group, config_hash, id FROM streams")[1] == [
        ("totals", "q", "out", "streams.totals", "hash", "s")
    ]
    assert query(path, "SELECT * FROM stream_state")[1] == [("totals", "q", "west", "k", "2", ROUND_TIME)]


@pytest.mark.parametrize("seed", range(2))
async def test_the_views_agree_with_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    """After snapshots, drops and merges the views count what the model counts."""
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    work = Workload(30 + seed)
    for number in range(6):
        await store.commit(work.entries(30))
        await store.seal()
        if number % 2:
            assert store._open is not None
            await store._open.upkeep.take_snapshot()
    await store.commit(work.entries(30))
    await store.close()
    live = work.model.live_index()
    assert query(str(tmp_path), "SELECT count(*) FROM messages")[1] == [(sum(map(len, live.values())),)]
    for view in ("queues", "partitions", "cursors", "kv", "timers", "dead_letters", "groups", "traces", "streams"):
        expected = sum(1 for name, _ in work.model.things if name == view)
        assert query(str(tmp_path), f"SELECT count(*) FROM {view}")[1] == [(expected,)], view
    rows = sum(1 for name, _ in work.model.things if name == "stream_rows")
    assert query(str(tmp_path), "SELECT count(*) FROM stream_state")[1] == [(rows,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE mine AS SELECT 1",
        "COPY messages TO 'here.csv'",
        "ATTACH 'other.db'",
        "DELETE FROM kv",
        "SET memory_limit = '1TB'",
        "SELECT 1; SELECT 2",
        "",
        "SELECT FROM",
        "SELECT * FROM nothing",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM read_text('/etc/hostname')",
        "FROM '/etc/hostname'",
        "PRAGMA database_list",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPLAIN ANALYZE COPY messages TO 'here.csv'",
    ],
)
async def test_what_a_statement_cannot_do(tmp_path: pathlib.Path, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything but a SELECT of the views is the caller's error, and leaves no file."""
    monkeypatch.chdir(tmp_path)
    path = await log(tmp_path, PLACE, seal=1)
    before = sorted(os.listdir(path))
    with pytest.raises(BadRequest):
        query(path, sql)
    assert {name for name in os.listdir(path) if name != "spill"} == {name for name in before if name != "spill"}
    assert os.listdir(tmp_path) == ["data"]


async def test_a_running_broker_is_left_alone(tmp_path: pathlib.Path) -> None:
    """While a broker has the directory the query is refused with a sentence."""
    path = await log(tmp_path, PLACE)
    store = DurableStore(path)
    await store.open(Model())
    with pytest.raises(DataDirectoryError, match="in use by process"):
        query(path, "SELECT 1")
    await store.close()
    assert query(path, "SELECT count(*) FROM partitions") == (["count_star()"], [(2,)])


def test_a_directory_that_is_none(tmp_path: pathlib.Path) -> None:
    """A query makes no data directory."""
    with pytest.raises(DataDirectoryError, match="no data directory"):
        query(str(tmp_path / "nothing"), "SELECT 1")
    assert os.listdir(tmp_path) == []


async def test_a_query_leaves_a_log_that_opens(tmp_path: pathlib.Path) -> None:
    """What a query sealed is recovered by the next broker, which goes on from there; an empty log can be asked too."""
    path = await log(tmp_path)
    assert query(path, "SELECT count(*) FROM messages")[1] == [(0,)]
    work = Workload(1)
    for _ in range(3):
        store, model = DurableStore(path), Model()
        await store.open(model)
        assert not model.entries
        await store.commit(work.entries(20))
        await store.close()
        assert query(path, "SELECT count(*) FROM messages")[1] == [(sum(map(len, work.model.live_index().values())),)]
        assert query(path, "SELECT count(*) > 0 FROM kv") == (["(count_star() > 0)"], [(True,)])
