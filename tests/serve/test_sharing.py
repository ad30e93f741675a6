"""What peers get alike is spelled and framed once, and what is pending for a peer leaves in one write."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from queen_actors.actors.subscription import Delivery
from queen_actors.actors.tail import Gap
from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import Record
from queen_actors.domain.watch import Change, Changes
from queen_actors.serve import sharing as module
from queen_actors.serve.connection import Replayed
from queen_actors.serve.outbox import Outbox
from queen_actors.serve.sharing import Sharing
from queen_actors.wire import watch as wire_watch
from queen_actors.wire.socket import close_frame

ROUND = (Claim("q", "a", 1, 1, (Record(0, 1, "i", "t", b"1"),)), Claim("q", "b", 2, 1, (Record(5, 1, "j", "u", b"2"),)))


def texts(pieces: bytes) -> list[dict[str, object]]:
    """The messages of short unmasked frames."""
    found: list[dict[str, object]] = []
    while pieces:
        size, begin = pieces[1], 2
        if size == 126:
            size, begin = int.from_bytes(pieces[2:4], "big"), 4
        found.append(json.loads(pieces[begin : begin + size]))
        pieces = pieces[begin + size :]
    return found


def test_a_round_is_framed_once_for_a_name() -> None:
    """Tails that have the same name for it get the very same bytes; one of another name gets its own."""
    sharing = Sharing()
    with sharing.reader(), sharing.reader():
        first, again = (list(sharing.tailed("t", ROUND)) for _ in range(2))
        other = list(sharing.tailed("u", ROUND))
    assert all(mine is theirs for mine, theirs in zip(first, again, strict=True))
    assert [event["sub"] for event in texts(b"".join(first))] == ["t", "t"]
    assert [event["sub"] for event in texts(b"".join(other))] == ["u", "u"]
    assert [event["partition"] for event in texts(b"".join(first))] == ["a", "b"]


def test_what_was_found_alone_is_not_kept() -> None:
    """Neither for a reader that is alone, nor what one tail has read for itself, gaps among it."""
    sharing = Sharing()
    with sharing.reader():
        list(sharing.tailed("t", ROUND))
        with sharing.reader():
            pieces = b"".join(sharing.tailed("t", [Gap("a", 1, 0, 4), *ROUND]))
    assert [event["event"] for event in texts(pieces)] == ["gap", "messages", "messages"]
    assert not sharing._rounds


def test_rounds_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last few, and of each no more than so many bytes, however many names peers have."""
    monkeypatch.setattr(module, "ROUND_BYTES", 2_000)
    sharing = Sharing()
    with sharing.reader(), sharing.reader():
        for number in range(50):
            for name in range(50):
                assert list(sharing.tailed(f"{name}", (ROUND[0],) * (number + 1)))
    assert len(sharing._rounds) == module.ROUNDS
    for kept in sharing._rounds.values():
        assert sum(len(piece) for pieces in kept.pieces.values() for piece in pieces) <= 2_000


def test_groups_share_the_text_of_a_message() -> None:
    """What differs is the envelope, the lease and the attempt."""
    sharing = Sharing()
    with sharing.reader(), sharing.reader():
        for group in "gh":
            pieces = b"".join(sharing.delivered("s", [Delivery(f"lease-{group}", group, claim) for claim in ROUND]))
            for event in texts(pieces):
                assert event["consumerGroup"] == group
                messages = event["messages"]
                assert isinstance(messages, list)
                assert {(message["consumerGroup"], message["leaseId"]) for message in messages} == {
                    (group, f"lease-{group}")
                }
        assert len(sharing.messages._known) == 2


def test_a_change_is_encoded_once_for_all_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten watches of a key cost one encoding; the event is what one watch alone is told."""
    calls: list[Change] = []
    spell = wire_watch._change
    monkeypatch.setattr(wire_watch, "_change", lambda change: calls.append(change) or spell(change))
    sharing = Sharing()
    news = [
        Changes((Change("put", "n", 'k"', b"[1]", 7, 10**15, 7),), coalesced=coalesced) for coalesced in (False, True)
    ]
    with sharing.watch():
        alone = b"".join(sharing.watched("w\\", news[:1]))
        assert len(calls) == 1
        with sharing.watch():
            told = [b"".join(sharing.watched("w\\", news[:1])) for _ in range(10)]
            assert len(calls) == 2
            assert texts(b"".join(sharing.watched("w\\", news[1:])))[0]["coalesced"] is True
    assert set(told) == {alone}


@asynccontextmanager
async def outbox() -> AsyncGenerator[tuple[Outbox, socket.socket]]:
    """Over a real socket, its writer at rest."""
    ours, theirs = trio.socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with theirs:
        async with trio.open_nursery() as nursery:
            found = Outbox(Replayed(trio.SocketStream(ours)))
            nursery.start_soon(found.run)
            await wait_all_tasks_blocked()
            yield found, theirs
            nursery.cancel_scope.cancel()
        ours.close()


async def test_what_is_pending_is_written_at_once() -> None:
    """In one write, before anybody else runs, what waited before it first."""
    async with outbox() as (box, theirs):
        box.put(b"one ")
        box.put_now([b"two ", b"three"])
        assert box.size == 0
        assert await theirs.recv(100) == b"one two three"


async def test_what_the_kernel_does_not_take_comes_later() -> None:
    """The writer goes on in the middle of a frame, a ping does not come there, and the rest follows in order."""
    frames = [bytes([65 + number]) * 50_000 for number in range(20)]
    async with outbox() as (box, theirs):
        box.put_now(frames)
        assert 0 < box.size < 1_000_000
        box.put(b"!", urgent=True)
        box.put_now([b"end"])
        box.finish(close_frame(1000, ""))
        received = b""
        with trio.fail_after(20):
            while not received.endswith(close_frame(1000, "")):
                received += await theirs.recv(65_536)
        assert box.size == 0
    before, _, after = received.partition(b"!")
    assert before + after == b"".join(frames) + b"end" + close_frame(1000, "")
    assert len(before) % 50_000 == 0


async def test_a_peer_that_is_gone_is_met_by_the_writer() -> None:
    """A write at once never raises."""
    async with outbox() as (box, theirs):
        theirs.close()
        for _ in range(3):
            box.put_now([b"x" * 100_000])
            await wait_all_tasks_blocked()
        assert box.broken.is_set()
        assert box.finished
