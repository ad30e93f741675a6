"""Where a broker is, and opening a stream to it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from .errors import ConnectionFailed

PORT = 6632
CONNECT_SECONDS = 10.0

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class Address(Struct, frozen=True):
    """Where the broker is, and how to say so."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    prefix: str
    """A path before the broker's own, when it stands behind a proxy; empty or `/something`."""
    headers: Mapping[str, str]
    """What is sent with every request."""

    @property
    def authority(self) -> str:
        """`host:port` for a `Host` header; an IPv6 host is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(
    url: str,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Address:
    """An `http://` or `https://` URL taken apart; without a scheme, the port is 6632 unless told. Raises ValueError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"the broker's address must look like http://host:{PORT}, not {url!r}")
    tls = (ssl_context or ssl.create_default_context()) if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80 if "://" in url else PORT)
    told = {} if token is None else {"Authorization": f"Bearer {token}"}
    told.update(headers or {})
    for text in (*told, *told.values()):
        if not (text.isascii() and text.isprintable()):
            raise ValueError("a header and a token hold printable ASCII only")
    return Address(parts.hostname, port, tls, parts.path.rstrip("/"), told)


async def open_stream(address: Address) -> tuple[Stream, trio.SocketStream]:
    """A stream to the broker, and the socket below it. Raises ConnectionFailed, not sent."""
    try:
        with trio.fail_after(CONNECT_SECONDS):
            raw = await trio.open_tcp_stream(address.host, address.port)
            if address.tls is None:
                return raw, raw
            secure = trio.SSLStream(raw, address.tls, server_hostname=address.host, https_compatible=True)
            try:
                await secure.do_handshake()
            except BaseException:
                await trio.aclose_forcefully(raw)
                raise
            return secure, raw
    except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
        told = str(error) or "it did not answer in time"
        raise ConnectionFailed(f"cannot connect to {address.authority}: {told}", sent=False) from error
