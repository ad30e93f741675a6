"""`queen-actors demo`: the whole story holds, and one that does not hold is told and fails."""

from __future__ import annotations

import pytest

from queen_actors import Queen, demo
from queen_actors.cli import main


def test_every_claim_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo ends with code 0, every claim is told as held, and nothing is coloured when nobody looks."""
    assert main(["demo"]) == 0
    told, errors = capsys.readouterr()
    claims = [line for line in told.splitlines() if line.startswith("  ok  ")]
    assert told.splitlines()[-1].startswith(f"{len(claims)} claims in ")
    assert len(claims) > 25
    assert "\x1b" not in told
    assert errors == ""


def test_a_claim_that_does_not_hold_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a report that is written without its guard, the demo says what it read back and ends with code 1."""

    async def unguarded(queen: Queen, lock: object, worker: str) -> object:
        return await (
            queen.transaction()
            .queue("reports")
            .push({"transactionId": f"report-by-{worker}", "data": {"by": worker}})
            .kv.put("reports", demo.DAY, {"by": worker}, forever=True)
            .commit()
        )

    monkeypatch.setattr(demo, "_report", unguarded)
    assert main(["demo"]) == 1
    told = capsys.readouterr().out
    assert "  NO  A wrote nothing: no report, no key; read back: " in told
    assert "DID NOT HOLD" in told.splitlines()[-1]


def test_colours_for_a_terminal() -> None:
    """On a terminal a chapter is bold, and a claim is green or red."""
    told: list[str] = []
    teller = demo.Teller(told.append, colours=True)
    teller.chapter("Chapter")
    teller.claim("this holds", True, None)
    teller.claim("this does not", False, 42)
    assert told == [
        "",
        "\x1b[1mChapter\x1b[0m",
        "  \x1b[32mok\x1b[0m  this holds",
        "  \x1b[31mNO\x1b[0m  this does not; read back: 42",
    ]
    assert (teller.claims, teller.broken) == (2, 1)
