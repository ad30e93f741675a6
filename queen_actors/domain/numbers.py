"""The arithmetic of `incr`: exact decimals (`wire-kv-locks-timers-transactions.md`, 2.6).

A number is exact while it fits 38 digits: below 10**38, with at most 38 places behind the point and at most 38
significant digits. A sum beyond that falls back to a double, and one that no double can hold is not a number.
"""

from __future__ import annotations

from decimal import Context, Decimal, Inexact, InvalidOperation

EXACT_DIGITS = 38
_EXACT = Context(prec=EXACT_DIGITS, Emin=-1, Emax=EXACT_DIGITS - 1, traps=[Inexact, InvalidOperation])
"""Emin puts the last exact place at 10**-38. Overflow and a lost digit are both Inexact."""


def parse_number(text: bytes) -> Decimal | None:
    """The number that a compact JSON text is, or None when it is something else."""
    if text[:1] not in _NUMBER_STARTS:
        return None
    try:
        return Decimal(text.decode())
    except InvalidOperation:  # an exponent that even a Decimal cannot hold: 0 or infinite as a double
        return Decimal(float(text))


def add(start: Decimal, delta: Decimal) -> Decimal | None:
    """The sum, or None when it is beyond a double."""
    try:
        total = _EXACT.add(start, delta)
    except (Inexact, InvalidOperation):
        total = Decimal(repr(float(start) + float(delta)))
    return total if total.is_finite() else None


def number_text(number: Decimal) -> bytes:
    """The JSON text of a sum: an integral one as an integer, no needless zeros, no sign on zero."""
    try:
        text = format(_EXACT.normalize(number), "f")
    except Inexact:
        text = repr(float(number))
    return b"0" if text == "-0" else text.encode()


_NUMBER_STARTS = frozenset(bytes([code]) for code in b"-0123456789")
