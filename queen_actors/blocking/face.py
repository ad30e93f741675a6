"""Blocking methods made from the Trio client's own: its signatures and docstrings, and nothing said twice.

    class Kv(Face[client.Kv]):
        get = waits(client.Kv.get)

has a `get` with the parameters, the result type and the docstring of the Trio one, which blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import trio

from queen_actors.client.durations import Duration, seconds_of

from .portal import Portal

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Faced(Protocol):
    """What stands in front of an object of the Trio client. A protocol, because a message is a dict as well."""

    @property
    def portal(self) -> Portal:
        """The way onto the Trio thread."""
        ...

    @property
    def wrapped(self) -> Any:
        """The object of the Trio client."""
        ...


F = TypeVar("F", bound=Faced)


class Face(Generic[T]):
    """Stands in front of one object of the Trio client, which is `wrapped` and belongs to the Trio thread."""

    def __init__(self, portal: Portal, wrapped: T) -> None:
        self.portal = portal
        self.wrapped = wrapped

    def __repr__(self) -> str:
        return f"<blocking {self.wrapped!r}>"


def waits(method: Callable[Concatenate[Any, P], Awaitable[R]]) -> Callable[Concatenate[Faced, P], R]:
    """The async method, waited for."""

    def call(self: Faced, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.portal.call(partial(method, self.wrapped, *args, **kwargs))

    return update_wrapper(call, method)


def waits_for(
    method: Callable[Concatenate[Any, P], Awaitable[S]], wrap: Callable[[Portal, S], R]
) -> Callable[Concatenate[Faced, P], R]:
    """The async method, waited for, and its result wrapped."""

    def call(self: Faced, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(self.portal, self.portal.call(partial(method, self.wrapped, *args, **kwargs)))

    return update_wrapper(call, method)


def gives(
    method: Callable[Concatenate[Any, P], S], wrap: Callable[[Portal, S], R]
) -> Callable[Concatenate[Faced, P], R]:
    """The sync method, which only notes things and so is called right here, and its result wrapped."""

    def call(self: Faced, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(self.portal, method(self.wrapped, *args, **kwargs))

    return update_wrapper(call, method)


def on_trio(
    method: Callable[Concatenate[Any, P], S], wrap: Callable[[Portal, S], R]
) -> Callable[Concatenate[Faced, P], R]:
    """The sync method, called on the Trio thread, and its result wrapped."""

    def call(self: Faced, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return wrap(self.portal, self.portal.call_sync(partial(method, self.wrapped, *args, **kwargs)))

    return update_wrapper(call, method)


def within(portal: Portal, timeout: Duration | None, receive: Callable[[], Awaitable[R]], what: str = "message") -> R:
    """What comes next, waited for. Raises TimeoutError when that takes longer than `timeout`."""
    if timeout is None:
        return portal.call(receive)
    return portal.call(partial(_in_time, receive, seconds_of(timeout, "timeout"), what))


async def _in_time(receive: Callable[[], Awaitable[R]], seconds: float, what: str) -> R:
    with trio.move_on_after(seconds):
        return await receive()
    raise TimeoutError(f"no {what} within {seconds:g} s")


def chains(method: Callable[Concatenate[Any, P], object]) -> Callable[Concatenate[F, P], F]:
    """The sync method of a builder, which gives the builder back. It only notes things, here as well as there."""

    def call(self: F, /, *args: P.args, **kwargs: P.kwargs) -> F:
        method(self.wrapped, *args, **kwargs)
        return self

    return update_wrapper(call, method)
