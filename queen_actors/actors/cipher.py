"""Encryption at rest: payloads of queues that ask for it are in the log, and in memory, only as AES-GCM ciphertext.

A ciphertext begins with a NUL byte, which no JSON text does, so that it is told apart from a payload in the clear (of
before the option was set) wherever it lies: in a message, a timer or a dead letter.
"""

from __future__ import annotations

import base64
import binascii
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec.structs import replace

from queen_actors.config import variable
from queen_actors.domain.effects import Record
from queen_actors.errors import BadRequest, QueenError

_MAGIC = b"\x00E1"
_NONCE_BYTES = 12
KEY_BYTES = 32
_VARIABLE = variable("encryption_key")

NO_KEY = (
    "this queue's payloads are encrypted, and the broker was started without the key: set encryption_key "
    "(QUEEN_ACTORS_ENCRYPTION_KEY) to the key that they were encrypted with"
)


def parse_key(text: str) -> bytes:
    """32 bytes from hex or base64. Raises ValueError."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise ValueError(f"{_VARIABLE} is neither hex nor base64") from None
    if len(key) != KEY_BYTES:
        raise ValueError(f"{_VARIABLE} must be {KEY_BYTES} bytes, in hex or base64; it has {len(key)}")
    return key


def sealed(payload: bytes) -> bool:
    """Is it a ciphertext of ours?"""
    return payload.startswith(_MAGIC)


class Cipher:
    """Encrypts and decrypts payloads with the key of the settings, or refuses when there is none."""

    def __init__(self, key: str) -> None:
        """Raises ValueError when the key is not one."""
        self._aead = AESGCM(parse_key(key)) if key else None

    def require(self) -> None:
        """Raises BadRequest when there is no key: nothing is stored in the clear that was to be encrypted."""
        if self._aead is None:
            raise BadRequest(
                "encryptionEnabled needs a key: start the broker with encryption_key "
                "(QUEEN_ACTORS_ENCRYPTION_KEY), 32 bytes in hex or base64",
                code="encryption_key_missing",
            )

    def seal(self, payload: bytes) -> bytes:
        """The payload as it may lie in the log; one that is sealed already stays as it is. Raises BadRequest."""
        if sealed(payload):
            return payload
        self.require()
        assert self._aead is not None
        nonce = os.urandom(_NONCE_BYTES)
        return _MAGIC + nonce + self._aead.encrypt(nonce, payload, None)

    def open(self, payload: bytes) -> bytes:
        """The JSON text. Raises QueenError 503 without the key, or with another one."""
        if not sealed(payload):
            return payload
        if self._aead is None:
            raise QueenError(NO_KEY, code="encryption_key_missing", status=503)
        nonce, text = payload[len(_MAGIC) : len(_MAGIC) + _NONCE_BYTES], payload[len(_MAGIC) + _NONCE_BYTES :]
        try:
            return self._aead.decrypt(nonce, text, None)
        except (InvalidTag, ValueError):  # the latter is said of what was cut off inside the nonce
            raise QueenError(
                "a payload was encrypted with another key than the broker has now, or is damaged",
                code="encryption_key_wrong",
                status=503,
            ) from None

    def plain(self, record: Record) -> Record:
        """The message with its payload in the clear."""
        return replace(record, payload=self.open(record.payload)) if sealed(record.payload) else record

    def plain_all(self, records: tuple[Record, ...]) -> tuple[Record, ...]:
        """The messages with their payloads in the clear; the same tuple when they are already."""
        for record in records:
            if sealed(record.payload):
                return tuple(self.plain(one) for one in records)
        return records
