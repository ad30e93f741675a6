"""TLS under both lanes and under WebSockets: one more stream between the socket and everything else."""

from __future__ import annotations

import ssl

import trio

from queen_actors import limits
from queen_actors.config import Settings, variable

PROTOCOLS = ("http/1.1", "h2")
"""What is offered to clients, the preferred one first: the fast lane is for HTTP/1.1."""


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """What the settings' certificate makes, None without one. Raises ValueError, which names what is wrong."""
    certificate, key = settings.certfile, settings.keyfile
    if not certificate:
        if key:
            raise ValueError(f"{variable('keyfile')} needs {variable('certfile')}")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(PROTOCOLS)
    try:
        context.load_cert_chain(certificate, key or None, password="")  # nobody is there to be asked for another
    except OSError as wrong:  # ssl.SSLError is one
        files = f"{variable('certfile')}={certificate}" + (f", {variable('keyfile')}={key}" if key else "")
        raise ValueError(f"{files}: no certificate and key that can be used: {wrong}") from None
    return context


class _Transport(trio.abc.Stream):
    """The socket as the TLS layer has it: to close it only says that nothing follows."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()


class Secured(trio.abc.HalfCloseableStream):
    """The server's side of one TLS connection.

    Its end of stream is a `close_notify`, after which what the peer still sends is read and thrown away; that the
    peer's end comes without one is no error, since no request is taken for whole that is not.
    """

    def __init__(self, stream: trio.abc.Stream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self._tls = trio.SSLStream(_Transport(stream), context, server_side=True)
        self._finished = False

    async def shake_hands(self) -> None:
        """Raises trio.BrokenResourceError when the peer speaks no TLS, or none that is spoken here."""
        await self._tls.do_handshake()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._finished:
            return bytes(await self.stream.receive_some(max_bytes))
        try:
            return bytes(await self._tls.receive_some(max_bytes))
        except trio.BrokenResourceError as broken:
            if isinstance(broken.__cause__, ssl.SSLEOFError):
                return b""
            raise

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._tls.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._tls.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        if self._finished:
            return
        self._finished = True
        with trio.move_on_after(limits.HTTP_LINGER_SECONDS):  # unlike a socket's, it is something that is written
            await self._tls.aclose()

    async def aclose(self) -> None:
        """Close the socket at once."""
        await self.stream.aclose()
