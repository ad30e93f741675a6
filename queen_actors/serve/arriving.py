"""What a WebSocket's peer sends, from its upgrade request on: the session reads it, and its texts are taken out here.

trio-websocket reads the request, and gets each control frame, to which it answers. With the first bytes that are
anything else it reads the stream itself (`texts.py`). A session that has to wait with a request lets the task of
trio-websocket read in the meantime, so that what the peer says about the connection is heard.
"""

from __future__ import annotations

from collections import deque

import trio

from queen_actors import limits
from queen_actors.wire.socket import TOO_MANY, close_frame, is_close, is_control

from .connection import Replayed
from .outbox import Outbox
from .texts import TextReader

READ_BYTES = 64 * 1024
UNFINISHED_FRAMES = 4
"""So many times the longest frame may come without one whole message: fragments without an end, or control frames."""
_HEAD_END = b"\r\n\r\n"


class Incoming:
    """What all connections of a server have received of messages that nobody has taken yet, in bytes."""

    def __init__(self) -> None:
        self.held = 0


class Arriving(trio.abc.Stream):
    """The peer's stream as trio-websocket sees it: reads come from the peer, writes go into the outbox."""

    def __init__(self, stream: trio.abc.ReceiveStream, outbox: Outbox, incoming: Incoming, frame_bytes: int) -> None:
        self._stream = stream
        self._outbox = outbox
        self._incoming = incoming
        self._frame_bytes = frame_bytes
        self._held = 0
        self.unfinished = 0
        self.ended = trio.Event()
        """Nothing more is read: the peer's end of stream, or trio-websocket has had enough."""
        self.said_close = False
        """trio-websocket has sent a close: its answer to the peer's, if it has ended too."""
        self._handshake: bytearray | None = bytearray()
        """The peer's request so far; None when it is over, or is left to trio-websocket."""
        self._behind = b""
        """What the peer has sent behind its request: it is read when the request has been answered."""
        self._answered: trio.Event | None = None
        self._reader: TextReader | None = None
        self._texts: deque[bytes] = deque()
        self._given = b""
        """Bytes that trio-websocket is to read next."""
        self._over = False
        """Nothing comes behind them."""
        self._wanted = False
        """Has trio-websocket done with what it was given?"""
        self._away = False
        self._reading = False
        self._gone = False
        self._session = trio.lowlevel.ParkingLot()
        self._library = trio.lowlevel.ParkingLot()

    # -- the session's side --------------------------------------------------------------------------------------------

    def text(self) -> bytes | None:
        """The next text, if one has come."""
        if not self._texts:
            return None
        text = self._texts.popleft()
        if not self._texts:
            self.settle()
        return text

    async def more(self) -> bytes | None:
        """Read on, to the next text; None when what comes next is one of trio-websocket's messages, or nothing. Ask
        when there is no `text`."""
        while not self._texts:
            reader = self._reader
            if reader is None or self._over or self._gone or self.ended.is_set():
                return None
            if not reader.direct and not reader.begun:
                return None
            if self._reading or self._given or not self._wanted:
                await self._session.park()
                continue
            text = await self._read_on(reader)
            if text is not None:
                return text
        return self.text()

    def away(self, away: bool) -> None:
        """Whether the session has to wait with a request, for as long as may be."""
        self._away = away
        if away:
            self._library.unpark_all()

    def settle(self) -> None:
        """A message has been taken, and no text is left: count what is held now."""
        self.unfinished = 0
        self._count()

    def forget(self) -> None:
        """The connection is gone, and what it held."""
        self._incoming.held -= self._held
        self._held = 0
        self._gone = True
        self._session.unpark_all()

    def answered(self, *, accepted: bool) -> None:
        """The request has its answer. Texts are read here from now on; after a request that was too odd to see its
        end, trio-websocket goes on reading alone."""
        if accepted and self._answered is not None:
            self._reader = TextReader(self._frame_bytes)
        self._handshake = None
        if self._answered is not None:
            self._answered.set()

    # -- trio-websocket's side -----------------------------------------------------------------------------------------

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.ended.is_set():  # it reads once more after it has closed
            await trio.lowlevel.checkpoint()
            return b""
        data = await self._next()
        if self._reader is None or not self._reader.direct:  # else it is a control frame, whole and soon forgotten
            self.unfinished += len(data)
        if self.unfinished > UNFINISHED_FRAMES * self._frame_bytes:
            self._outbox.finish(close_frame(1009, "no whole message among so many bytes"))
            data = b""
        if not self._room():
            data = b""
        if not data:
            self._end()
        return data

    async def _next(self) -> bytes | bytearray:
        """What trio-websocket is to read next; empty at the end."""
        while True:
            reader = self._reader
            if self._given:
                data, self._given = self._given, b""
                return data
            if (self._over and not self._texts) or self.ended.is_set():
                return b""
            if reader is None or not (reader.direct or reader.begun):
                return await self._passed_on()
            if self._away and not self._texts and not self._reading:
                text = await self._read_on(reader)
                if text is not None:
                    self._texts.append(text)
                    self._count()
                continue
            self._wanted = True
            self._session.unpark_all()
            await self._library.park()
            self._wanted = False

    async def _passed_on(self) -> bytes | bytearray:
        """Bytes as they come: the request's, or those of a connection that trio-websocket reads alone."""
        if self._answered is not None:
            await self._answered.wait()
            if self._reader is not None and self._reader.direct:
                return await self._next()
        data = await self._take()
        return data if self._handshake is None else self._request(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        frame = bytes(data)
        if is_close(frame):
            self.said_close = True
            self._outbox.finish(frame)
            await trio.lowlevel.checkpoint()
            return
        await self._outbox.emptier()  # a peer that pings and never reads
        self._outbox.put(frame, urgent=is_control(frame))
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await self._outbox.room()

    async def aclose(self) -> None:
        self._end()
        await trio.lowlevel.checkpoint()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _read_on(self, reader: TextReader) -> bytes | None:
        """Take apart what is there, or else what comes next: the result is a text that came alone. Only one task is in
        here."""
        if reader.begun and self._take_apart(reader):
            return None
        self._reading = True
        try:
            data = await self._take()
        finally:
            self._reading = False
            if self._session:
                self._session.unpark_all()
        text = reader.lone(data)
        if text is not None:
            if self.unfinished:
                self.settle()
            return text
        reader.receive(data)
        if not data or not self._room():
            self._over = True
            self._library.unpark_all()
            return None
        self._take_apart(reader)
        return None

    def _take_apart(self, reader: TextReader) -> bool:
        """Texts to the session, and what is to be passed on, behind them, to trio-websocket; False: more must come."""
        self._texts += reader.texts()
        if self._texts:
            return True
        self._given = reader.rest()
        if not self._given:
            return False
        self._library.unpark_all()
        return True

    async def _take(self) -> bytes | bytearray:
        """What comes next of the stream, empty at its end."""
        if self._behind:
            data, self._behind = self._behind, b""
            return data
        try:
            if isinstance(self._stream, Replayed):
                return await self._stream.read()
            return await self._stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def _request(self, data: bytes | bytearray) -> bytes | bytearray:
        """Of what has come, what belongs to the request; the rest waits for its answer."""
        assert self._handshake is not None
        before = len(self._handshake)
        self._handshake += data
        end = self._handshake.find(_HEAD_END)
        if end >= 0:
            self._answered = trio.Event()
            size = end + len(_HEAD_END) - before
            data, self._behind = data[:size], bytes(data[size:])
        if end >= 0 or before + len(data) > limits.HTTP_HEAD_BYTES:
            self._handshake = None
        return data

    def _room(self) -> bool:
        """May the message go on that is being received? If not, the connection is closed."""
        self._count()
        if self._incoming.held <= limits.WS_INCOMING_BYTES or self._held <= READ_BYTES:
            return True
        self._outbox.finish(close_frame(TOO_MANY, "too much is being received; send it again"))
        return False

    def _count(self) -> None:
        """Tell the server what this connection holds."""
        if self._gone:
            return
        begun = 0 if self._reader is None else self._reader.begun
        held = self.unfinished + begun + sum(map(len, self._texts))
        self._incoming.held += held - self._held
        self._held = held

    def _end(self) -> None:
        self.ended.set()
        self._session.unpark_all()
        self._library.unpark_all()
