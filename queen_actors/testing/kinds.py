"""The kinds of clients that came later, on the real wire: in two seeds of ten they make up the world, with a few of the
others. All other seeds draw what they always drew."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.queue import Configure

from . import clients_feeds, clients_lines, clients_queues
from .audit_feeds import judge_agers, judge_tails, judge_watches
from .audit_kit import Ledger
from .audit_lines import judge_lines
from .audit_queues import judge_buriers, judge_conflaters, judge_forgetters, judge_seekers
from .clients import World
from .history import History

TURN, TURNS = 10, (4, 8)


class Kind(Struct, frozen=True):
    """`most`: how many a world may have, `least` of them if any. `company`: a kind that makes it worth while."""

    live: Callable[[World, str], Awaitable[None]]
    ways: tuple[str, ...] = ("socket",)
    least: int = 1
    most: int = 2
    company: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "tailer": Kind(clients_feeds.tailer, company=("producer",)),
    **{f"ager.{kind}": Kind(clients_feeds.ager(kind)) for kind in clients_feeds.AGERS},
    "watcher": Kind(clients_feeds.watcher, most=3, company=("scribbler", "keeper", "refresher")),
    "scribbler": Kind(clients_feeds.scribbler, ("direct",), company=("watcher",)),
    "waiter": Kind(clients_lines.waiter, least=3, most=4),
    "burier": Kind(clients_queues.burier, ("http",)),
    "conflater": Kind(clients_queues.conflater, ("http", "socket")),
    "forgetter": Kind(clients_queues.forgetter, ("direct", "http")),
    "seeker": Kind(clients_queues.seeker, ("direct", "http"), least=2, most=3, company=("producer",)),
}


def is_later(seed: int) -> bool:
    """Is it one of the seeds of these kinds?"""
    return seed % TURN in TURNS


def drawn(rng: random.Random, others: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """(name, way in) of the clients of such a world; `others` are the kinds that there were before, and their ways."""
    kinds = rng.sample(sorted(KINDS), rng.choice([1, 2, 2, 3]))
    more = [other for kind in kinds for other in KINDS[kind].company]
    more += rng.sample(sorted(others), rng.choice([0, 0, 1, 2]))
    kinds += [kind for kind in dict.fromkeys(more) if kind in KINDS and kind not in kinds]
    people = [
        (f"{kind}{n}", rng.choice(KINDS[kind].ways))
        for kind in kinds
        for n in range(rng.randint(KINDS[kind].least, KINDS[kind].most))
    ]
    return people + [(f"{kind}0", rng.choice(others[kind])) for kind in dict.fromkeys(more) if kind in others]


def queues(people: tuple[tuple[str, str], ...], keep: dict[str, int]) -> tuple[Configure, ...]:
    """The queues that they need to be configured; `keep`: options of all queues into which a message is pushed again
    until that is answered."""
    found: list[Configure] = []
    for name, _ in people:
        kind = name.rstrip("0123456789")
        if kind.startswith("ager."):
            options = clients_feeds.aged_options(kind.partition(".")[2])
            found.append(Configure(f"{clients_feeds.AGED}.{name}", {**options, **keep}))
        elif kind == "conflater":
            found.append(Configure(f"{clients_queues.LAST}.{name}", {**keep}))
    return tuple(found)


@contextmanager
def bounds(people: tuple[tuple[str, str], ...]) -> Generator[None]:
    """Small ones, where there are watches: else none would ever fall behind."""
    before = limits.WATCH_QUEUE, limits.KV_HISTORY
    if any(name.startswith("watcher") for name, _ in people):
        limits.WATCH_QUEUE, limits.KV_HISTORY = 2, 40
    try:
        yield
    finally:
        limits.WATCH_QUEUE, limits.KV_HISTORY = before


def judge(history: History, ledger: Ledger) -> None:
    """Raises Violation at the first promise that does not hold."""
    judge_tails(history, ledger)
    judge_agers(history)
    judge_watches(history)
    judge_lines(history)
    judge_buriers(history)
    judge_conflaters(history)
    judge_forgetters(history)
    judge_seekers(history, ledger)
