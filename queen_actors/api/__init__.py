"""Every route once, without a web framework: the web lane, the WebSocket and the client in process all call
`Api.handle`, so that a request means the same whichever way it comes."""

from __future__ import annotations

from .access import Access, Authorize, Caller
from .app import Api
from .messages import Reply, Request

__all__ = ["Access", "Api", "Authorize", "Caller", "Reply", "Request"]
