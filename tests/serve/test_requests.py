"""The request reader, alone: what it reads, what it refuses, and that nobody reads the same bytes differently."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from request_corpus import BODY, DOUBTFUL, HEALTH, HOST, KV, SERVED, chunked, post, sized

from queen_actors import limits
from queen_actors.serve.requests import Message, Refused, RequestReader, origin_form, parse_head

Read = tuple[str, bytes, bytes, dict[str, str], bytes]
"""Method, path, query, headers, body."""


@pytest.fixture(autouse=True)
def lane() -> None:
    """There is no lane here."""


def read(data: bytes, *cuts: int) -> tuple[list[Read], int | None]:
    """What the reader makes of these bytes, cut at these places, and the status of its refusal."""
    reader, found = RequestReader(), list[Read]()
    places = [0, *sorted(cuts), len(data)]
    try:
        for start, end in pairwise(places):
            reader.receive(data[start:end])
            while (message := reader.next()) is not None:
                head = message.head
                headers = dict(head.headers)
                if head.chunked:  # in any case of its letters; h11 gives it in lower case
                    headers["transfer-encoding"] = headers["transfer-encoding"].lower()
                found.append((head.method, head.path, head.query, headers, message.body))
                if not head.keeps:
                    return found, None
    except Refused as refused:
        return found, refused.status
    return found, None


def h11_reads(data: bytes) -> Iterator[Read]:
    """What h11 makes of these bytes, until it refuses or needs more."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.HTTP_HEAD_BYTES)
    connection.receive_data(data)
    request: h11.Request | None = None
    body = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return
        if isinstance(event, h11.Request):
            request, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            target, _, query = request.target.partition(b"?")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
            yield request.method.decode(), origin_form(target), query, headers, body
            if request.method == b"CONNECT":
                return
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()
        else:
            return


def agree(data: bytes) -> None:
    """Whatever the reader takes for a request, h11 does too, and for the same one."""
    ours, _ = read(data)
    for mine, theirs in zip(ours, [*h11_reads(data)], strict=False):
        assert mine == theirs
    assert len(ours) <= len([*h11_reads(data)])


@pytest.mark.parametrize("data", [data for data in SERVED if b"67108865" not in data])
def test_what_is_served_is_read_as_h11_reads_it(data: bytes) -> None:
    """One request, the same as in another implementation."""
    assert read(data) == ([*h11_reads(data)], None)
    assert len(read(data)[0]) == 1


@pytest.mark.parametrize("data", DOUBTFUL)
def test_what_is_doubtful_is_refused(data: bytes) -> None:
    """No request comes of it: neither before the refusal nor after it, and it does not wait for more bytes."""
    found, status = read(data)
    assert found == []
    assert status in {400, 417}
    assert read(data, *range(1, len(data))) == (found, status)


@pytest.mark.parametrize("data", SERVED + DOUBTFUL)
def test_where_the_bytes_are_cut_makes_no_difference(data: bytes) -> None:
    """In one piece, in two cut at every place, byte by byte, and with another request behind it."""
    behind = HEALTH + HOST + b"\r\n"
    whole = read(data + behind)
    for cut in range(1, len(data + behind)):
        assert read(data + behind, cut) == whole, cut
    assert read(data + behind, *range(1, len(data + behind))) == whole


REQUESTS = st.sampled_from([data for data in SERVED + DOUBTFUL if len(data) < 1000])
FRAGMENTS = st.sampled_from(
    [
        *(bytes([byte]) for byte in b"\r\n \t:,;\x00\xff05a/?#*"),
        *(b"\r\n\r\n", b"GET ", b"POST ", b"PUT ", b"/health", b"http://", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"30"),
        *(b"Host: x\r\n", b"Host:", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"content-length:"),
        *(b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:", b"chunked", b"identity", b"gzip"),
        *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"X: y\r\n", b" folded\r\n"),
        *(b"0\r\n\r\n", b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b"hello"),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Good and doubtful requests one behind the other, with some of their bytes lost, doubled or replaced."""
    data = b"".join(draw(st.lists(REQUESTS, min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 3)))
        data = data[:start] + draw(FRAGMENTS | st.binary(max_size=2)) + data[end:]
    return data


@settings(max_examples=500, deadline=None)
@given(mutated() | st.lists(FRAGMENTS, max_size=30).map(b"".join))
@example(HEALTH + HOST + b"Content-Length: 5\r\n\r\nhello" + HEALTH + HOST + b"\r\n")
@example(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloxx0\r\n\r\n")
def test_no_bytes_are_read_in_two_ways(data: bytes) -> None:
    """Against h11's reading of the same bytes: the same requests, or fewer."""
    agree(data)


@settings(max_examples=200, deadline=None)
@given(mutated(), st.data())
def test_no_cut_changes_what_is_read(data: bytes, draw: st.DataObject) -> None:
    """Also of bytes that nobody has thought of."""
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=6))
    assert read(data, *cuts) == read(data)


