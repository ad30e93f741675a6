"""How a bug is planted: a piece of the running broker is replaced, which has no hooks for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, isfunction, signature
from typing import Any

from msgspec import Struct


class Bug(Struct, frozen=True):
    """`plant` puts it in; `breaks`: the invariants that it is known to break, by one of which it has to be found."""

    plant: Callable[[], None]
    what: str
    breaks: str

    @property
    def name(self) -> str:
        return self.plant.__name__


BUGS: list[Bug] = []
FAULTS: list[str] = []
"""What planted pieces have raised that no piece of the broker should: they may not fit it any more. Whoever looks for
bugs empties it before each try."""
_MISFITS = (AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)


def bug(what: str, breaks: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS.append(Bug(plant, what, breaks))
        return plant

    return note


def put(owner: Any, name: str, piece: Any) -> None:
    """Replace a piece of a class or a module, which must be there: a bug that replaces nothing proves nothing. It must
    be called alike, too: one that raises in its place would be found whatever it does. What it raises is noted."""
    assert hasattr(owner, name), f"{owner} has no {name}"
    there = getattr(owner, name)
    if isfunction(there):
        assert _shape(piece) == _shape(there), f"{owner}.{name} is called in another way than what takes its place"
    setattr(owner, name, _noted(piece))


def _noted(piece: Any) -> Any:
    """The piece, its `FAULTS` noted: not all of them are seen outside, as those on which a connection ends."""
    if isinstance(piece, staticmethod):
        return staticmethod(_noted(piece.__func__))
    if not isfunction(piece):
        return piece

    @wraps(piece)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return piece(*args, **kwargs)
        except _MISFITS as fault:
            FAULTS.append(repr(fault))
            raise

    @wraps(piece)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        try:
            return await piece(*args, **kwargs)
        except _MISFITS as fault:
            FAULTS.append(repr(fault))
            raise

    return awaited if iscoroutinefunction(piece) else called


def _shape(piece: Any) -> object:
    """How it is called: each parameter's kind, whether it may be left out, and whether it is awaited."""
    inner = getattr(piece, "__func__", piece)
    shape = [(one.kind, one.default is one.empty) for one in signature(inner).parameters.values()]
    return shape, iscoroutinefunction(inner)


def of_module(owner: Any, name: str) -> Any:
    """A piece of a module that is another one's."""
    return getattr(owner, name)
