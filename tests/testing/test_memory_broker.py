"""What `queen_actors.testing` gives to the tests of programs that use the broker, as docs/testing.md has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from queen_actors import Queen, StorageFailed, StorageFull
from queen_actors.testing import MemoryLog, memory_broker, run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "testing.md"


async def test_the_log_outlives_the_broker(autojump_clock: MockClock) -> None:
    """A broker that is started again on the same log finds what the one before has answered; on another, nothing."""
    log = MemoryLog()
    async with memory_broker(log) as queen:
        await queen.queue("orders").push({"data": 1})
        await queen.kv.put("ns", "key", "value", forever=True)
    async with memory_broker(log) as queen:
        (message,) = await queen.queue("orders").pop()
        assert message.data == 1
        assert (await queen.kv.get("ns", "key")).value == "value"
    async with memory_broker() as queen:
        assert await queen.queue("orders").pop() == []


async def test_time_is_virtual(autojump_clock: MockClock) -> None:
    """Half an hour of a lease takes no time; what was leased comes back then, and not before."""
    async with memory_broker() as queen:
        await queen.queue("orders").push({"data": 1})
        assert len(await queen.queue("orders").pop(lease_seconds=1800)) == 1
        await trio.sleep(1799)
        assert await queen.queue("orders").pop() == []
        await trio.sleep(2)
        assert len(await queen.queue("orders").pop()) == 1


async def test_a_full_disk_and_a_crash(autojump_clock: MockClock) -> None:
    """The switches do what they say: a refusal, after which service resumes, and a death that loses no answer."""
    log = MemoryLog()
    async with memory_broker(log) as queen:
        await queen.kv.put("ns", "before", 1, forever=True)
        log.faults.full = True
        with pytest.raises(StorageFull):
            await queen.kv.put("ns", "refused", 1, forever=True)
        log.faults.full = False
        await trio.sleep(1)
        await queen.kv.put("ns", "after", 1, forever=True)
    with pytest.raises(StorageFailed):
        await _die(log)
    async with memory_broker(log) as queen:
        found = await queen.kv.get_many("ns", ["before", "refused", "after", "lost"])
        assert sorted(row["key"] for row in found.rows) == ["after", "before"]


async def _die(log: MemoryLog) -> None:
    async with memory_broker(log) as queen:
        log.crash()
        await queen.kv.put("ns", "lost", 1, forever=True)
        await trio.sleep_forever()


def test_a_run_is_repeated() -> None:
    """The same seeds, the same ids and the same order of things; another seed, other ids."""

    async def push(seed: int) -> list[str]:
        told: list[str] = []

        async def one(queen: Queen, number: int) -> None:
            (pushed,) = await queen.queue("q").push({"data": number})
            told.append(pushed.message_id)

        async with memory_broker(seed=seed) as queen, trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, queen, number)
        return told

    first = run(7, lambda: push(1))
    assert run(7, lambda: push(1)) == first
    assert run(7, lambda: push(2)) != first


def test_the_examples_of_the_documentation_run(tmp_path: Path) -> None:
    """Each block of docs/testing.md is a file, named in its first line; pytest runs them as a user would."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} >= {"conftest.py", "test_billing.py"}
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert f"{sum(text.count('def test_') for _, text in blocks)} passed" in found.stdout, found.stdout + found.stderr
