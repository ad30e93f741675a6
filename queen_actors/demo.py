"""`queen-actors demo`: what the broker does, in a temporary directory, told as it happens.

Each claim is compared with what was read back from the broker; one that does not hold is told too, and the demo fails.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any

import trio

from .api import Api
from .broker import running
from .client import Queen, connect
from .client.local import LocalTransport
from .client.lock import Lock
from .client.opening import serving
from .config import Settings
from .serve.listen import serve
from .storage import store_of

PATIENCE_SECONDS = 10.0  # for what must happen at once; a demo that hangs shows nothing
PERMIT_SECONDS = 1  # the shortest lifetime of a lock: how long the demo pauses worker A
DAY = "2026-10-22"


class Teller:
    """Prints the story, and remembers whether all of it was true. Colours only for a terminal."""

    def __init__(self, write: Callable[[str], object] = print, colours: bool = False) -> None:
        self._write = write
        self._colours = colours
        self.claims = 0
        self.broken = 0

    def chapter(self, title: str) -> None:
        self._write("")
        self._write(self._paint("1", title))

    def tell(self, text: str) -> None:
        self._write(f"      {text}")

    def claim(self, text: str, holds: bool, seen: object) -> None:
        """One thing that must be so, and what was read back."""
        self.claims += 1
        if holds:
            self._write(f"  {self._paint('32', 'ok')}  {text}")
            return
        self.broken += 1
        self._write(f"  {self._paint('31', 'NO')}  {text}; read back: {seen!r}")

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def run() -> int:
    """Tell the story on stdout; the exit code: 0, or 1 when something of it did not hold."""
    teller = Teller(lambda text: print(text, flush=True), sys.stdout.isatty())
    logging.getLogger("queen_actors").setLevel(logging.ERROR)  # a lost lock, otherwise a warning, is part of the story
    seconds = trio.run(_timed, teller)
    verdict = f"{teller.broken} DID NOT HOLD" if teller.broken else "all held"
    teller.chapter(f"{teller.claims} claims in {seconds:.1f} s, {verdict}")
    return 1 if teller.broken else 0


async def _timed(teller: Teller) -> float:
    start = trio.current_time()
    with tempfile.TemporaryDirectory(prefix="queen-actors-demo-") as directory:
        await story(teller, directory)
    return trio.current_time() - start


async def story(teller: Teller, directory: str) -> None:
    """Everything, on a broker in `directory`, which is opened twice."""
    teller.chapter("A broker inside this process")
    teller.tell(f"its log is in {directory}")
    async with embedded(directory) as (queen, address):
        before = await first_life(teller, queen, address)
    teller.chapter("The broker is closed, and opened again")
    async with embedded(directory) as (queen, _):
        await second_life(teller, queen, before)


@asynccontextmanager
async def embedded(directory: str) -> AsyncGenerator[tuple[Queen, str]]:
    """A broker on `directory` in this process: a client of it, and the address at which it serves the loopback."""
    settings = Settings(data=directory, port=0)
    shutdown = trio.Event()
    async with running(store_of(settings), settings) as broker, trio.open_nursery() as nursery:
        (address,) = await nursery.start(partial(serve, broker, settings, shutdown=shutdown))
        async with serving(LocalTransport(broker, Api(broker, settings))) as queen:
            yield queen, address
        shutdown.set()


async def first_life(teller: Teller, queen: Queen, address: str) -> dict[str, Any]:
    """The chapters before the restart; what the ones after it must find again."""
    with trio.fail_after(PATIENCE_SECONDS):
        found = await order_step(teller, queen)
    await cart(teller, queen)
    await counter(teller, queen)
    with trio.fail_after(PATIENCE_SECONDS):
        found["token"] = await frozen_holder(teller, queen)
    with trio.fail_after(PATIENCE_SECONDS):
        await fired_timer(teller, queen, address)
    return found


async def order_step(teller: Teller, queen: Queen) -> dict[str, Any]:
    teller.chapter("An order's step: its event, its key and tomorrow's reminder commit together")
    await queen.queue("orders").partition("order-9137").push({"transactionId": "o-9137", "data": {"amount": 120}})
    (order,) = await queen.queue("orders").pop(wait=True)
    teller.tell(f"a worker has order-9137: {order.data}")
    committed = await (
        queen.transaction()
        .ack(order)
        .queue("order-events")
        .partition("order-9137")
        .push({"transactionId": "paid-9137", "data": {"event": "paid"}})
        .kv.put("orders", "9137", {"state": "paid", "amount": 120}, forever=True)
        .timer("order-events")
        .key("reminder/9137")
        .partition("order-9137")
        .payload({"event": "remind"})
        .after("24h")
        .schedule()
        .commit()
    )
    teller.claim("the transaction committed", bool(committed), committed)
    state = await queen.kv.get("orders", "9137")
    teller.claim("the key says paid", state.found and state.value == {"state": "paid", "amount": 120}, state)
    events = await queen.queue("order-events").group("audit").pop(wait=True)
    teller.claim("the event is in its partition", [event.data for event in events] == [{"event": "paid"}], events)
    for event in events:
        await event.ack()
    reminder = await queen.timers.peek("order-events", "reminder/9137")
    hours = (_instant(reminder.deliver_at) - _instant(state.updated_at)).total_seconds() / 3600
    teller.claim(f"the reminder is due in {hours:.1f} hours", reminder.found and round(hours, 3) == 24, reminder)
    left = await queen.queue("orders").pop()
    teller.claim("the order itself is done", left == [], left)
    return {"state": state, "reminder": reminder}


async def cart(teller: Teller, queen: Queen) -> None:
    teller.chapter("A cart, saved by version")
    await queen.kv.put("carts", "customer-42", {"items": 3}, ttl="7d")
    seen = await queen.kv.get("carts", "customer-42")
    teller.tell(f"two workers read {seen.value} at version {seen.version}")
    first = await queen.kv.put("carts", "customer-42", {"items": 4}, ttl="7d", expect=seen["version"])
    teller.claim("the first to write with that version is let through", first.applied, first)
    stale = await queen.kv.put("carts", "customer-42", {"items": 5}, ttl="7d", expect=seen["version"])
    refused = not stale.applied and stale.reason == "version" and stale.value == {"items": 4}
    teller.claim("the second is refused, and shown what is there now", refused, stale)
    now = await queen.kv.get("carts", "customer-42")
    kept = now.value == {"items": 4} and now.version == first.version
    teller.claim("nobody overwrote what they never saw", kept, now)


async def counter(teller: Teller, queen: Queen) -> None:
    teller.chapter("A counter with a ceiling: three calls a minute")
    hits = [await queen.kv.incr("limits", "api:customer-42", 1, max=3, ttl="1m") for _ in range(4)]
    counted = [hit.value for hit in hits[:3]] == [1, 2, 3] and all(hit.applied for hit in hits[:3])
    teller.claim("three calls count 1, 2, 3", counted, hits[:3])
    teller.claim("the fourth does not apply", not hits[3].applied and hits[3].reason == "limit", hits[3])
    now = await queen.kv.get("limits", "api:customer-42")
    teller.claim("the counter stands at its ceiling", now.value == 3, now)


async def frozen_holder(teller: Teller, queen: Queen) -> int:
    """The figure of the documentation; returns the token of the last holder."""
    teller.chapter("A lock whose holder freezes, and the guard that keeps it out")
    teller.tell("In one process the holder cannot be stopped, so its handle is: its clock stands still and it does")
    teller.tell("not renew. To A no time passes, as to a process that was paused.")
    stopped_at = trio.current_time()
    a = queen.lock("daily-report", PERMIT_SECONDS, auto_renew=False, clock=lambda: stopped_at)
    b = queen.lock("daily-report", 30)
    teller.claim(f"A takes the lock for {PERMIT_SECONDS} s", await a.acquire(), a)
    token_a = a.token or 0
    teller.claim("B does not get it", not await b.acquire(), b)
    teller.tell("A freezes past its lifetime ...")
    teller.claim("B takes over", await b.acquire(wait=PERMIT_SECONDS + 5), b)
    token_b = b.token or 0
    teller.claim(f"B's token {token_b} is higher than A's {token_a}", token_b > token_a, (token_a, token_b))
    teller.claim("A still believes that it holds the lock", a.held, a)

    late = await _report(queen, a, "A")
    lost = not late and late.reason == "kv_precondition"
    teller.claim(f"A's guarded commit is rolled back: {late.reason} ({late.kv_reason})", lost, late)
    reports = await queen.queue("reports").group("early-reader").pop()
    marker = await queen.kv.get("reports", DAY)
    teller.claim("A wrote nothing: no report, no key", reports == [] and not marker.found, (reports, marker))
    teller.claim("A's handle knows now that the lock is lost", a.lost_reason == "guard" and not a.held, a)

    stands = await _report(queen, b, "B")
    teller.claim("B's guarded commit stands", bool(stands), stands)
    reports = await queen.queue("reports").group("reader").pop(wait=True)
    writers = [report.data["by"] for report in reports]
    teller.claim("there is one report, by B", writers == ["B"], reports)
    await b.release()
    return token_b


async def _report(queen: Queen, lock: Lock, worker: str) -> Any:
    return await (
        queen.transaction()
        .guard(lock)
        .queue("reports")
        .push({"transactionId": f"report-{DAY}", "data": {"day": DAY, "by": worker}})
        .kv.put("reports", DAY, {"by": worker}, forever=True)
        .commit()
    )


async def fired_timer(teller: Teller, queen: Queen, address: str) -> None:
    teller.chapter(f"A timer fires to a WebSocket subscriber of {address}")
    async with connect(address) as remote, remote.queue("reminders").subscribe() as messages:
        timer = await queen.timers.schedule("reminders", "cart/42", {"cart": "customer-42"}, delay="400ms")
        teller.tell(f"scheduled in this process for {timer.deliver_at}")
        message = await messages.receive()
        right = message.data == {"cart": "customer-42"} and message.timer_key == "cart/42"
        teller.claim("the subscriber has it, pushed over its socket", right, message)
        late = (_instant(message.created_at) - _instant(timer.deliver_at)).total_seconds() * 1000
        teller.claim(f"not early: it fired {late:.1f} ms after its time", late >= 0, (timer, message))
        settled = await message.ack()
        teller.claim("its ack is settled", bool(settled), settled)


async def second_life(teller: Teller, queen: Queen, before: dict[str, Any]) -> None:
    """What the first life left must be here, to the version."""
    state = await queen.kv.get("orders", "9137")
    teller.claim("the order's key is there, at the same version", state == before["state"], state)
    reminder = await queen.timers.peek("order-events", "reminder/9137")
    teller.claim("tomorrow's reminder is still due at the same instant", reminder == before["reminder"], reminder)
    now = await queen.kv.get("carts", "customer-42")
    teller.claim("the cart has its 4 items", now.value == {"items": 4}, now)
    hit = await queen.kv.incr("limits", "api:customer-42", 1, max=3, ttl="1m")
    teller.claim("the counter is still at its ceiling", not hit.applied and hit.value == 3, hit)
    with trio.fail_after(PATIENCE_SECONDS):
        events = await queen.queue("order-events").group("newcomer").subscription_mode("all").pop(wait=True)
    teller.claim(
        "a new consumer group reads the event", [event.data for event in events] == [{"event": "paid"}], events
    )
    seen = await queen.queue("order-events").group("audit").pop()
    teller.claim("the group that had read it does not get it again", seen == [], seen)
    (again,) = await queen.queue("orders").partition("order-9137").push({"transactionId": "o-9137", "data": {}})
    teller.claim("the order pushed again is known as a duplicate", again.duplicate and again.offset == 0, again)
    lock = queen.lock("daily-report", 30)
    taken = await lock.acquire() and (lock.token or 0) > before["token"]
    teller.claim(f"the lock's tokens go on rising: {before['token']}, then {lock.token}", taken, lock)
    await lock.release()


def _instant(text: str | None) -> datetime:
    return datetime.fromisoformat(text or "")
