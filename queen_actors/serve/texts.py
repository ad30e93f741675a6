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
_SHORT, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127


class TextReader:
    """Takes bytes as they come; `texts` and `rest` give them back, in order."""

    def __init__(self) -> None:
        self.direct = True
        """False when everything is passed on from here on."""
        self._data = bytearray()

    @property
    def begun(self) -> int:
        """Bytes of what has not come whole."""
        return len(self._data)

    def receive(self, data: bytes | bytearray) -> None:
        """More bytes of the connection."""
        self._data += data

    def texts(self) -> list[bytes]:
        """The messages that have come whole, up to the first frame that is not ours."""
        found: list[bytes] = []
        data, at = self._data, 0
        while self.direct and len(data) - at >= 2:
            if data[at] != _TEXT or not data[at + 1] & _MASKED:
                break
            size, mask = data[at + 1] ^ _MASKED, at + 2
            if size == _TWO_BYTES:
                size, mask = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == _EIGHT_BYTES:
                size, mask = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            begin = mask + 4
            if len(data) < begin:
                break
            if size > limits.WS_FRAME_BYTES or _is_longer_than_needed(size, mask - at):
                self.direct = False
                break
            if len(data) < begin + size:
                break
            text = _unmasked(data, mask, size)
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
    return (head == 4 and size <= _SHORT) or (head == 10 and size < 1 << 16)


def _unmasked(data: bytearray, mask: int, size: int) -> bytes:
    key = bytes(data[mask : mask + 4])
    masked = data[mask + 4 : mask + 4 + size]
    pattern = key * (size // 4) + key[: size % 4]
    return (int.from_bytes(masked, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
