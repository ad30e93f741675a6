"""Text frames out of a peer's bytes, without any I/O: what nearly every frame of a WebSocket is (RFC 6455, 5.2).

trio-websocket reads everything that is anything else. A frame is ours if it is a whole text message, masked, of a
length that is allowed, and UTF-8; control frames are passed on one by one; and with the first bytes that are neither,
also when they are only doubtful, all that follows is passed on, so that there is one judge of what is wrong.
"""

from __future__ import annotations

from queen_actors import limits

_TEXT = 0x81  # whole, and without an extension
_PING, _PONG = 0x89, 0x8A
_MASKED = 0x80
_KEY_BYTES = 4
_SHORT, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127


class TextReader:
    """Takes bytes as they come; `texts` and `rest` give them back, in order."""

    def __init__(self, frame_bytes: int = limits.WS_FRAME_BYTES) -> None:
        self._frame_bytes = frame_bytes
        self.direct = True
        """False when everything is passed on from here on."""
        self._data = bytearray()

    @property
    def begun(self) -> int:
        """Bytes of what has not come whole."""
        return len(self._data)

    def lone(self, data: bytes | bytearray) -> bytes | None:
        """The message, if these bytes are one short frame and nothing else is here: what a peer sends that has one
        request under way. Otherwise they are for `receive`."""
        size = len(data) - 8
        if self._data or not self.direct or size <= _SHORT or data[0] != _TEXT:
            return None
        if data[1] != _MASKED | _TWO_BYTES or int.from_bytes(data[2:4], "big") != size:
            return None
        text = _unmasked(data[8:], data[4:8])
        return text if text.isascii() else None

    def receive(self, data: bytes | bytearray) -> None:
        """More bytes of the connection."""
        self._data += data

    def texts(self) -> list[bytes]:
        """The messages that have come whole, up to the first frame that is not ours."""
        if not self.direct:
            return []
        data, end, at = self._data, len(self._data), 0
        found: list[bytes] = []
        while end - at >= 2 and data[at] == _TEXT and data[at + 1] & _MASKED:
            size, begin = data[at + 1] ^ _MASKED, at + 6
            if size == _TWO_BYTES:
                size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 8
            elif size == _EIGHT_BYTES:
                size, begin = int.from_bytes(data[at + 2 : at + 10], "big"), at + 14
            if end < begin:
                break
            if size > self._frame_bytes or _is_longer_than_needed(size, begin - at):
                self.direct = False
                break
            if end < begin + size:
                break
            text = _unmasked(data[begin : begin + size], data[begin - _KEY_BYTES : begin])
            if not _is_utf8(text):
                self.direct = False
                break
            found.append(text)
            at = begin + size
        del data[:at]
        return found

    def rest(self) -> bytes:
        """What is to be passed on now: a whole control frame, or everything; empty when more must come, or when what
        is next is a text. Ask after `texts`."""
        data = self._data
        if self.direct and data and data[0] in (_PING, _PONG):
            if len(data) < 2:
                return b""
            size = data[1] ^ _MASKED
            if size <= _SHORT:
                return self._take(6 + size) if len(data) >= 6 + size else b""
            self.direct = False
        elif self.direct and data and (data[0] != _TEXT or (len(data) > 1 and not data[1] & _MASKED)):
            self.direct = False
        return b"" if self.direct else self._take(len(data))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken


def _is_longer_than_needed(size: int, head: int) -> bool:
    """A length is spelled in as few bytes as it takes; another spelling is an error."""
    return (head == 8 and size <= _SHORT) or (head == 14 and size < 1 << 16)


def _unmasked(masked: bytes | bytearray, key: bytes | bytearray) -> bytes:
    """What XOR with the key, over and over again, makes of it (5.3)."""
    size = len(masked)
    if size < _LONG:
        mask = (key * (size // _KEY_BYTES + 1))[:size]
        return (int.from_bytes(masked, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
    text = bytearray(masked)
    for place, byte in enumerate(key):
        text[place::_KEY_BYTES] = text[place::_KEY_BYTES].translate(_XOR[byte])
    return bytes(text)


_LONG = 512
"""From here on a table for each byte of the key takes less time than two numbers of so many digits: half of it for the
frame of a hundred messages."""
_XOR = [_unmasked(bytes(range(256)), bytes((byte,) * _KEY_BYTES)) for byte in range(256)]


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
