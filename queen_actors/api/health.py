"""`GET /health`: what every harness and load balancer waits on. Always public."""

from __future__ import annotations

from queen_actors import __version__

from .access import Access
from .call import Call, Route
from .messages import Reply, value_reply


async def health(call: Call) -> Reply:
    return value_reply({"status": "healthy", "engine": "queen_actors", "version": __version__})


ROUTES = (
    Route("GET", "/health", health, Access.PUBLIC),
    Route("HEAD", "/health", health, Access.PUBLIC),
)
