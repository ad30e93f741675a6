"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from queen_actors.config import PREFIX, Settings

README = (Path(__file__).parents[2] / "README.md").read_text()
SECONDS = 120.0


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def test_every_setting_is_in_the_table() -> None:
    """Each field of the settings has its variable in the README, and no variable there is of no field."""
    named = set(re.findall(rf"{PREFIX}([A-Z_]+)", README)) - {"MEMORY"}
    assert named == {field.upper() for field in Settings.__struct_fields__}


def test_the_embedded_program_runs(tmp_path: Path) -> None:
    """The Trio program ends by itself, without an error, and leaves its data behind."""
    (program,) = [block for block in blocks("python") if "import open_broker" in block]
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert (run.returncode, run.stderr) == (0, "")
    assert (tmp_path / "queen-data").is_dir()


def test_the_blocking_program_runs(url: str) -> None:
    """It consumes what it pushed, and ends by itself, without an error."""
    (program,) = [block for block in blocks("python") if "import blocking" in block]
    program = program.replace("http://localhost:6632", url)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert (run.returncode, run.stdout, run.stderr) == (0, "6\n", "")


def test_the_published_sdk_runs(url: str) -> None:
    """The SDK's program consumes what it pushed."""
    (program,) = [block for block in blocks("python") if "from queen import Queen" in block]
    program = program.replace("http://localhost:6632", url)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert (run.returncode, run.stdout.splitlines()[0]) == (0, "{'task': 'send-email'}")


def test_the_curl_commands_work(url: str) -> None:
    """Each call is a success, and the pop finds what was pushed."""
    calls = [shlex.split(line) for block in blocks("") for line in block.splitlines() if line.startswith("curl ")]
    assert len(calls) == 6
    with httpx.Client(trust_env=False, timeout=60) as http:
        for _, _, address, *data in calls:
            target = address.replace("localhost:6632", url)
            answer = http.post(target, content=data[1]) if data else http.get(target)
            assert answer.status_code in (200, 201), (address, answer.text)
            if "/pop/" in address:
                assert [message["data"] for message in answer.json()["messages"]] == [{"amount": 120}]


@pytest.mark.parametrize("file", re.findall(r"`((?:docs|examples|benchmarks|queen_actors)/[\w./]+)`", README))
def test_every_file_that_is_named_exists(file: str) -> None:
    """A file that the README sends a reader to is there."""
    assert (Path(__file__).parents[2] / file).is_file()
