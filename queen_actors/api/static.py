"""`GET /static/...`: the browser's client, a page that shows it, and the protocol's description. Always public.

Pages from other origins may import the module too. A browser keeps what it got for a few minutes, then asks whether it
has changed.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from queen_actors.wire.frames import encode

from .access import Access
from .asyncapi import document
from .call import Call, Handler, Route
from .messages import Reply

CONTENT_TYPES = {
    "queen.js": "text/javascript; charset=utf-8",
    "example.html": "text/html; charset=utf-8",
    "asyncapi.json": "application/json",
}
KEEP_SECONDS = 300


def content(name: str) -> bytes:
    """What is served under a name."""
    return (
        encode(document()) if name == "asyncapi.json" else files("queen_actors").joinpath("static", name).read_bytes()
    )


def _serving(name: str) -> Handler:
    body = content(name)
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {
        "cache-control": f"public, max-age={KEEP_SECONDS}",
        "etag": tag,
        "access-control-allow-origin": "*",
        "x-content-type-options": "nosniff",
    }
    whole = Reply(200, body, {"content-type": CONTENT_TYPES[name], **headers})
    unchanged = Reply(304, b"", headers)

    async def serve(call: Call) -> Reply:
        known = call.request.headers.get("if-none-match", "")
        return unchanged if tag in known or known.strip() == "*" else whole

    return serve


ROUTES = tuple(
    Route(method, f"/static/{name}", handler, Access.PUBLIC)
    for name in CONTENT_TYPES
    for handler in (_serving(name),)
    for method in ("GET", "HEAD")
)