def test_bounds() -> None:
    """A head, the announced length, the sum of chunks, a chunk's line, and what chunks take beside their content."""
    long = limits.HTTP_HEAD_BYTES
    assert read(HEALTH + HOST + b"x: " + b"y" * (long - 100) + b"\r\n\r\n")[1] is None
    assert read(HEALTH + HOST + b"x: " + b"y" * long + b"\r\n\r\n")[1] == 431
    assert read(HEALTH + HOST + b"x: " + b"y" * long)[1] == 431
    assert read(post(b"content-length: %d" % (limits.BODY_BYTES + 1)))[1] == 413
    assert read(post(b"content-length: %d" % limits.BODY_BYTES))[1] is None
    half = b"%x\r\n" % (limits.BODY_BYTES // 2 + 1)
    reader = RequestReader()
    reader.receive(post(b"transfer-encoding: chunked", body=half))
    assert reader.next() is None
    mib = b"x" * limits.MIB
    for _ in range(limits.BODY_BYTES // 2 // limits.MIB):
        reader.receive(mib)
        assert reader.next() is None
    reader.receive(b"x\r\n" + half)
    with pytest.raises(Refused) as refused:
        reader.next()
    assert refused.value.status == 413
    assert read(post(b"transfer-encoding: chunked", body=b"5;" + b"x" * limits.HTTP_CHUNK_LINE_BYTES))[1] == 400
    assert read(chunked(*[b"x"] * limits.HTTP_CHUNK_FRAMING_BYTES))[1] == 400
    assert read(chunked(*[b"x" * 16] * limits.HTTP_CHUNK_FRAMING_BYTES))[1] is None


def test_a_body_in_pieces_is_counted_as_it_comes() -> None:
    """`held` is what the connection has to answer for; a finished body is no longer in it."""
    reader = RequestReader()
    reader.receive(post(b"content-length: 100000", body=b"x" * 10))
    assert (reader.next(), reader.held, reader.begun) == (None, 10, True)
    reader.receive(b"y" * 90_000)
    assert (reader.next(), reader.held) == (None, 90_010)
    reader.receive(b"z" * 9_990 + HEALTH)
    message = reader.next()
    assert isinstance(message, Message)
    assert len(message.body) == 100_000
    assert (reader.next(), reader.unread) == (None, HEALTH)


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nframe",
        HEALTH + HOST + b"Upgrade: h2c\r\nConnection: upgrade, http2-settings\r\n\r\n",
        HEALTH + HOST + b"Upgrade: x\r\n\r\n",
        KV + HOST + b"Upgrade: x\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_another_protocol_stays_unread(data: bytes) -> None:
    """Every byte of it, also behind a request, and however it is cut."""
    for before in (b"", HEALTH + HOST + b"\r\n"):
        for cut in range(len(before + data)):
            reader = RequestReader()
            reader.receive((before + data)[:cut])
            served = [reader.next()]
            reader.receive((before + data)[cut:])
            served += [reader.next() for _ in range(3)]
            assert len([message for message in served if message is not None]) == len(before and [1])
            assert (reader.other_protocol, reader.unread) == (True, data)


def test_a_head_says_what_is_to_be_done() -> None:
    """Which connection goes on, which body waits for a word."""

    def head(data: bytes) -> tuple[bool, bool]:
        parsed = parse_head(data[: data.index(b"\r\n\r\n") + 4])
        return parsed.keeps, parsed.expects

    assert head(HEALTH + HOST + b"\r\n") == (True, False)
    assert head(HEALTH + HOST + b"connection: x, CLOSE\r\n\r\n") == (False, False)
    assert head(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n") == (False, False)
    assert head(sized(b"expect: 100-Continue", body=BODY)) == (True, True)
    assert head(HEALTH + HOST + b"expect: 100-continue\r\n\r\n") == (True, False)
