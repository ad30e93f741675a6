"""Is a history linearizable? Wing and Gong's search with Lowe's memory, one key at a time.

Clients' operations overlap. The history is linearizable when every operation can be given one instant between its
start and its end so that, done one after the other in that order, each gets the answer that it got. An operation
whose answer was lost may have had its effect at any instant from its start on (up to its end, when it is known that
nothing can have happened any more, for instance because the process was dead), or never.

What a key is and does says a model (`models.py`). The search shares no code with what it judges. It is bounded: a
history that it can neither explain nor refute within its budget is `undecided`, which is no pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

S = TypeVar("S", bound=Hashable)

BUDGET = 200_000
"""How many configurations are looked at for one key; a correct history needs about one for each operation."""

Outcome = Literal["linearizable", "violation", "undecided"]


class Operation(Struct, frozen=True):
    """One operation on one key, which may be several steps at one instant.

    `key` is (kind, name): the kind names the model. `start` and `end` are instants of one clock (any unit). `steps`
    are (step, answer) pairs of the model's types. `known` False: the answers are None, and its effect lies between
    `start` and `end` (infinity: at any time) or there is none.
    """

    key: tuple[str, str]
    start: float
    end: float
    steps: tuple[tuple[Any, Any], ...]
    known: bool = True
    label: str = ""
    """What a person is told of it, when it is the one that cannot be explained."""


class Model(Protocol[S]):
    """A key: its first state, and the states in which a step that was answered so may leave it."""

    @property
    def initial(self) -> S: ...

    def after(self, state: S, step: Any, answer: Any, start: float, end: float) -> Iterable[S]:
        """The states that are possible behind the step when it took place between `start` and `end` and was answered
        so; with an answer of None, behind any answer. None at all: it cannot have been answered so."""
        ...


class Verdict(Struct, frozen=True):
    """What came of one key. `explored`: how many configurations were looked at; `told`: why it is no pass."""

    key: tuple[str, str]
    outcome: Outcome
    operations: int
    explored: int
    told: str = ""


class Report(Struct, frozen=True):
    """What came of a history. It passed only if every key's verdict is `linearizable`."""

    verdicts: tuple[Verdict, ...]

    @property
    def operations(self) -> int:
        return sum(verdict.operations for verdict in self.verdicts)

    @property
    def failures(self) -> list[str]:
        """A sentence for each key that did not pass, one that could not be judged included."""
        return [
            f"{'/'.join(verdict.key)} is {'not linearizable' if verdict.outcome == 'violation' else 'undecided'}: "
            f"{verdict.told}"
            for verdict in self.verdicts
            if verdict.outcome != "linearizable"
        ]


def judge(operations: Iterable[Operation], models: Mapping[str, Model[Any]], budget: int = BUDGET) -> Report:
    """Judge every key by the model of its kind."""
    by_key: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        by_key[operation.key].append(operation)
    return Report(tuple(check(found, models[key[0]], budget) for key, found in sorted(by_key.items())))


def check(operations: Sequence[Operation], model: Model[Any], budget: int = BUDGET) -> Verdict:
    """Judge the operations of one key. A history without operations has no key to judge: ValueError."""
    if not operations:
        raise ValueError("A verdict needs at least one operation.")
    return _Search(operations, model).run(budget)


class _Config(Struct, frozen=True):
    """A place in the search: what has its instant already, and the state behind it.

    Of the known operations those before `first` and those whose bit (counted from `first`) is in `done`; of the lost
    ones those in `spent`, which had their effect or can have none any more. `now`: no later operation has an instant
    before this one.
    """

    first: int
    done: int
    spent: int
    now: float
    state: Any


