"""A blocking client over either transport; the server of the second runs on a Trio thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from client_server import served

from queen_actors import blocking
from queen_actors.blocking.portal import entered


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a server in memory."""
    with entered(served, lambda _portal, server: server.url, 1.0) as url:
        yield url


@contextmanager
def over_http() -> Iterator[blocking.Queen]:
    with serving() as url, blocking.connect(url) as queen:
        yield queen


@contextmanager
def in_process() -> Iterator[blocking.Queen]:
    with blocking.open_broker() as queen:
        yield queen


Opens = Callable[[], AbstractContextManager[blocking.Queen]]
both = pytest.mark.parametrize("opens", [in_process, over_http])
