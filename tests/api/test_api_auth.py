"""Bearer tokens (wire-messaging.md 20): every kind of signature, what is refused and with which words, and every route
of the table for every role."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from trio.testing import MockClock

from queen_actors.api import Api, Request
from queen_actors.api.access import Access
from queen_actors.api.auth import authorizer
from queen_actors.api.routes import TABLE
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.storage.memory import MemoryStore

SECRET = "a secret of at least thirty-two bytes, and for HS512 of sixty-four, which it has"
ROLES = ("admin", "read-write", "read-only", "write-only", "produce-only")
ADMIN = ["DELETE /api/v1/resources/queues/", "DELETE /api/v1/consumer-groups/", "POST /api/v1/stats/refresh"]
PUBLIC = ["GET /health", "HEAD /health", "GET /metrics", "GET /api/v1/ws", "GET /static/", "HEAD /static/"]
"""A WebSocket asks for the token itself."""
READ = [
    *(f"GET /api/v1/{family}" for family in ("status", "analytics", "resources", "messages", "consumer-groups")),
    *(f"GET /api/v1/{family}" for family in ("dlq", "traces", "kv/", "timers/")),
    *("GET /api/v1/ephemeral/queues", "POST /api/v1/fetch", "POST /api/v1/partitions/changed"),
    "POST /streams/v1/state/get",
]
WRITE = ["POST /api/v1/push", "POST /api/v1/timers", "POST /api/v1/ephemeral/push"]
"""Section 20, and 1.6 of wire-kv-locks-timers-transactions.md; everything else needs read-write."""
GRANTED = {
    "admin": {"public", "read", "write", "read_write", "admin"},
    "read-write": {"public", "read", "write", "read_write"},
    "read-only": {"public", "read"},
    "write-only": {"public", "write"},
    "produce-only": {"public", "write"},
    "dreamer": {"public"},
}


def level(route: str) -> str:
    """What the specification says of a route."""
    for name, starts in (("public", PUBLIC), ("admin", ADMIN), ("read", READ), ("write", WRITE)):
        if any(route.startswith(start) for start in starts):
            return name
    return "read_write"


def token(key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"role": "admin", **claims}, key, algorithm=algorithm)


@asynccontextmanager
async def guarded(**settings: Any) -> AsyncIterator[Callable[..., Any]]:
    """A broker behind its API with tokens on; a call gives the status and the decoded body."""
    chosen = Settings(data=None, **settings)
    async with running(MemoryStore(), chosen) as broker:
        api = Api(broker, chosen, authorizer(chosen))

        async def call(method: str, target: str, bearer: str | None = None, body: Any = None) -> tuple[int, Any]:
            path, _, query = target.partition("?")
            headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
            data = b"" if body is None else json.dumps(body).encode()
            reply = await api.handle(Request(method, path.encode(), query.encode(), headers, data))
            return reply.status, json.loads(reply.body) if reply.body.startswith((b"{", b"[")) else None

        yield call


PUSHED = {"items": [{"queue": "q", "payload": 1, "producerSub": "somebody else"}]}


def path_of(pattern: str) -> str:
    """A path that fits; a poll must not wait."""
    pieces = ("1" if piece[:1] in (":", "*") else piece for piece in pattern.split("/"))
    return "/".join(pieces)


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.pattern}")
async def test_every_route_for_every_role(autojump_clock: MockClock, route: Any) -> None:
    """401 without a token, 403 when the role does not grant the route's level, and else the route itself answers. The
    level is the specification's; so a route that is added without a thought falls out here."""
    expected = level(f"{route.method} {route.pattern}")
    assert isinstance(route.access, Access)
    assert route.access.value == expected
    async with guarded(jwt_secret=SECRET) as call:
        status, body = await call(route.method, path_of(route.pattern))
        assert (status == 401) == (expected != "public"), (status, body)
        if status == 401:
            assert body["error"] == "Authentication required"
        for role, granted in GRANTED.items():
            status, body = await call(route.method, path_of(route.pattern), token(role=role))
            assert (status == 403) == (expected not in granted), (role, status, body)
            assert status not in (401, 500)
            if status == 403:
                assert body["error"] == "Insufficient permissions"


