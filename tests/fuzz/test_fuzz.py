"""Inputs of every kind at the size of each change (larger by `python -m tests.fuzz`), and controls: a fault is seen."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from random import Random

import pytest
import schemathesis
import trio

from queen_actors.api.openapi import document
from queen_actors.api.routes import TABLE
from queen_actors.errors import BadRequest, InternalError
from queen_actors.wire.frames import encode

from . import decoders, http, socket, target
from .summary import Summary

SEED = 20


@pytest.mark.slow
def test_requests_are_answered_as_described(tmp_path: Path) -> None:
    """Good requests and bad ones for every route: no 5xx, no answer that the OpenAPI description does not have, bad
    ones refused, and a consumer beside them unharmed."""
    summary = http.fuzz(tmp_path, SEED, 500)
    assert summary.violations == []
    assert summary.inputs >= 500
    assert summary.figures["bystander"] > 0
    assert {"200", "400", "404"} <= set(summary.answers)


@pytest.mark.slow
def test_frames_harm_nobody(tmp_path: Path) -> None:
    """Frames of every kind, whole and broken: connections end as the protocol has it, nothing is left behind, and a
    consumer beside them is unharmed."""
    summary = socket.fuzz(tmp_path, SEED, 600)
    assert summary.violations == []
    assert summary.inputs >= 600
    assert summary.figures["bystander"] > 0
    assert {"close 1002", "close 1007"} <= set(summary.answers)


@pytest.mark.slow
def test_decoders_raise_what_they_say() -> None:
    """Ten seconds of bytes for everything that reads bytes."""
    summary = decoders.fuzz(SEED, 10)
    assert summary.violations == []
    assert summary.figures["turns"] >= 1


@pytest.mark.slow
def test_what_atheris_finds_is_told() -> None:
    """The control of the guided inputs: a decoder that raises a KeyError is seen, one that does not is not. Without
    atheris, which has no wheels for every machine, nothing was tried, and that is told."""
    summary = Summary("decoders", SEED)
    decoders.with_atheris(summary, ["control", "extend"], 4)
    if importlib.util.find_spec("atheris") is None:
        assert summary.not_run == ["atheris is not installed here"]
        assert not summary.violations
        return
    assert len(summary.violations) == 1
    assert summary.violations[0].startswith("control: raised KeyError(True)")
    assert summary.inputs > 1_000
    assert not summary.not_run


def test_every_decoder_reads_what_is_right(tmp_path: Path) -> None:
    """The control of the decoders' inputs: each has one that is read, or else only refusals would be tried."""
    for name, decoder in decoders.decoders(tmp_path).items():
        read = 0
        for data in decoder.seeds:
            try:
                decoder.call(data)
                read += 1
            except decoder.raises:
                pass
        assert read > 0, name


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    """What a violation names can be made again."""
    for name, decoder in decoders.decoders(tmp_path).items():
        assert decoders.make(Random(name), decoder) == decoders.make(Random(name), decoder)
    assert socket.conversation(Random("1:2")) == socket.conversation(Random("1:2"))


def test_the_same_seed_makes_the_same_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when other code is loaded by then: an unlucky input is no matter of an unrelated change."""
    schema = schemathesis.openapi.from_dict(json.loads(encode(document(TABLE))))

    def drawn() -> list[str]:
        found: list[str] = []
        for mode, operation in http.inputs_of(schema):
            if operation.label in ("POST /api/v1/locks", "GET /api/v1/dlq"):
                strategy = operation.as_strategy(generation_mode=mode)
                http.many(strategy, lambda case: found.append(f"{case.query} {case.body}"), SEED, 50)
        return found

    first = drawn()
    numbers = ", ".join(str(70_000_000_000 + number) for number in range(400))
    (tmp_path / "loaded_later.py").write_text(f"NUMBERS = ({numbers})\nTEXTS = ('one', 'other')\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_later")
    assert drawn() == first
    assert len(set(first)) > 50


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (BadRequest("told"), False),
        (BadRequest(""), True),
        (InternalError("ours"), True),
        (KeyError("odd"), True),
        (RecursionError(), True),
    ],
)
def test_a_decoder_that_raises_something_else_is_seen(raised: Exception, seen: bool) -> None:
    """The control: an error that is none of the wire, one without words, one that would be a 500."""

    def call(data: bytes) -> object:
        raise raised

    assert (decoders.wrong(decoders.Decoder(call, [b""]), b"") is not None) is seen


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        ({"event": "welcome"}, False),
        ({"id": 1, "ok": False, "status": 400, "error": {"error": "no"}}, False),
        ({"id": 1, "ok": False, "status": 500, "error": {"error": "no"}}, True),
        ({"event": "error", "status": 503, "error": {"error": "no"}}, True),
        ({"id": 1, "ok": False, "status": 400}, True),
        ({"more": 1}, True),
        ([], True),
    ],
)
def test_a_wrong_message_is_seen(message: object, seen: bool) -> None:
    """The control: a 5xx, a refusal without its error, and what is neither a reply nor an event."""
    text = json.dumps(message).encode()
    upgraded = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
    _, found = socket.judge(upgraded + bytes((0x81, len(text))) + text)
    assert bool(found) is seen
    assert socket.judge(b"HTTP/1.1 500 no\r\n\r\n")[1]
    assert socket.judge(upgraded + b"\x88\x02\x03\xf3")[1]


def test_a_harmed_bystander_complains(tmp_path: Path) -> None:
    """The control: a server that ends under it is told, by the bystander and by who looks at what is left."""
    rig = target.Target(tmp_path)
    with rig:
        while rig.delivered == 0:
            time.sleep(0.01)
        rig.kill_server()
        while not rig.complaints:
            time.sleep(0.01)
    assert any("bystander" in text for text in rig.violations)
    assert "the server ended" in rig.violations


def test_a_traceback_in_the_log_is_seen(tmp_path: Path) -> None:
    """The control: what the server wrote about a fault of its own is a violation."""
    rig = target.Target(tmp_path)
    with rig, (tmp_path / "server.log").open("a") as log:
        log.write("Traceback (most recent call last):\n")
    assert any("Traceback" in text for text in rig.violations)


def test_a_refused_upgrade_that_goes_on(tmp_path: Path) -> None:
    """A WebSocket that is asked for where there is none, by peers that send frames at once: each is refused, and the
    server says nothing about a fault."""
    with target.Target(tmp_path) as rig:
        for number in range(40):
            random = Random(number)
            opening = socket.handshake(random).replace(b"/api/v1/ws", b"/api/v1/elsewhere")
            sent = [socket.noise(random) for _ in range(5)]
            ending, wrong = trio.run(socket.converse, rig.port, opening, sent, random)
            assert wrong == []
            assert ending in ("refused 404", "refused 400", "cut off")
    assert rig.violations == []
