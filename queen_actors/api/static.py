"""`GET /static/...`: the browser's client, a page that shows it, and the protocols' descriptions. Always public.

Pages from other origins may import the module too. A browser keeps what it got for a few minutes, then asks whether it
has changed.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files

import trio

from queen_actors.wire.frames import encode

from . import asyncapi, openapi
from .access import Access
from .call import Call, Handler, Route
from .messages import Reply

CONTENT_TYPES = {
    "queen.js": "text/javascript; charset=utf-8",
    "example.html": "text/html; charset=utf-8",
    "asyncapi.json": "application/json",
    "openapi.json": "application/json",
}
KEEP_SECONDS = 300
_LATE = "openapi.json"
"""Made when it is first asked for: it describes every route, those of this module too."""


@cache
def content(name: str) -> bytes:
    """What is served under a name."""
    if name == "asyncapi.json":
        return encode(asyncapi.document())
    if name == _LATE:
        from .routes import TABLE  # which imports this module

        return encode(openapi.document(TABLE))
    return files("queen_actors").joinpath("static", name).read_bytes()


@cache
def _replies(name: str) -> tuple[str, Reply, Reply]:
    """The tag, the whole, and the answer to who has it already."""
    body = content(name)
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        "cache-control": f"public, max-age={KEEP_SECONDS}",
        "etag": tag,
        "access-control-allow-origin": "*",
        "x-content-type-options": "nosniff",
    }
    return tag, Reply(200, body, {"content-type": CONTENT_TYPES[name], **headers}), Reply(304, b"", headers)


def _serving(name: str) -> Handler:
    if name != _LATE:
        _replies(name)

    async def serve(call: Call) -> Reply:
        if name == _LATE:  # a tenth of a second at the first time
            tag, whole, unchanged = await trio.to_thread.run_sync(_replies, name)
        else:
            tag, whole, unchanged = _replies(name)
        known = call.request.headers.get("if-none-match", "")
        return unchanged if tag in known or known.strip() == "*" else whole

    return serve


ROUTES = tuple(
    Route(method, f"/static/{name}", handler, Access.PUBLIC)
    for name in CONTENT_TYPES
    for handler in (_serving(name),)
    for method in ("GET", "HEAD")
)
