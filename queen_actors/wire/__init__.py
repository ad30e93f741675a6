"""Bytes of the wire to commands of the domain, and replies back to bytes: no I/O, no clock, no ids.

One file per feature. Payloads and values are kept as the JSON text that was sent (`msgspec.Raw`): a number keeps its
digits and a string its escapes. Parsers raise `BadRequest`, `TooLarge` and `Forbidden` with the wire's code and reason.
"""
