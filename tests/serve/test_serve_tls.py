"""TLS: the same server behind a certificate, over real sockets, and peers that do not keep to it."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
import serve_kit
import trio
import trio.lowlevel
import trio.testing
import trustme
from crash.stopwatch import Stopwatch
from cryptography.hazmat.primitives import serialization as forms
from serve_kit import Peer, Running
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.serve.tls import server_context


class Chain:
    """An authority, and the files of a certificate for this machine."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        self.files = {"certfile": str(directory / "chain.pem"), "keyfile": str(directory / "key.pem")}
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(self.files["certfile"], append=True)
        certificate.private_key_pem.write_to_path(self.files["keyfile"])
        self.both = str(directory / "both.pem")
        certificate.private_key_and_cert_chain_pem.write_to_path(self.both)
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("tls"))


async def secure(house: Running, chain: Chain) -> Peer:
    """A connection whose handshake is done."""
    plain = await house.connect()
    stream = trio.SSLStream(plain.stream, chain.client, server_hostname="localhost", https_compatible=True)
    await stream.do_handshake()
    return Peer(stream)


def wanted(count: int = 1) -> dict[str, Any]:
    return {"items": [{"queue": "q", "payload": n} for n in range(count)]}


async def test_requests_over_one_connection(chain: Chain) -> None:
    """Keep-alive, a chunked body, an answer of a megabyte; the address says https."""
    async with serve_kit.server(**chain.files) as house:
        assert house.address.startswith("https://127.0.0.1:")
        peer = await secure(house, chain)
        assert (await peer.json("POST", "/api/v1/push", wanted()))[0] == 201
        body = b'{"items":[{"queue":"q","payload":"' + b"x" * (1 << 20) + b'"}]}'
        assert (await peer.request("POST", "/api/v1/push", body))[0] == 201
        head = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await peer.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert (await peer.response())[0] == 201
        status, found = await peer.json("GET", "/api/v1/pop/queue/q?batch=10")
        assert status == 200
        assert [len(str(message["data"])) for message in found["messages"]] == [1, 1 << 20, 1 << 20]


async def test_an_end_that_the_server_makes_is_said_with_a_close_notify(chain: Chain) -> None:
    """`connection: close`: the answer, then an end of the stream that nobody could have forged, and at once."""
    async with serve_kit.server(**chain.files) as house:
        plain = await house.connect()
        stream = trio.SSLStream(plain.stream, chain.client, server_hostname="localhost")
        await stream.send_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        watch = Stopwatch()
        with trio.fail_after(60):
            answer = await Peer(stream).end()  # a ragged end would raise, and be told apart below
            assert answer.startswith(b"HTTP/1.1 200")
            assert await stream.receive_some(1) == b""
        assert watch.seconds() < limits.HTTP_LINGER_SECONDS / 2


async def test_http_2_is_spoken_to_who_asks_for_it_alone(chain: Chain) -> None:
    """By ALPN: a client of HTTP/2 gets it; one that offers both gets HTTP/1.1, which has the fast lane."""
    async with serve_kit.server(**chain.files) as house:
        for http1, version in ((False, "HTTP/2"), (True, "HTTP/1.1")):
            async with httpx.AsyncClient(verify=chain.client, http1=http1, http2=True, timeout=60) as client:
                reply = await client.post(f"https://localhost:{house.port}/api/v1/push", json=wanted(3))
                assert (reply.status_code, reply.http_version, len(reply.json())) == (201, version, 3)


async def test_a_websocket(chain: Chain) -> None:
    """The upgrade, requests and their replies, many at once."""
    async with serve_kit.server(**chain.files) as house:
        peer = await secure(house, chain)
        connection = WSConnection(ConnectionType.CLIENT)
        await peer.send(connection.send(Request(host="localhost", target="/api/v1/ws")))
        texts = [""]
        sent = False
        with trio.fail_after(60):
            while len(texts) <= 101:
                connection.receive_data(await peer.receive_some())
                for event in connection.events():
                    if isinstance(event, AcceptConnection):
                        sent = True
                        call = '{"id":%d,"op":"push","items":[{"queue":"q","payload":1}]}'
                        frames = [connection.send(TextMessage(data=call % number)) for number in range(100)]
                        await peer.send(b"".join(frames))
                    elif isinstance(event, TextMessage):
                        texts[-1] += event.data
                        if event.message_finished:
                            texts.append("")
        assert sent
        assert all('"ok":true' in text for text in texts[1:101])
        await trio.aclose_forcefully(peer.stream)


async def test_the_peer_goes_while_its_pop_waits(chain: Chain) -> None:
    """It is seen at once, and the pop takes nothing: what comes then is there for another."""
    async with serve_kit.server(**chain.files) as house:
        peer = await secure(house, chain)
        await peer.send(b"GET /api/v1/pop/queue/q?wait=true&timeout=30000 HTTP/1.1\r\nhost: x\r\n\r\n")
        await trio.sleep(0.1)
        await trio.aclose_forcefully(peer.stream)
        await trio.testing.wait_all_tasks_blocked(0.1)
        other = await secure(house, chain)
        assert (await other.json("POST", "/api/v1/push", wanted()))[0] == 201
        assert (await other.json("GET", "/api/v1/pop/queue/q"))[0] == 200


