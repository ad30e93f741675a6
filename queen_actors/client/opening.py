"""The two ways to a client: a broker in this process, or one somewhere else."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import trio

from .address import address_of
from .http import CONNECTIONS, HttpTransport
from .queen import Queen
from .transport import Retry, Transport

if TYPE_CHECKING:
    from queen_actors.ports import Clock, Ids, Store


@asynccontextmanager
async def open_broker(
    path: str | PathLike[str] | None = None,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    **settings: Any,
) -> AsyncGenerator[Queen]:
    """A broker in this process, and a client of it, for as long as the block lasts.

    `path` is its data directory; without one everything is in memory and gone at the end. Further keywords are the
    fields of `config.Settings`. `store`, `clock` and `ids` are for tests.

    Leaving releases locks, gives back what is leased and commits what is pending, within `shutdown_seconds`. The
    block's own exception comes out bare. If the broker fails (its storage), the block is cancelled and the failure is
    raised. Raises DataDirectoryError when the directory cannot be taken.
    """
    # Imported here: a program that only connects needs neither the broker nor a database engine.
    from queen_actors.api import Api
    from queen_actors.broker import running
    from queen_actors.config import Settings
    from queen_actors.storage import store_of

    from .local import LocalTransport

    data = None if path is None else fspath(path)
    chosen = Settings(data=data, **settings)
    async with (
        running(store or store_of(chosen), chosen, clock=clock, ids=ids) as broker,
        serving(LocalTransport(broker, Api(broker, chosen))) as queen,
    ):
        yield queen


def connect(
    url: str = "http://127.0.0.1:6632",
    token: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    retry: Retry | None = None,
    connections: int = CONNECTIONS,
) -> AbstractAsyncContextManager[Queen]:
    """A client of the broker at `url`, for as long as the block lasts: HTTP for calls, WebSockets for subscriptions.

    Nothing is sent before the first call. `token` goes as a bearer token. `retry` says how often a call is sent again
    when that is safe: after a lost connection or a 5xx what can be repeated, after a 429 everything. Leaving releases
    locks and gives back what is leased. The block's own exception comes out bare. Raises ValueError for a bad URL.
    """
    return serving(HttpTransport(address_of(url, token, headers, ssl_context), retry, connections))


@asynccontextmanager
async def serving(transport: Transport) -> AsyncGenerator[Queen]:
    """A client over a transport, and the nursery in which it runs what runs in the background.

    The block's own exception goes around the nursery, to come out as it was. Beside it, what comes out of the nursery
    is a cancellation from outside: none of its tasks fails by an error of its own.
    """
    mine: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            queen = Queen(transport, nursery)
            try:
                yield queen
            except BaseException as error:
                mine = error
            finally:
                await queen.aclose()
                await transport.aclose()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup:
        if mine is None or isinstance(mine, trio.Cancelled):
            raise
    if mine is not None:
        raise mine