class _Search:
    """One key's."""

    def __init__(self, operations: Sequence[Operation], model: Model[Any]) -> None:
        ordered = sorted(operations, key=lambda operation: (operation.start, operation.end))
        self._operations = len(operations)
        self._key = ordered[0].key
        self._model = model
        self._known = [operation for operation in ordered if operation.known]
        self._lost = [operation for operation in ordered if not operation.known]
        self._best: tuple[int, _Config] | None = None
        self._seen: dict[Hashable, list[tuple[int, float]]] = defaultdict(list)

    def run(self, budget: int) -> Verdict:
        start = _Config(0, 0, 0, float("-inf"), self._model.initial)
        stack = [start]
        self._is_new(start)
        explored = 0
        while stack:
            config = stack.pop()
            if config.first == len(self._known):
                return Verdict(self._key, "linearizable", self._operations, explored)
            if explored == budget:
                told = f"{budget} configurations were looked at, and none explains all of it. {self._furthest()}"
                return Verdict(self._key, "undecided", self._operations, explored, told)
            explored += 1
            reached = config.first + config.done.bit_count()
            if self._best is None or reached > self._best[0]:
                self._best = reached, config
            stack += [following for following in self._successors(config) if self._is_new(following)]
        return Verdict(self._key, "violation", self._operations, explored, self._furthest())

    def _is_new(self, config: _Config) -> bool:
        """Whether nothing as good was met before: the same, with the same lost operations still to come, or more."""
        met = self._seen[config.first, config.done, config.state]
        if any(spent & config.spent == spent and now <= config.now for spent, now in met):
            return False
        met.append((config.spent, config.now))
        return True

    def _successors(self, config: _Config) -> list[_Config]:
        """Where one more operation has its instant; the likeliest last, which is looked at first."""
        limit, candidates = self._candidates(config)
        found: list[tuple[float, _Config]] = []
        for index in candidates:
            operation = self._known[index]
            states = set(self._states(config.state, operation))
            following = [self._with_known(config, index, state) for state in states]
            if states == {config.state} and not self._must_precede(config, operation):
                return following  # it changes nothing and nothing has to come before it: now is as good as ever
            found += [(operation.end, after) for after in following]
        found.sort(key=lambda pair: -pair[0])
        return [*self._with_lost(config, limit), *(after for _, after in found)]

    def _candidates(self, config: _Config) -> tuple[float, list[int]]:
        """The known operations that may be next: no other has to be before them; and the instant by which the next
        must have been."""
        limit = float("inf")
        waiting: list[int] = []
        for index in range(config.first, len(self._known)):
            operation = self._known[index]
            if operation.start > limit:
                break
            if not config.done >> (index - config.first) & 1:
                waiting.append(index)
                limit = min(limit, operation.end)
        return limit, [index for index in waiting if self._known[index].start <= limit]

    def _with_known(self, config: _Config, index: int, state: Any) -> _Config:
        first, done = config.first, config.done | 1 << (index - config.first)
        while done & 1:
            first, done = first + 1, done >> 1
        now = max(config.now, self._known[index].start)
        return _Config(first, done, self._expired(config.spent, now), now, state)

    def _with_lost(self, config: _Config, limit: float) -> Iterator[_Config]:
        for index, operation in enumerate(self._lost):
            if operation.start > limit:
                return
            if config.spent >> index & 1:
                continue
            now = max(config.now, operation.start)
            spent = self._expired(config.spent | 1 << index, now)
            for state in set(self._states(config.state, operation)) - {config.state}:
                yield _Config(config.first, config.done, spent, now, state)

    def _expired(self, spent: int, now: float) -> int:
        """`spent`, and those that can have no effect any more at `now`: one set for all that comes to the same."""
        for index, operation in enumerate(self._lost):
            if operation.start > now:
                break
            if operation.end < now:
                spent |= 1 << index
        return spent

    def _must_precede(self, config: _Config, operation: Operation) -> bool:
        """Whether a lost operation could have its effect only before this one."""
        for index, lost in enumerate(self._lost):
            if lost.start > operation.start:
                return False
            if not config.spent >> index & 1 and lost.end < operation.start:
                return True
        return False

    def _states(self, state: Any, operation: Operation) -> Iterable[Any]:
        states: Iterable[Any] = (state,)
        for step, answer in operation.steps:
            states = {
                after
                for before in states
                for after in self._model.after(before, step, answer, operation.start, operation.end)
            }
        return states

    def _furthest(self) -> str:
        """What stands in the way where the search came furthest."""
        assert self._best is not None
        reached, config = self._best
        _, candidates = self._candidates(config)
        stuck = [self._known[index] for index in candidates][:4]
        told = "; ".join(operation.label or repr(operation.steps) for operation in stuck)
        return f"{reached} of {len(self._known)} answers are explained; then {config.state} does not explain: {told}"
