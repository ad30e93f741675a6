"""Bearer tokens: JWTs signed with a shared secret or checked with a public key (`wire-messaging.md` 20).

Off unless the settings hold a secret or a key. A token's roles grant levels of the route table (`access.py`); nothing
else does, so a route that is added is closed until its level says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from queen_actors.config import Settings, variable
from queen_actors.errors import Forbidden, Unauthorized

from .access import Access, Authorize, Caller, open_to_all
from .messages import Request

LEEWAY_SECONDS = 30
"""How far two clocks may differ (20)."""
TOKEN_BYTES = 8192
"""Longer than any token: what is longer is not looked at."""

ROLES: Mapping[str, frozenset[Access]] = {
    "admin": frozenset(Access),
    "read-write": frozenset({Access.PUBLIC, Access.ANY, Access.READ, Access.WRITE, Access.READ_WRITE}),
    "read-only": frozenset({Access.PUBLIC, Access.ANY, Access.READ}),
    "write-only": frozenset({Access.PUBLIC, Access.ANY, Access.WRITE}),
    "produce-only": frozenset({Access.PUBLIC, Access.ANY, Access.WRITE}),
}
"""What each role grants. `produce-only` is another word for the reference's `write-only`."""

_SECRET, _KEY = variable("jwt_secret"), variable("jwt_public_key")
_HMAC = ("HS256", "HS384", "HS512")
_RSA = ("RS256", "RS384", "RS512")
_CURVES = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}


def authorizer(settings: Settings) -> Authorize:
    """The check that the settings ask for. Raises ValueError when their secret or key cannot be used."""
    if settings.jwt_secret and settings.jwt_public_key:
        raise ValueError(f"set {_SECRET} or {_KEY}, not both: a token has one kind of signature")
    if settings.jwt_secret:
        return BearerTokens(settings.jwt_secret, _HMAC)
    if settings.jwt_public_key:
        return BearerTokens(*_public_key(settings.jwt_public_key))
    return open_to_all


def _public_key(pem: str) -> tuple[Any, tuple[str, ...]]:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as wrong:
        raise ValueError(f"{_KEY} is not a PEM public key: {wrong}") from None
    if isinstance(key, RSAPublicKey):
        return key, _RSA
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key, _CURVES[key.curve.name]
    if isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        return key, ("EdDSA",)
    raise ValueError(f"{_KEY} must be an RSA, P-256, P-384, P-521, Ed25519 or Ed448 key")


class BearerTokens:
    """Checks the bearer token of a request. The algorithms follow from the key: a token cannot choose."""

    def __init__(self, key: Any, algorithms: tuple[str, ...]) -> None:
        self._key = key
        self._algorithms = list(algorithms)

    async def __call__(self, request: Request, access: Access) -> Caller:
        """Who calls. Raises Unauthorized, or Forbidden when the roles do not reach."""
        if access is Access.PUBLIC:
            return Caller()
        claims = self._claims(request.headers.get("authorization", ""))
        if not any(access in ROLES.get(role, ()) for role in _roles(claims)):
            raise Forbidden("Insufficient permissions")
        subject, expiry = claims.get("sub"), claims.get("exp")
        return Caller(
            subject if isinstance(subject, str) else None, float(expiry) if isinstance(expiry, int | float) else None
        )

    def _claims(self, header: str) -> dict[str, Any]:
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip() or len(token) > TOKEN_BYTES:
            raise Unauthorized("Authentication required")
        try:
            return jwt.decode(
                token.strip(),
                self._key,
                algorithms=self._algorithms,
                leeway=LEEWAY_SECONDS,
                options={"verify_aud": False, "verify_sub": False},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthorized("Token has expired") from None
        except jwt.InvalidSignatureError:
            raise Unauthorized("Invalid token signature") from None
        except jwt.InvalidTokenError:
            raise Unauthorized("Invalid token") from None


def _roles(claims: Mapping[str, Any]) -> list[str]:
    """`role` is a word, `roles` a list of words (or one)."""
    found: list[Any] = [claims.get("role")]
    many = claims.get("roles")
    found += many if isinstance(many, list) else [many]
    return [role for role in found if isinstance(role, str)]
