"""Raw HTTP by `wrk`, a client in C that is not ours: its cost is small, and nobody can say that we tuned it.

One thread of wrk keeps every connection busy with one request each. The bodies are prepared, one a line of a file, and
sent in turn; messages have no `transactionId`, so that the broker gives each its own and none is a repeat. wrk counts
answers whose status is an error, and connections that broke: a run with one of those is refused.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from faces import hold
from msgspec import Struct

_SCRIPT = """
local requests, at = {}, 0

function init(arguments)
    if arguments[1] == nil then
        requests[1] = wrk.format("GET")
        return
    end
    wrk.headers["Content-Type"] = "application/json"
    for body in io.lines(arguments[1]) do
        requests[#requests + 1] = wrk.format("POST", nil, nil, body)
    end
end

function request()
    at = at % #requests + 1
    return requests[at]
end

function done(summary, latency)
    local e = summary.errors
    io.stderr:write(string.format(
        '{"requests":%d,"seconds":%.6f,"failed":%d,"refused":%d,"p50_ms":%.4f,"p99_ms":%.4f}',
        summary.requests, summary.duration / 1e6, e.connect + e.read + e.write + e.timeout, e.status,
        latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
"""


class Report(Struct):
    """What wrk tells of a run: `failed` connections and timeouts, `refused` answers of 400 and above."""

    requests: int
    seconds: float
    failed: int
    refused: int
    p50_ms: float
    p99_ms: float


def version() -> str | None:
    """Name and version of the wrk that is installed; None without one."""
    path = shutil.which("wrk")
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # it exits with 1
    return " ".join((told.stdout + told.stderr).split()[:2])


def load(port: int, target: str, connections: int, seconds: float, bodies: Sequence[bytes] = ()) -> Report:
    """POST the bodies in turn for so long (whole seconds, at least 1), or GET where there are none."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-wrk-") as directory:
        script, lines = Path(directory) / "load.lua", Path(directory) / "bodies"
        script.write_text(_SCRIPT)
        lines.write_bytes(b"".join(body + b"\n" for body in bodies))
        command = ["wrk", "--threads", "1", "--connections", str(connections)]
        command += ["--duration", f"{max(1, math.ceil(seconds))}s", "--timeout", "30s", "--script", str(script)]
        command += [f"http://127.0.0.1:{port}{target}", *(["--", str(lines)] if bodies else [])]
        run = subprocess.run(command, capture_output=True, check=False)
    hold(run.returncode == 0 and run.stderr.startswith(b"{"), run.stdout + run.stderr)
    report = msgspec.json.decode(run.stderr, type=Report)
    hold(not report.failed and not report.refused, report)
    return report
