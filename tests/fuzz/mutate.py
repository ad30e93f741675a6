"""Values and bytes that are nearly right: what both the socket's inputs and the decoders' are made with."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

ODD_TEXTS: Sequence[str] = (
    "", " ", "\0", "\n", "a" * 600, "é" * 300, "\ud7ff\ue000", "𝄞", "../..", "a//b", "%00", "\u202e", "null",
    "1e999", "-0", "0" * 400, "9" * 25, "\\u0000", "2026-02-30T00:00:00Z", "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00:00+23:59", "queen-locks", "__QUEUE_MODE__", "p1", "KLUv/QQAAQAAAAA=", "//////8=",
)  # fmt: skip
ODD_NUMBERS: Sequence[int | float] = (
    0, -1, 1, 2, 127, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -0.0, 1e308, 5e-324,
    1e16,
)  # fmt: skip


def odd_value(random: Random, depth: int = 0) -> Any:
    """A JSON value that a field was perhaps not made for."""
    kind = random.randrange(8 if depth < 2 else 6)
    match kind:
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return random.choice(ODD_NUMBERS)
        case 4 | 5:
            return random.choice(ODD_TEXTS)
        case 6:
            return [odd_value(random, depth + 1) for _ in range(random.randrange(4))]
        case _:
            return {random.choice(("a", "op", "queue", "", "key")): odd_value(random, depth + 1) for _ in range(3)}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value, with every key or index of it."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items: Sequence[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return found
    for key, inner in items:
        found.append((value, key))
        found += places(inner)
    return found


def mutated(random: Random, value: Any) -> Any:
    """A copy with one to three things changed, removed, doubled or added."""
    made = copy.deepcopy(value)
    for _ in range(random.randint(1, 3)):
        where = places(made)
        if not where:
            return odd_value(random)
        holder, key = random.choice(where)
        match random.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder += copy.deepcopy(holder[-3:])
            case 2 if isinstance(holder, dict):
                holder[random.choice(ODD_TEXTS) or "x"] = odd_value(random)
            case 3 if isinstance(holder, dict):
                holder[str(key).swapcase()] = holder.pop(key)
            case _:
                holder[key] = odd_value(random)
    return made


def as_json(random: Random, value: Any) -> bytes:
    """The value as a client might spell it, or nearly."""
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    match random.randrange(12):
        case 0:
            text = text.replace("1e+308", "1e99999")
        case 1:
            text = text.replace(":", " :\n", 2)
        case 2:
            text = "\ufeff" + text
        case 3:
            text = text.replace('"', '"\\ud800', 1)
        case 4:
            text = "[" * 3000 + text
        case _:
            pass
    return text.encode("utf-8", "surrogatepass")


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes changed, cut, doubled or put in."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        at = random.randrange(len(made) + 1)
        match random.randrange(6):
            case 0:
                del made[at:]
            case 1:
                made[at:at] = random.randbytes(random.choice((1, 2, 4, 40)))
            case 2:
                del made[at : at + random.choice((1, 2, 4, 40))]
            case 3:
                made[at:at] = made[at : at + random.choice((1, 8, 100))]
            case 4:
                width = random.choice((1, 2, 4, 8))
                made[at : at + width] = random.choice((b"\xff" * width, bytes(width), b"\x80" + bytes(width - 1)))
            case _:
                if at < len(made):
                    made[at] ^= 1 << random.randrange(8)
    return bytes(made)
