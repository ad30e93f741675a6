"""`queen-actors serve` as a process: ready, signals, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from crash.stopwatch import Stopwatch

Start = Callable[..., subprocess.Popen[str]]
SECONDS = 120.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `queen-actors` with these arguments and variables; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start_one(*arguments: str, **variables: str) -> subprocess.Popen[str]:
            environ = {name: value for name, value in os.environ.items() if not name.startswith("QUEEN_ACTORS_")}
            environ.pop("PORT", None)
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *(() if arguments[0] == "-c" else ("-m", "queen_actors")), *arguments],
                    cwd=tmp_path,
                    env={**environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield start_one


def address(server: subprocess.Popen[str]) -> str:
    """Waits for the line that says where the server is."""
    assert server.stdout is not None
    line = server.stdout.readline()
    found = re.search(r"http://\S+", line)
    assert found is not None, server.communicate()
    return found[0]


def test_ready_when_it_says_so_and_graceful_on_both_signals(start: Start, tmp_path: Path) -> None:
    """The address is printed when /health answers 200; either signal ends it with code 0 and what was answered kept."""
    for number, ending in enumerate((signal.SIGTERM, signal.SIGINT)):
        server = start("serve", "--port", "0", "--data", "kept")
        url = address(server)
        assert httpx.get(f"{url}/health", trust_env=False, timeout=SECONDS).status_code == 200
        item = {"queue": "orders", "transactionId": "same", "payload": number}
        (stored,) = httpx.post(f"{url}/api/v1/push", json={"items": [item]}, trust_env=False, timeout=SECONDS).json()
        assert stored["status"] == ("queued", "duplicate")[number]
        server.send_signal(ending)
        told, errors = server.communicate(timeout=SECONDS)
        assert (server.returncode, told, errors) == (0, "", "")
    assert (tmp_path / "kept").is_dir()


def test_the_data_directory_is_where_it_is_told(start: Start, tmp_path: Path) -> None:
    """Without a flag or a variable it is ./queen-data; with --memory there is none."""
    for arguments, variables, made in (
        ((), {}, ["queen-data"]),
        ((), {"QUEEN_ACTORS_DATA": "elsewhere"}, ["elsewhere", "queen-data"]),
        (("--memory",), {}, ["elsewhere", "queen-data"]),
    ):
        server = start("serve", "--port", "0", *arguments, **variables)
        address(server)
        server.terminate()
        assert server.wait(SECONDS) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == made


def test_a_parked_pop_is_answered_when_the_server_stops(start: Start) -> None:
    """A graceful stop does not wait for a long poll, and does not cut it off: it answers 204."""
    server = start("serve", "--port", "0", "--memory")
    port = int(address(server).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), SECONDS) as peer:
        peer.sendall(b"GET /api/v1/pop/queue/orders?wait=true&timeout=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        _until_parked(port)
        watch = Stopwatch(server.pid)
        server.terminate()
        assert peer.recv(1000).startswith(b"HTTP/1.1 204 ")
    assert server.wait(SECONDS) == 0
    assert watch.seconds() < 5


def _until_parked(port: int) -> None:
    """The pop was sent before this request on another connection; it registers its queue before it parks."""
    deadline = time.monotonic() + SECONDS
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=SECONDS) as http:
        while http.get("/api/v1/resources/queues/orders").status_code != 200:
            assert time.monotonic() < deadline


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    """While a request keeps the graceful stop waiting, a second signal ends the process with 128 + its number."""
    server = start("serve", "--port", "0", "--memory")
    port = int(address(server).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), SECONDS) as slow:
        slow.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        _wait_for_refusal(server, port)
        watch = Stopwatch(server.pid)
        server.send_signal(signal.SIGINT)
        assert server.wait(SECONDS) == 128 + signal.SIGINT
        assert watch.seconds() < 5


def _wait_for_refusal(server: subprocess.Popen[str], port: int) -> None:
    """Ask it to stop, and return when it accepts no connection any more."""
    server.terminate()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), SECONDS).close()
        except OSError:
            assert server.poll() is None
            return
    raise AssertionError("it goes on accepting connections")


def test_a_stop_that_takes_too_long_is_cut_off(start: Start) -> None:
    """A request that never ends delays the stop by the grace period and no more."""
    server = start("serve", "--port", "0", "--memory", QUEEN_ACTORS_SHUTDOWN_SECONDS="0.5")
    port = int(address(server).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), SECONDS) as slow:
        slow.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        watch = Stopwatch(server.pid)
        _wait_for_refusal(server, port)
        assert server.wait(SECONDS) == 0
        assert watch.seconds() < 5


def test_a_port_in_use_is_one_sentence(start: Start) -> None:
    """Another listener on the port: code 2, and one line on stderr that names the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start("serve", "--port", str(port), "--memory")
        told, errors = server.communicate(timeout=SECONDS)
    assert (server.returncode, told) == (2, "")
    assert errors.count("\n") == 1
    assert f"port {port}" in errors


def test_a_directory_in_use_is_one_sentence(start: Start) -> None:
    """A second broker on the same directory: code 2, one line on stderr, and the first one goes on."""
    first = start("serve", "--port", "0", "--data", "shared")
    url = address(first)
    second = start("serve", "--port", "0", "--data", "shared")
    told, errors = second.communicate(timeout=SECONDS)
    assert (second.returncode, told) == (2, "")
    assert errors.count("\n") == 1
    assert "shared" in errors
    assert httpx.get(f"{url}/health", trust_env=False, timeout=SECONDS).status_code == 200


