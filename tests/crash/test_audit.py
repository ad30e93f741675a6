"""The auditor can fail: each kind of broken promise, planted in an honest history, is reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from .audit import audit
from .campaign import Campaign, kills
from .linear import judge_linear
from .story import FIRED_AT, Story, item, message

TRIES = 4
Plant = Callable[[Story], object]


def verdict(story: Story, *, drained: bool = True) -> list[str]:
    story.read()
    return audit(story.history, drained=drained)


def test_an_honest_history_passes() -> None:
    """Nothing is reported where nothing is wrong, however unsure some answers are."""
    assert verdict(Story()) == []
    for name in (
        "push",
        "put",
        "put again",
        "incr",
        "won",
        "acquire",
        "settle m9",
        "schedule t1",
        "cancel t2",
        "dead g2",
        "pair again",
        "pair in a transaction",
    ):
        story = Story()
        story.named[name].status = None
        assert verdict(story) == [], name


def test_a_pause_longer_than_the_time_for_an_answer_may_cost_it() -> None:
    """A call during which the process stood still so long may be told that there was no answer in time; another not."""
    for waited, pause, honest in ((31.0, 30.0, True), (31.0, 5.0, False), (29.0, 28.0, False)):
        story = Story()
        call = story.named["put again"]
        call.status, call.sent = 503, call.answered - waited
        story.history.pauses.append((call.answered - pause, call.answered))
        told = [text for text in verdict(story) if "503" in text]
        assert (not told) is honest, (waited, pause, told)


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    """A push, a put, a timer and a whole transaction whose answers were lost may be missing, whole."""
    story = Story()
    story.push("last push", item("orders", "a", "m7"))
    story.named["last push"].status = None
    story.logs["orders", "a"].pop()
    story.named["put again"].status = None
    story.rows["alpha", "w0-k0"] = ({"n": 1}, 1)
    story.named["settle m9"].status = None
    story.logs["results", "r0"].pop()
    story.logs["soon", "s"].pop()
    del story.rows["done", "m9"]
    assert verdict(story, drained=False) == []
    story = Story()
    story.named["settle m9"].status = None
    story.logs["results", "r0"].pop()
    story.logs["soon", "s"].pop()
    del story.rows["done", "m9"]
    (told,) = verdict(story)  # nothing may be missing any more once everything was drained
    assert "settled by no transaction" in told


def test_an_ack_in_time_is_taken() -> None:
    """Also in a pause that ends before the lease does; a refused one may come at any time."""
    for after, paused in ((0.8, False), (0.6, True)):
        story = Story()
        _acked_late(story, after, paused=paused)
        assert verdict(story) == []
    story = Story()
    _acked_late(story, 1.2)
    for group in ("g1", "g2"):
        story.named[f"late ack {group}"].answer[0]["success"] = False
    assert verdict(story) == []


def _delivered_again(story: Story) -> None:
    story.pop("again", "orders", "g1", message("m1", 0, "L9", "1", "a", 2), message("m2", 1, "L9", "1", "a", 2))


def _two_leases(story: Story) -> None:
    story.push("m6", item("orders", "b", "m6"))
    for lease, attempt in (("X1", 1), ("X2", 2)):
        story.pop(lease, "orders", "g1", message("m6", 0, lease, "3", "b", attempt))
    story.pop("X3", "orders", "g2", message("m6", 0, "X3", "3", "b"))


def _skipped(story: Story) -> None:
    story.push("m6", item("orders", "b", "m6"), item("orders", "b", "m7"))
    for group in ("g1", "g2"):
        story.pop(group, "orders", group, message("m7", 1, f"X{group}", "3", "b"))


def _attempt_forgotten(story: Story) -> None:
    story.push("m6", item("orders", "b", "m6"))
    for group in ("g1", "g2"):
        for lease in ("X1", "X2"):
            sent = story.pop(lease, "orders", group, message("m6", 0, lease + group, "3", "b"))
            story.ack("nack", group, (sent.answer["messages"][0], "failed"))


def _acked_late(story: Story, after: float, *, paused: bool = False) -> None:
    """The lease is of a second. In a pause of the process the ack is sent in time, and decided afterwards."""
    story.push("m6", item("orders", "b", "m6"))
    story.tail("tail b", "orders", "b", 0, "m6")
    for group in ("g1", "g2"):
        popped = message("m6", 0, f"X{group}", "3", "b")
        story.pop(f"late {group}", "orders", group, popped)
        story.wait(0.1 if paused else after)
        if paused:
            story.pause(after)
        story.ack(f"late ack {group}", group, (popped, "completed"))


def _payload_changed(story: Story) -> None:
    story.logs["orders", "a"][0] = item("orders", "a", "m1", more=1)


def _half(story: Story, *parts: str) -> None:
    if "result" in parts:
        story.logs["results", "r0"].pop()
    if "key" in parts:
        del story.rows["done", "m9"]
    if "timer" in parts:
        story.logs["soon", "s"].pop()


def _unknown_half(story: Story, *parts: str) -> None:
    story.named["settle m9"].status = None
    _half(story, *parts)


def _acked_without_result(story: Story) -> None:
    """The result was read back, and the work comes once more."""
    story.read()
    story.history.round += 1
    story.pop("again", "work", "tx", message("m9", 1, "W9", "7", "w0", 2))


def _token_again(story: Story) -> None:
    story.named["renew"].answer["results"][0]["token"] = 5


def _granted_twice(story: Story) -> None:
    (result,) = story.named["held"].answer["results"]
    result |= {"acquired": True, "slot": 0, "token": 60}
    story.named["report"].answer["results"][2]["version"] = 61
    story.named["second report"].answer["results"][2]["version"] = 62
    for name, version in (("settle m8", 63), ("settle m9", 64)):
        story.named[name].answer["results"][2]["version"] = version


def _token_back(story: Story) -> None:
    story.logs["reports", "l0#0"][1]["payload"]["token"] = 5


def _appeared(story: Story) -> None:
    """The first reading after the death does not show what the second one does."""
    story.push("late", item("orders", "b", "m6"))
    story.named["late"].status = None
    kept = story.logs["orders", "b"].pop()
    story.read()
    story.logs["orders", "b"].append(kept)


def _came_back(story: Story) -> None:
    story.named["after delete"].answer = {"messages": [{**message("s0", 0, "S", "9", "s"), "data": 0}]}


def _early(story: Story) -> None:
    story.named["schedule t1"].answer["results"][0]["deliverAt"] = FIRED_AT.replace("01.000000Z", "01.000001Z")


def _missed_change(story: Story) -> None:
    op = {"op": "incr", "ns": "counters", "key": "c0", "delta": 1, "min": 0, "max": 40, "forever": True}
    story.kv("incr more", (op, {"applied": True, "value": 3, "version": 30}))
    story.rows["counters", "c0"] = (3, 30)


def _meanwhile(story: Story, writer: str, *rows: tuple[str, int] | None) -> None:
    """Somebody reads a pair while this call is under way."""
    calls, call, read = story.history.calls, story.named[writer], story.see_pair("meanwhile", *rows)
    read.sent, read.answered = call.sent + 0.003, call.sent + 0.006
    calls.insert(calls.index(call) + 1, calls.pop())


def _half_a_batch(story: Story) -> None:
    _meanwhile(story, "pair again", ("m21", 13), ("m20", 12))


def _half_a_first_batch(story: Story) -> None:
    _meanwhile(story, "pair", None, ("m20", 12))


def _half_a_transaction(story: Story) -> None:
    """Under load, and of the keys alone: all of it is there when the process dies."""
    _meanwhile(story, "pair in a transaction", ("m21", 13), ("m22", 16))


def _half_after_a_start(story: Story) -> None:
    story.named["pair in a transaction"].status = None
    story.rows["pairs", "p0-a"] = ("m21", 13)


def _pair_back(story: Story) -> None:
    """Both keys are as they were before an answered call: a batch that was forgotten whole."""
    story.named["pair page"].answer["results"] = story.named["pair read"].answer["results"] = []
    story.named["pair page"].status = story.named["pair read"].status = None
    story.rows |= {("pairs", "p0-a"): ("m21", 13), ("pairs", "p0-b"): ("m21", 14)}


def _pair_seen_back(story: Story) -> None:
    """As somebody has seen it; nobody knows when it was written."""
    story.named["pair in a transaction"].status = None
    story.see_pair("back", ("m21", 13), ("m21", 14))


def _pair_without_message(story: Story) -> None:
    """The answer was lost, the pair is there and its message is not."""
    story.named["pair in a transaction"].status = None
    del story.logs["events", "p1"]
    _not_delivered(story)


def _not_delivered(story: Story) -> None:
    """Nobody was given the message of the pair's transaction."""
    for name in ("take m22", "m22 g1", "m22 g2"):
        story.named[name].answer = None
    for group in ("g1", "g2"):
        story.history.calls.remove(story.named[f"m22 ack {group}"])


