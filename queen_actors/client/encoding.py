"""JSON text of the client: what a caller hands in goes out exactly, or is refused; what comes back is decoded once.

msgspec does the work. Two things that it does not do are done here: a NaN or an infinity is refused instead of
becoming `null` on the quiet, and a text with a lone surrogate (legal in JSON, and sent by JavaScript) is read and
written by the standard library instead.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import msgspec

_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder()


def encode(value: object) -> bytes:
    """A value as compact JSON. Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold."""
    try:
        text = _encoder.encode(value)
    except UnicodeEncodeError:
        return _encode_with_surrogates(value)
    if b"null" in text:  # the only way in which a NaN can show; the walk below costs nothing where there is none
        json.dumps(msgspec.to_builtins(value), allow_nan=False)
    return text


def _encode_with_surrogates(value: object) -> bytes:
    return json.dumps(msgspec.to_builtins(value), allow_nan=False, separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """A JSON text as plain Python values; integers of any length stay exact. Raises ValueError."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def segment(name: str) -> str:
    """A name as one path segment, every reserved character escaped, so that any legal name comes back as it went.

    A segment of dots only is escaped too: clients and proxies would take it for a way up.
    """
    escaped = quote(name, safe="")
    return escaped.replace(".", "%2E") if escaped in (".", "..") else escaped