def test_a_foreign_directory_is_one_sentence(start: Start, tmp_path: Path) -> None:
    """A directory whose format is not ours is left as it is: code 2 and one line on stderr."""
    server = start("serve", "--port", "0", "--data", "ours")
    address(server)
    server.terminate()
    server.wait(SECONDS)
    for path in (tmp_path / "ours").iterdir():
        if path.is_file():
            path.write_bytes(b"something else\n" * 20)
    second = start("serve", "--port", "0", "--data", "ours")
    told, errors = second.communicate(timeout=SECONDS)
    assert (second.returncode, told) == (2, "")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (["--port", "70000"], {}, "--port=70000"),
        ([], {"QUEEN_ACTORS_PORT": "many"}, "QUEEN_ACTORS_PORT=many"),
        ([], {"PORT": "many"}, "PORT=many"),
        ([], {"QUEEN_ACTORS_JWT_PUBLIC_KEY": "no key"}, "QUEEN_ACTORS_JWT_PUBLIC_KEY is not"),
        ([], {"QUEEN_ACTORS_ENCRYPTION_KEY": "short"}, "QUEEN_ACTORS_ENCRYPTION_KEY is neither"),
        (
            [],
            {"QUEEN_ACTORS_LOGLEVEL": "debug"},
            "QUEEN_ACTORS_LOGLEVEL is no setting; the nearest is QUEEN_ACTORS_LOG_LEVEL",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    start: Start, arguments: list[str], variables: dict[str, str], named: str
) -> None:
    """A setting that cannot be is named: code 2 and one line on stderr."""
    server = start("serve", "--memory", *arguments, **variables)
    told, errors = server.communicate(timeout=SECONDS)
    assert (server.returncode, told) == (2, "")
    assert errors.count("\n") == 1
    assert named in errors


def test_kill_loses_nothing_that_was_answered(start: Start) -> None:
    """After SIGKILL the next start has every message that was answered, and the queue's cursor."""
    server = start("serve", "--port", "0", "--data", "kept")
    url = address(server)
    with httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as http:
        for number in range(20):
            item = {"queue": "orders", "transactionId": str(number), "payload": number}
            assert http.post("/api/v1/push", json={"items": [item]}).status_code == 201
        popped = http.get("/api/v1/pop/queue/orders", params={"batch": 5, "autoAck": "true"}).json()
        assert [message["data"] for message in popped["messages"]] == [0, 1, 2, 3, 4]
    server.kill()
    server.wait()
    again = start("serve", "--port", "0", "--data", "kept")
    answer = httpx.get(
        f"{address(again)}/api/v1/pop/queue/orders", params={"batch": 50}, trust_env=False, timeout=SECONDS
    ).json()
    assert [message["data"] for message in answer["messages"]] == list(range(5, 20))


FAILING = """
import sys
from queen_actors import cli
from queen_actors.storage import Faults, MemoryStore

cli.store_of = lambda settings: MemoryStore(faults=Faults(fail="lost"))
sys.exit(cli.main(["serve", "--port", "0"]))
"""


def test_a_storage_failure_ends_it_with_a_sentence(start: Start) -> None:
    """When the outcome of a write is not known, it is not answered as done, and the process ends with code 3."""
    server = start("-c", FAILING)
    url = address(server)
    try:
        answer = httpx.post(
            f"{url}/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]}, trust_env=False, timeout=SECONDS
        )
        assert answer.status_code == 503
    except httpx.TransportError:
        pass  # the process may be gone before it can answer
    told, errors = server.communicate(timeout=SECONDS)
    assert (server.returncode, told) == (3, "")
    assert errors.startswith("queen-actors: ")
    assert errors.count("\n") == 1


def test_logs_are_structured(start: Start) -> None:
    """What is logged, requests when they are asked for, is one JSON object a line."""
    server = start("serve", "--port", "0", "--memory", QUEEN_ACTORS_ACCESS_LOG="true")
    assert httpx.get(f"{address(server)}/health", trust_env=False, timeout=SECONDS).status_code == 200
    server.terminate()
    _, errors = server.communicate(timeout=SECONDS)
    assert server.returncode == 0
    (access,) = [json.loads(line) for line in errors.splitlines()]
    assert (access["logger"], access["level"], access["status"]) == ("queen_actors.access", "info", 200)
    assert access["timestamp"].startswith("20")


FEW_DESCRIPTORS = """
import resource, sys
from queen_actors import cli

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256))
sys.exit(cli.main(["serve", "--port", "0", "--data", "kept"]))
"""


def test_connections_leave_the_log_its_descriptors(start: Start, tmp_path: Path) -> None:
    """Where `ulimit -n` is small, connections are refused before there is none left to roll, seal and merge with."""
    server = start("-c", FEW_DESCRIPTORS, QUEEN_ACTORS_JOURNAL_ROLL_SECONDS="0.1", QUEEN_ACTORS_SNAPSHOT_BYTES="1")
    found = re.match(r"http://(.*):(\d+)", address(server))
    assert found is not None
    where = found[1], int(found[2])
    limit = Path(f"/proc/{server.pid}/limits")
    if limit.exists():
        assert re.search(r"Max open files +256 +256 ", limit.read_text())
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=found[0], trust_env=False, timeout=SECONDS))
        assert http.get("/health").status_code == 200
        crowd = [stack.enter_context(socket.create_connection(where, SECONDS)) for _ in range(300)]
        sealed: set[str] = set()
        deadline = time.monotonic() + SECONDS
        while len(sealed) < 6:
            assert time.monotonic() < deadline
            answer = http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
            assert answer.status_code == 201
            sealed |= {file.name for file in (tmp_path / "kept").glob("*.duckdb")}
        refused = crowd[-1].recv(100)
        assert refused == b"" or refused.startswith(b"HTTP/1.1 503 ")
        assert server.poll() is None