@pytest.mark.parametrize(
    "said",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x00" * 5000,
    ],
)
async def test_what_is_no_handshake_is_not_served(chain: Chain, said: bytes) -> None:
    """Plain HTTP on the TLS port, and bytes that are nothing: at most an alert, and the end. Others are served on."""
    async with serve_kit.server(**chain.files) as house:
        peer = await house.connect()
        await peer.send(said)
        watch = Stopwatch()
        with trio.fail_after(60):
            assert b"HTTP/1.1" not in await peer.end()
        assert watch.seconds() < 5
        assert (await (await secure(house, chain)).request("GET", "/health"))[0] == 200


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_has_its_time(chain: Chain, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """Who says nothing, or half a hello, is let go."""
    monkeypatch.setattr(limits, "HTTP_HEAD_SECONDS", 0.3)
    async with serve_kit.server(**chain.files) as house:
        peer = await house.connect()
        await peer.send(said)
        watch = Stopwatch()
        with trio.fail_after(60):
            assert await peer.end() == b""
        assert watch.seconds() < 5


async def test_a_handshake_that_is_under_way_does_not_hold_up_a_shutdown(chain: Chain) -> None:
    """It ends with the shutdown, not when its time is over."""
    async with serve_kit.server(**chain.files) as house:
        peer = await house.connect()
        await trio.sleep(0.1)
        watch = Stopwatch()
        house.shutdown.set()
        with trio.fail_after(60):
            await house.stopped.wait()
            assert await peer.end() == b""
        assert watch.seconds() < 3


def _reset(sock: socket.socket) -> None:
    """Close with a RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux lists them")
async def test_resets_at_every_stage_leave_nothing_behind(chain: Chain) -> None:
    """A RST before the hello, in the middle of it, behind the handshake and in the middle of a request: every socket is
    closed, and the next connection is served."""
    hello = _client_hello(chain)
    async with serve_kit.server(**chain.files) as house:
        assert (await (await secure(house, chain)).request("GET", "/health"))[0] == 200
        before = descriptors()
        for stage in (b"", hello[:40], hello):
            for _ in range(20):
                sock = socket.create_connection(("127.0.0.1", house.port))
                sock.sendall(stage)
                await trio.lowlevel.checkpoint()
                _reset(sock)
        for _ in range(10):
            peer = await secure(house, chain)
            await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            assert isinstance(peer.stream, trio.SSLStream)
            _reset(peer.stream.transport_stream.socket)
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(peer.stream.transport_stream.socket.fileno())
        with trio.fail_after(60):
            while descriptors() > before:  # noqa: ASYNC110 - the kernel tells nobody
                await trio.sleep(0.05)
        assert (await (await secure(house, chain)).request("GET", "/health"))[0] == 200


def _client_hello(chain: Chain) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        chain.client.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


async def test_versions_that_are_broken_are_not_spoken(chain: Chain) -> None:
    """TLS 1.1 is refused, 1.2 and 1.3 are not."""
    async with serve_kit.server(**chain.files) as house:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            plain = await house.connect()
            stream = trio.SSLStream(plain.stream, context, https_compatible=True)
            assert (await Peer(stream).request("GET", "/health"))[0] == 200


def test_settings_that_cannot_be_used(chain: Chain, tmp_path: Path) -> None:
    """Named, before anything listens: a key without a certificate, a file that is not there, one that is no PEM, a key
    of another certificate, an encrypted key (nobody is asked for its password)."""
    assert server_context(Settings()) is None
    assert server_context(Settings(certfile=chain.both)) is not None
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    other = trustme.CA().issue_cert("localhost").private_key_pem
    other.write_to_path(str(tmp_path / "other.pem"))
    (tmp_path / "encrypted.pem").write_bytes(_encrypted(Path(chain.files["keyfile"]).read_bytes()))
    certificate = chain.files["certfile"]
    for wrong in (
        {"keyfile": chain.files["keyfile"]},
        {"certfile": "/not/there.pem"},
        {"certfile": str(junk)},
        {"certfile": certificate},
        {"certfile": certificate, "keyfile": str(tmp_path / "other.pem")},
        {"certfile": certificate, "keyfile": str(tmp_path / "encrypted.pem")},
    ):
        with pytest.raises(ValueError, match=r"QUEEN_ACTORS_(CERT|KEY)FILE"):
            server_context(Settings(**wrong))


def _encrypted(key: bytes) -> bytes:
    loaded = forms.load_pem_private_key(key, None)
    way = forms.BestAvailableEncryption(b"secret")
    return loaded.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, way)
