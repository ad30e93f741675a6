"""The reader of text frames beside wsproto, which is what reads without it: the same messages from the same bytes."""

from __future__ import annotations

import random

import pytest
from socket_peer import frame
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import RemoteProtocolError

from queen_actors import limits
from queen_actors.serve.texts import TextReader

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def masked(opcode: int, payload: bytes, key: bytes) -> bytes:
    """A frame with this masking key."""
    plain = frame(opcode, payload)
    cut = len(plain) - len(payload)
    return plain[: cut - 4] + key + bytes(byte ^ key[place % 4] for place, byte in enumerate(payload))


class Judge:
    """wsproto as trio-websocket uses it."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self._connection = Connection(ConnectionType.SERVER)
        self._text = ""
        self._binary = b""
        self.over = False

    def receive(self, data: bytes) -> None:
        if self.over:
            return
        try:
            self._connection.receive_data(data)
            for event in self._connection.events():
                self._note(event)
        except RemoteProtocolError:
            self._end("error")

    def _note(self, event: object) -> None:
        if self.over:
            return
        if isinstance(event, TextMessage):
            self._text += event.data
            if event.message_finished:
                self.seen.append(self._text.encode())
                self._text = ""
        elif isinstance(event, BytesMessage):
            self._binary += event.data
            if event.message_finished:
                self.seen.append(("binary", self._binary))
                self._binary = b""
        elif isinstance(event, Ping | Pong):
            self.seen.append((type(event).__name__, bytes(event.payload)))
        elif isinstance(event, CloseConnection):
            self._end(int(event.code))

    def _end(self, how: object) -> None:
        self.over = True
        self.seen.append(how)


def read(chunks: list[bytes]) -> list[object]:
    """What is seen by the reader, with wsproto behind it for what it passes on."""
    reader, judge = TextReader(), Judge()
    for chunk in chunks:
        alone = reader.lone(chunk)
        if alone is not None:
            judge.seen.append(alone)
            continue
        reader.receive(chunk)
        while True:
            if not judge.over:
                judge.seen += reader.texts()
            rest = reader.rest()
            if not rest:
                break
            judge.receive(rest)
    return judge.seen


def judged(chunks: list[bytes]) -> list[object]:
    judge = Judge()
    for chunk in chunks:
        judge.receive(chunk)
    return judge.seen


def test_texts_come_whole_whatever_their_key_and_length() -> None:
    """Every spelling of a length, and a key that is not zero."""
    reader = TextReader()
    payloads = [b"", b"x", b"{}" * 62 + b"x", b"y" * 126, "é€😀".encode(), b"z" * 65_535, b"z" * 65_536]
    for payload in payloads:
        reader.receive(masked(TEXT, payload, b"\x37\xfa\x21\x3d"))
    assert reader.texts() == payloads
    assert reader.rest() == b""
    assert reader.direct


@pytest.mark.parametrize("size", [126, 127, 128, 129, 1000, 65_528])
def test_a_text_that_comes_alone_is_the_same_text(size: int) -> None:
    """Read at once, it is what the reader of many would have found, and leaves nothing behind."""
    payload, key = random.Random(size).randbytes(size).hex().encode()[:size], b"\x37\xfa\x21\x3d"
    reader = TextReader()
    assert reader.lone(masked(TEXT, payload, key)) == payload
    assert (reader.begun, reader.direct, reader.texts(), reader.rest()) == (0, True, [], b"")


def test_whatever_is_not_one_plain_text_does_not_come_alone() -> None:
    """Short ones, longer ones, parts, several, what lies behind a part, and everything doubtful go the way of all."""
    whole = frame(TEXT, b"x" * 200)
    spelled_long = b"\x81\xff" + (200).to_bytes(8, "big") + bytes(4) + b"x" * 200
    unmasked, ping = frame(TEXT, b"x" * 200, masked=False), frame(PING, b"x" * 100)
    others = [
        b"",
        b"\x81",
        frame(TEXT),
        frame(TEXT, b"x" * 125),
        frame(TEXT, b"x" * 65_536),
        ping,
        spelled_long,
        unmasked,
    ]
    others += [whole[:-1], whole + b"\x81", whole * 2, frame(TEXT, b"x" * 200, rsv=4), frame(BINARY, b"x" * 200)]
    others += [frame(TEXT, b"x" * 200, fin=False), frame(TEXT, b"\xff" * 200), frame(TEXT, "é".encode() * 100)]
    for data in others:
        assert TextReader().lone(data) is None, data[:20]
    begun = TextReader()
    begun.receive(whole[:7])
    assert begun.lone(whole) is None
    passing = TextReader()
    passing.direct = False
    assert passing.lone(whole) is None


FRAMES = [
    frame(TEXT, b'{"op":"ping"}'),
    masked(TEXT, "käse".encode(), b"\x01\x02\x03\x04"),
    frame(TEXT, b"x" * 200),
    frame(PING, b"are you there"),
    frame(PONG),
    frame(PONG, b"12345678"),
]
DOUBTFUL = [
    frame(TEXT, b"part", fin=False) + frame(PING) + frame(0, b" and rest"),
    frame(BINARY, b"\x00\x01"),
    frame(CLOSE, b"\x03\xe8bye"),
    frame(CLOSE),
    frame(TEXT, b"not masked", masked=False),
    frame(TEXT, b"\xff\xfe"),
    frame(TEXT, b"\xed\xa0\x80"),
    frame(TEXT, b"extended", rsv=4),
    frame(PING, b"x" * 126),
    frame(PING, b"", fin=False),
    frame(PING, b"", masked=False),
    frame(3, b"reserved"),
    frame(0, b"nothing to continue"),
    b"\x81\xfe\x00\x05" + bytes(4) + b"short",
    b"\x81\xff" + (70).to_bytes(8, "big") + bytes(4) + b"x" * 70,
    b"\x81\xff" + (1 << 63).to_bytes(8, "big") + bytes(4),
    b"GET / HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("doubtful", DOUBTFUL)
def test_what_is_doubtful_is_passed_on_however_it_is_cut(doubtful: bytes) -> None:
    """Before and behind it are texts; every cut of the bytes in two, and byte by byte: wsproto alone sees the same."""
    whole = FRAMES[0] + FRAMES[3] + doubtful + FRAMES[1] + FRAMES[0]
    expected = judged([whole])
    assert read([whole]) == expected
    assert read([whole[at : at + 1] for at in range(len(whole))]) == expected
    for cut in range(1, len(whole)):
        assert read([whole[:cut], whole[cut:]]) == expected


def test_any_mixture_is_read_as_wsproto_reads_it() -> None:
    """Random frames, cut at random."""
    chance = random.Random(20261129)
    for _ in range(400):
        frames = [chance.choice(FRAMES) for _ in range(chance.randrange(8))]
        frames += [chance.choice(DOUBTFUL) for _ in range(chance.randrange(2))]
        frames += [chance.choice(FRAMES) for _ in range(chance.randrange(4))]
        whole = b"".join(frames)
        cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(chance.randrange(6)))
        chunks = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert read(chunks) == judged([whole])


def test_a_length_that_is_not_allowed_is_not_waited_for() -> None:
    """A text longer than a frame may be is passed on with its head, and with all that follows."""
    reader = TextReader()
    head = b"\x81\xff" + (limits.WS_FRAME_BYTES + 1).to_bytes(8, "big") + bytes(4)
    reader.receive(head)
    assert reader.texts() == []
    assert reader.rest() == head
    reader.receive(b"more")
    assert (reader.texts(), reader.rest(), reader.direct) == ([], b"more", False)


def test_a_long_text_in_many_pieces_is_not_copied_again_and_again() -> None:
    """8 MiB, piece by piece: what is held is what has come."""
    reader = TextReader()
    whole = frame(TEXT, b"x" * limits.WS_FRAME_BYTES)
    for at in range(0, len(whole) - 1, 1 << 16):
        reader.receive(whole[at : min(at + (1 << 16), len(whole) - 1)])
        assert reader.texts() == []
        assert reader.rest() == b""
    reader.receive(whole[-1:])
    (text,) = reader.texts()
    assert len(text) == limits.WS_FRAME_BYTES