def _unread(story: Story) -> None:
    for name in ("pair read", "pair page"):
        story.history.calls.remove(story.named[name])


def _message_without_pair(story: Story) -> None:
    """The answer was lost, the message is there and the pair is as it was."""
    story.named["pair in a transaction"].status = None
    _unread(story)
    story.rows |= {("pairs", "p0-a"): ("m21", 13), ("pairs", "p0-b"): ("m21", 14)}


def test_a_pair_is_as_one_whole_call_left_it() -> None:
    """A reader sees all of a call that is under way, or nothing; one whose answer was lost may be missing, whole."""
    stories = [Story(), Story(), Story()]
    _meanwhile(stories[0], "pair again", ("m20", 11), ("m20", 12))
    _meanwhile(stories[1], "pair again", ("m21", 13), ("m21", 14))
    _message_without_pair(stories[2])
    del stories[2].logs["events", "p1"]
    _not_delivered(stories[2])
    for story in stories:
        assert verdict(story) == []
        assert judge_linear(story.history).failures == []


PLANTED: dict[str, tuple[Plant, str]] = {
    "an acknowledged push is lost": (lambda story: story.logs["orders", "a"].pop(), "m2 was acknowledged at offset 1"),
    "an offset holds another message": (lambda story: story.logs["orders", "a"].reverse(), "offset 0 was seen as m1"),
    "a payload changed": (_payload_changed, "not what was pushed"),
    "a message nobody pushed": (
        lambda story: story.logs["orders", "a"].append(item("orders", "a", "ghost")),
        "never asked for",
    ),
    "a message twice": (
        lambda story: story.logs["events", "p0"].append(item("events", "p0", "m5")),
        "m5 is there twice",
    ),
    "a push that came later": (_appeared, "while nobody pushed it"),
    "dedup forgets": (
        lambda story: story.named["push again"].answer[0].update(status="queued"),
        "queued a second time",
    ),
    "dedup tells another offset": (
        lambda story: story.named["push again"].answer[0].update(offset=7),
        "answered with offsets 0 and 7",
    ),
    "acked and delivered again": (_delivered_again, "0 was delivered again; 1 was acked"),
    "a group skips a message": (_skipped, "only -1 can have been acked"),
    "two leases at once": (_two_leases, "was leased"),
    "an ack after its lease is taken": (lambda story: _acked_late(story, 1.2), "was taken"),
    "an ack after a pause is taken": (lambda story: _acked_late(story, 1.2, paused=True), "was taken"),
    "attempts begin anew": (_attempt_forgotten, "attempt 1, then 1"),
    "a group never gets a message": (
        lambda story: story.named.pop("pop g1").answer["messages"].pop(),
        "offsets [1] were never delivered",
    ),
    "committed at delivery, and again": (
        lambda story: story.pop("twice", "events", "auto", message("m5", 0, "", "2", "p0"), autoAck="true"),
        "delivered again after a commit at delivery",
    ),
    "a dead letter is lost": (lambda story: story.dead.clear(), "dead letters [1] are lost"),
    "a dead letter twice": (lambda story: story.dead.extend(story.dead), "dead-lettered twice"),
    "a key has an older value": (lambda story: story.rows.update({("alpha", "w0-k0"): ({"n": 1}, 1)}), "was answered"),
    "a key is lost": (lambda story: story.rows.pop(("alpha", "w0-k0")), "was answered"),
    "a deleted key is back": (lambda story: story.rows.update({("beta", "w0-k1"): (1, 99)}), "was answered"),
    "a version falls": (lambda story: story.put("low", "alpha", "w0-k2", 1, 8), "got version 8 in round 1, after 16"),
    "a version twice": (lambda story: story.put("same", "alpha", "w0-k2", 1, 10), "version 10 was given to"),
    "a counter lost an increment": (lambda story: story.rows.update({("counters", "c0"): (0, 3)}), "possible are 2..2"),
    "a counter passes its bound": (
        lambda story: story.named["incr"].answer["results"][0].update(value=41),
        "went to 41",
    ),
    "two winners": (
        lambda story: story.named["beaten"].answer["results"][0].update(applied=True, value="1-1", version=99),
        "race r1-0",
    ),
    "a token is used again": (_token_again, "version 5 was given to"),
    "two holders of one permit": (_granted_twice, "60 was granted while 6 was held"),
    "a guarded resource goes back": (_token_back, "lies behind one under 6"),
    "a timer fires twice": (
        lambda story: story.logs["fired", "t0"].append(item("fired", "t0", "t1")),
        "t1 fired 2 times",
    ),
    "a timer is lost": (lambda story: story.logs["fired", "t0"].pop(), "t4 is lost"),
    "a timer fires early": (_early, "before"),
    "a cancelled timer fires": (
        lambda story: story.logs["fired", "t0"].append(item("fired", "t0", "t2")),
        "t2 was cancelled, and fired",
    ),
    "a moved timer fires as it was": (
        lambda story: story.logs["fired", "t0"].append(item("fired", "t0", "t3")),
        "t3 was rescheduled, and fired",
    ),
    "half a transaction, without its message": (lambda story: _unknown_half(story, "result"), "half a transaction"),
    "half a transaction, without its key": (lambda story: _unknown_half(story, "key"), "half a transaction"),
    "half a transaction, without its timer": (lambda story: _unknown_half(story, "timer"), "half a transaction"),
    "half a transaction, without its ack": (_acked_without_result, "delivered again: half a transaction"),
    "a whole transaction is lost": (lambda story: _half(story, "result", "key", "timer"), "transaction is lost"),
    "a refused transaction left something": (
        lambda story: story.named["second report"].answer.update(success=False),
        "second-report at 1 was never asked for",
    ),
    "a deleted message is back": (_came_back, "came back after a delete"),
    "a deleted queue keeps its dedup": (
        lambda story: story.named["scratch again"].answer[0].update(status="duplicate"),
        "after a delete a push was answered",
    ),
    "a delivered message is gone": (
        lambda story: story.pop("pop g3", "orders", "g3", message("m3", 2, "L9", "1", "a")),
        "m3 was acknowledged at offset 2, and there is None",
    ),
    "a tail leaves one out": (
        lambda story: story.named["tail"].answer["messages"].pop(0),
        "offset 1 came where 0 was to come",
    ),
    "a tail tells one twice": (
        lambda story: story.tail("tail again", "orders", "a", 1, "m2"),
        "offset 1 came where 2 was to come",
    ),
    "a tail tells what is not durable": (
        lambda story: story.tail("tail more", "orders", "a", 2, "m3"),
        "m3 was acknowledged at offset 2, and there is None",
    ),
    "a tail tells another payload": (
        lambda story: story.named["tail"].answer["messages"][0].update(data=7),
        "with a payload that nobody pushed",
    ),
    "a tail does not come to the end": (
        lambda story: story.named["tail"].answer["messages"].pop(),
        "it came to 1, and there are 2",
    ),
    "a watch goes back": (lambda story: story.watch("watch again", "c0", 2, 3), "version 3 of ('counters', 'c0') came"),
    "a watch tells another value": (
        lambda story: story.named["watch"].answer["changes"][0].update(value=7),
        "was told as b'7', and is b'2'",
    ),
    "a watch tells what is not durable": (
        lambda story: story.watch("watch more", "c0", 4, 9),
        "it was told (9, b'4'), and then it was (3, b'2')",
    ),
    "a watch does not come to the end": (_missed_change, "it came to 3, and there is 30"),
    "half a batch is seen": (_half_a_batch, """saw b'"m21"' in one key and b'"m20"' in the other"""),
    "half a batch is seen where nothing was": (_half_a_first_batch, "saw None in one key"),
    "half a transaction is seen": (_half_a_transaction, """saw b'"m21"' in one key and b'"m22"' in the other"""),
    "half a transaction is there after a start": (_half_after_a_start, "in one key and"),
    "a pair goes back": (_pair_seen_back, "it went back to version 13 after 15"),
    "a pair holds what nobody wrote": (
        lambda story: story.see_pair("ghost", ("m99", 40), ("m99", 41)),
        "which nobody had written",
    ),
    "a pair is there without the message of its transaction": (_pair_without_message, "half a transaction"),
    "a broker that lives refuses": (
        lambda story: setattr(story.named["put again"], "status", 503),
        "kv was answered 503",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_reported(fault: str) -> None:
    """The auditor says what is wrong, in words that name it."""
    plant, words = PLANTED[fault]
    story = Story()
    plant(story)
    told = verdict(story)
    assert any(words in text for text in told), told


NOT_LINEAR: dict[str, tuple[Plant, str]] = {
    "an acknowledged write is lost": (
        lambda story: story.rows.update({("alpha", "w0-k0"): ({"n": 1}, 1)}),
        "key/alpha/w0-k0",
    ),
    "a write comes from nowhere": (lambda story: story.rows.update({("alpha", "w0-k0"): (3, 40)}), "key/alpha/w0-k0"),
    "a counter counts wrong": (
        lambda story: story.named["incr"].answer["results"][0].update(value=3),
        "key/counters/c0",
    ),
    "two win a race": (
        lambda story: story.named["beaten"].answer["results"][0].update(applied=True, value="1-1", version=41),
        "key/races/r1-0",
    ),
    "two hold a lock": (
        lambda story: story.named["held"].answer["results"][0].update(acquired=True, slot=0, token=60),
        "lock/l0",
    ),
    "a guard holds under a token that was replaced": (
        lambda story: story.named["second report"].body["kv"][0].update(expect=5),
        "lock/l0",
    ),
    "half a batch is seen": (_half_a_batch, "pair/p0"),
    "half a batch is seen where nothing was": (_half_a_first_batch, "pair/p0"),
    "half a transaction is seen": (_half_a_transaction, "pair/p0"),
    "half a transaction is there after a start": (_half_after_a_start, "pair/p0"),
    "a pair goes back": (_pair_seen_back, "pair/p0"),
    "a pair goes back over a death": (_pair_back, "pair/p0"),
    "a message is there without the pair of its transaction": (_message_without_pair, "pair/p0"),
}


def test_an_honest_history_is_linearizable() -> None:
    """Also when answers were lost."""
    for name in (
        "",
        "put",
        "put again",
        "incr",
        "won",
        "acquire",
        "renew",
        "report",
        "settle m9",
        "pair again",
        "pair in a transaction",
    ):
        story = Story()
        if name:
            story.named[name].status = None
        story.read()
        report = judge_linear(story.history)
        assert report.failures == [], name
        assert report.operations > 30


@pytest.mark.parametrize("fault", NOT_LINEAR)
def test_what_is_not_linearizable_is_reported(fault: str) -> None:
    """By the name of its key or lock."""
    plant, words = NOT_LINEAR[fault]
    story = Story()
    plant(story)
    story.read()
    told = judge_linear(story.history).failures
    assert any(text.startswith(f"{words} is not linearizable") for text in told), told
    assert all(text.startswith(words) or (words == "pair/p0" and "pairs/p0-" in text) for text in told), told


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_batch_that_is_taken_apart_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: in a broker that does the operations of a call one after the other, somebody reads half a pair."""
    monkeypatch.setattr(Campaign, "planted", "batch_not_atomic")
    told: list[str] = []
    for number in range(TRIES):
        place = tmp_path / f"try-{number}"
        place.mkdir()
        told += (await kills(place, random.getrandbits(32), 6)).violations
        if any(text.startswith("pair ") and "in the other" in text for text in told):
            return
    pytest.fail(f"it was not found: {told}")
