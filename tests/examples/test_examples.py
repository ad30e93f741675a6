"""Every example runs, as its docstring says, against a real server, and prints what it promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120.0
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an example against the broker at a URL; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start_one(url: str, name: str, *arguments: str) -> subprocess.Popen[str]:
            environ = {**os.environ, "QUEEN_URL": url, "NO_PROXY": "127.0.0.1"}
            command = [sys.executable, str(EXAMPLES / name), *arguments]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True))
            stack.callback(process.kill)
            return process

        yield start_one


def lines(process: subprocess.Popen[str]) -> list[str]:
    """What the example printed; it must end by itself, without an error."""
    try:
        told, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        told, errors = process.communicate()
        raise AssertionError(f"it did not end:\n{told}\n{errors}") from None
    assert process.returncode == 0, errors
    return told.splitlines()


def test_every_example_is_tried_here() -> None:
    """No example is left without a test."""
    tried = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tried] == []


def test_embedding(tmp_path: Path, start: Start) -> None:
    """A broker inside a program: what was committed is there, and is there again in the next run."""
    told = lines(start("", "embedding.py", str(tmp_path / "data")))
    assert sorted(told[:3]) == [f"billed customer-{number}" for number in range(3)]
    assert told[3:] == ["3 invoices, customer-2 is billed"]


def test_producer_and_consumer(url: str, start: Start) -> None:
    """What is pushed over HTTP arrives at a WebSocket consumer, in order for each customer."""
    consumer = start(url, "websocket_consumer.py", "--count", "6")
    produced = lines(start(url, "http_producer.py", "--count", "6", "--every", "0"))
    assert [line.split(":")[0] for line in produced] == [f"order {number}" for number in range(6)]
    shipped = lines(consumer)
    for customer in range(3):
        of_customer = [line for line in shipped if line.endswith(f"of customer-{customer}")]
        assert of_customer == [
            f'shipped {{"number": {number}, "amount": {10 + number}}} of customer-{customer}'
            for number in (customer, customer + 3)
        ]


def test_the_consumer_takes_what_others_push(url: str, start: Start) -> None:
    """What the README pushes with curl goes to the same queue: a payload of another shape does not end the consumer."""
    item = {"queue": "orders", "partition": "customer-42", "payload": {"amount": 120}}
    httpx.post(f"{url}/api/v1/push", json={"items": [item]}, trust_env=False, timeout=60).raise_for_status()
    consumer = start(url, "websocket_consumer.py", "--count", "1")
    assert lines(consumer) == ['shipped {"amount": 120} of customer-42']


def test_stopped_by_hand(url: str, start: Start) -> None:
    """Ctrl-C ends the examples that run until they are stopped, without a traceback."""
    for name in ("http_producer.py", "websocket_consumer.py"):
        process = start(url, name)
        httpx.post(
            f"{url}/api/v1/push", json={"items": [{"queue": "orders", "payload": 1}]}, trust_env=False, timeout=60
        )
        assert process.stdout is not None
        assert process.stdout.readline()  # it is under way
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")


def test_nightly_report(url: str, start: Start) -> None:
    """Three workers at once, and one more later: one report."""
    workers = [start(url, "nightly_report.py", "2026-10-22") for _ in range(3)]
    told = [line for worker in workers for line in lines(worker)] + lines(start(url, "nightly_report.py", "2026-10-22"))
    assert len(told) == 4
    assert told.count("the report of 2026-10-22 is written") == 1
    assert {line for line in told if "is written" not in line} <= {"another worker has it", "not written: exists"}


def test_rate_limiter(url: str, start: Start) -> None:
    """Three of five requests pass, and another customer is not held up."""
    ok, over = "ok", "over the limit"
    assert lines(start(url, "rate_limiter.py", "customer-42")) == [
        f"request {number}: {verdict}" for number, verdict in enumerate([ok, ok, ok, over, over], 1)
    ]
    assert lines(start(url, "rate_limiter.py", "customer-43", "--requests", "1")) == ["request 1: ok"]


def test_delayed_reminder(url: str, start: Start) -> None:
    """One fires, one fires later because it was moved, and the cancelled one never does."""
    moved, cancelled, *fired = lines(start(url, "delayed_reminder.py"))
    assert moved.startswith("cart-2: rescheduled to ")
    assert cancelled == "cart-3: cancelled"
    assert [line.split(":")[0] for line in fired] == ["cart-1", "cart-2"]


def test_published_sdk(url: str, start: Start) -> None:
    """The published SDK, unchanged: lock and guard, keys, counter, timer, consume."""
    told = lines(start(url, "sdk_quickstart.py"))
    assert told[:5] == [
        "report committed: True",
        "cart saved: True, by the stale version: False (version)",
        "fourth of three allowed: False (limit)",
        "consumed: today",
        "consumed: tomorrow",
    ]