async def test_no_route_answers_a_stranger_with_a_body_of_its_own(autojump_clock: MockClock) -> None:
    """An unknown route and a wrong method tell nothing of what is there, and need no token."""
    async with guarded(jwt_secret=SECRET) as call:
        assert (await call("GET", "/api/v1/nothing"))[0] == 404
        assert (await call("GET", "/api/v1/push"))[0] == 405


@pytest.mark.parametrize("claims", [{"role": "read-write"}, {"roles": ["x", "read-write"]}, {"roles": "read-write"}])
async def test_where_roles_stand(autojump_clock: MockClock, claims: dict[str, Any]) -> None:
    """`role` is a word, `roles` a list of words or one."""
    async with guarded(jwt_secret=SECRET) as call:
        status, _ = await call("POST", "/api/v1/push", jwt.encode(claims, SECRET, algorithm="HS256"), PUSHED)
        assert status == 201
        for nothing in ({}, {"role": None}, {"role": 7}, {"roles": [7, None]}, {"role": ["admin"]}):
            bearer = jwt.encode(nothing, SECRET, algorithm="HS256")
            assert (await call("POST", "/api/v1/push", bearer, PUSHED))[0] == 403


def pem(key: Any) -> str:
    spelled = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return str(spelled.decode())


RSA = rsa.generate_private_key(65537, 2048)
KEYS = {
    "RS256": RSA,
    "RS384": RSA,
    "RS512": RSA,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


@pytest.mark.parametrize("algorithm", KEYS)
async def test_public_keys(autojump_clock: MockClock, algorithm: str) -> None:
    """RS*, ES* and EdDSA are checked with the public key. The key decides, not the token: neither an HMAC made with
    the public key's text, nor another algorithm, nor `none` is taken."""
    key = KEYS[algorithm]
    async with guarded(jwt_public_key=pem(key)) as call:
        assert (await call("POST", "/api/v1/push", token(key, algorithm), PUSHED))[0] == 201
        other = {"RS": rsa.generate_private_key(65537, 2048), "Ed": ed25519.Ed25519PrivateKey.generate()}
        wrong = other.get(algorithm[:2]) or ec.generate_private_key(key.curve)
        status, body = await call("POST", "/api/v1/push", token(wrong, algorithm), PUSHED)
        assert (status, body["error"]) == (401, "Invalid token signature")
        for refused in (token("k" * 64, "HS256"), unsigned(), forged(pem(key))):
            status, body = await call("POST", "/api/v1/push", refused, PUSHED)
            assert (status, body["error"]) == (401, "Invalid token")


def unsigned() -> str:
    """An admin's token of the algorithm `none`."""
    return jwt.encode({"role": "admin"}, None, algorithm="none")


def forged(text: str) -> str:
    """An HMAC whose secret is the text of the public key."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(b'{"alg":"HS256","typ":"JWT"}') + b"." + part(b'{"role":"admin"}')
    return (signed + b"." + part(hmac.digest(text.encode(), signed, "sha256"))).decode()


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_shared_secret(autojump_clock: MockClock, algorithm: str) -> None:
    async with guarded(jwt_secret=SECRET) as call:
        assert (await call("POST", "/api/v1/push", token(SECRET, algorithm), PUSHED))[0] == 201
        status, body = await call("POST", "/api/v1/push", token("w" * 64, algorithm), PUSHED)
        assert (status, body["error"]) == (401, "Invalid token signature")
        for refused in (unsigned(), token(RSA, "RS256")):
            assert (await call("POST", "/api/v1/push", refused, PUSHED))[0] == 401


async def test_times_of_a_token(autojump_clock: MockClock) -> None:
    """30 s of skew are allowed in both directions, and no more."""
    now = int(time.time())
    async with guarded(jwt_secret=SECRET) as call:
        for claims, status, words in (
            ({"exp": now + 60}, 201, None),
            ({"exp": now - 20}, 201, None),
            ({"exp": now - 60}, 401, "Token has expired"),
            ({"nbf": now + 20}, 201, None),
            ({"nbf": now + 90}, 401, "Invalid token"),
            ({"aud": "somebody", "iss": "anybody"}, 201, None),
            ({"exp": "soon"}, 401, "Invalid token"),
        ):
            found = await call("POST", "/api/v1/push", token(**claims), PUSHED)
            assert (found[0], found[1]["error"] if status == 401 else None) == (status, words), claims


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer nonsense", "Bearer a.b.c", "Bearer " + "x" * 10_000]
)
async def test_headers_that_are_no_token(autojump_clock: MockClock, header: str) -> None:
    """401, whatever it says; the scheme's case does not matter."""
    settings = Settings(data=None, jwt_secret=SECRET)
    async with running(MemoryStore(), settings) as broker:
        api = Api(broker, settings, authorizer(settings))

        async def push(value: str) -> int:
            body = json.dumps(PUSHED).encode()
            return (await api.handle(Request("POST", b"/api/v1/push", b"", {"authorization": value}, body))).status

        assert await push(header) == 401
        assert await push(f"bEaReR  {token()}") == 201


async def test_the_producer_is_the_tokens(autojump_clock: MockClock) -> None:
    """`producerSub` is the token's `sub` on pushes, in transactions, and on what timers fire; a body's is ignored."""
    async with guarded(jwt_secret=SECRET) as call:
        bearer = token(sub="billing")
        await call("POST", "/api/v1/push", bearer, PUSHED)
        push = {"type": "push", "queue": "q", "payload": 2, "producerSub": "somebody else"}
        assert (await call("POST", "/api/v1/transaction", bearer, {"operations": [push]}))[1]["success"] is True
        timer = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": "Mw==", "delayMs": 100, "txn": "t"}
        await call("POST", "/api/v1/timers", bearer, {"operations": [timer]})
        await trio.sleep(0.2)
        await call("POST", "/api/v1/push", token(), PUSHED)
        _, reply = await call("GET", "/api/v1/pop/queue/q?batch=10", bearer)
        found = [(message["data"], message["producerSub"]) for message in reply["messages"]]
        assert found == [(1, "billing"), (2, "billing"), (3, "billing"), (1, None)]


async def test_a_read_only_token_replays_nothing(autojump_clock: MockClock) -> None:
    """A72: a replay needs the write scope; so do the other ways out of the dead letters."""
    async with guarded(jwt_secret=SECRET) as call:
        await call("POST", "/api/v1/push", token(), PUSHED)
        _, reply = await call("GET", "/api/v1/pop/queue/q", token())
        (message,) = reply["messages"]
        ack = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "status": "dlq"}
        await call("POST", "/api/v1/ack", token(), {**ack, "leaseId": message["leaseId"]})
        reader = token(role="read-only")
        _, listed = await call("GET", "/api/v1/dlq?queue=q", reader)
        (letter,) = listed["messages"]
        place = f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}"
        for method, target in (
            ("POST", f"/api/v1/dlq/{letter['id']}/replay"),
            ("POST", f"{place}/retry"),
            ("DELETE", place),
            ("DELETE", "/api/v1/dlq?queue=q"),
        ):
            assert (await call(method, target, reader))[0] == 403
        assert (await call("GET", "/api/v1/dlq?queue=q", reader))[1]["total"] == 1
        assert (await call("POST", f"/api/v1/dlq/{letter['id']}/replay", token(role="read-write")))[0] == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"jwt_secret": SECRET, "jwt_public_key": pem(RSA)}, "not both"),
        ({"jwt_public_key": "no key"}, "not a PEM public key"),
        ({"jwt_public_key": pem(ec.generate_private_key(ec.SECP256K1()))}, "must be an RSA, P-256"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        authorizer(Settings(**settings))


async def test_without_a_secret_everybody_may_do_everything(autojump_clock: MockClock) -> None:
    """Off by default; a body's `producerSub` is ignored then too, and none is stamped."""
    async with guarded() as call:
        assert (await call("POST", "/api/v1/push", None, PUSHED))[0] == 201
        _, reply = await call("GET", "/api/v1/pop/queue/q")
        assert reply["messages"][0]["producerSub"] is None
        assert (await call("DELETE", "/api/v1/resources/queues/q"))[0] == 200


async def test_ed448(autojump_clock: MockClock) -> None:
    """EdDSA has two curves."""
    key = ed448.Ed448PrivateKey.generate()
    async with guarded(jwt_public_key=pem(key)) as call:
        assert (await call("POST", "/api/v1/push", token(key, "EdDSA"), PUSHED))[0] == 201
