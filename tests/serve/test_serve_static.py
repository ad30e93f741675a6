"""The files for browsers: what they are, how long they may be kept, and that everybody may read them."""

from __future__ import annotations

import json

import pytest
from serve_kit import server

from queen_actors.api.static import CONTENT_TYPES, KEEP_SECONDS, content


@pytest.mark.parametrize("name", CONTENT_TYPES)
async def test_each_file_is_served(name: str) -> None:
    """Whole, with its type, for any origin, to be kept; HEAD says the same and sends nothing; known, it is a 304."""
    async with server() as house:
        peer = await house.connect()
        status, headers, body = await peer.request("GET", f"/static/{name}")
        assert (status, headers["content-type"]) == (200, CONTENT_TYPES[name])
        assert body == content(name)
        assert headers["cache-control"] == f"public, max-age={KEEP_SECONDS}"
        assert headers["access-control-allow-origin"] == "*"
        head = await peer.request("HEAD", f"/static/{name}")
        assert (head[0], head[1]["content-length"], head[2]) == (200, str(len(body)), b"")
        known = f"if-none-match: W/{headers['etag']}\r\n"
        status, unchanged, body = await peer.request("GET", f"/static/{name}", headers=known)
        assert (status, unchanged["etag"], body) == (304, headers["etag"], b"")
        assert not unchanged.keys() & {"content-type", "content-length", "transfer-encoding"}
        other = await peer.request("GET", f"/static/{name}", headers='if-none-match: "another"\r\n')
        assert other[0] == 200


async def test_nothing_else_is_there() -> None:
    """No path leads out of the list of files."""
    async with server() as house:
        peer = await house.connect()
        for path in ("/static/", "/static/none.js", "/static/../queen.js", "/static/%2e%2e/config.py", "/static/a/b"):
            status, _, body = await peer.request("GET", path)
            assert (status, json.loads(body)["code"]) == (404, "no_such_route"), path
        assert (await peer.request("POST", "/static/queen.js", b"{}"))[0] == 405


async def test_a_token_is_not_needed() -> None:
    """The page must be there before anybody can say who they are."""
    async with server(jwt_secret="s" * 32) as house:
        peer = await house.connect()
        assert (await peer.request("GET", "/static/queen.js"))[0] == 200
        assert (await peer.request("GET", "/api/v1/status"))[0] == 401
