"""What an answer must look like before anything is read from it."""

from __future__ import annotations

from typing import Any, cast

from .errors import ProtocolError


def as_object(answer: Any) -> dict[str, Any]:
    """The answer as an object. Raises ProtocolError."""
    if not isinstance(answer, dict):
        raise ProtocolError(f"the answer is no object: {str(answer)[:200]}")
    return cast("dict[str, Any]", answer)


def as_rows(answer: Any) -> list[dict[str, Any]]:
    """The answer as a list of objects. Raises ProtocolError."""
    if not isinstance(answer, list):
        raise ProtocolError(f"the answer is no list: {str(answer)[:200]}")
    rows = cast("list[dict[str, Any]]", answer)
    if not all(type(row) is dict for row in rows):
        raise ProtocolError(f"the answer is no list of objects: {str(rows)[:200]}")
    return rows


def one_each(answer: Any, asked: int, what: str) -> list[dict[str, Any]]:
    """A list with one object for each of the `asked` things, in their order. Raises ProtocolError."""
    rows = as_rows(answer)
    if len(rows) != asked:
        raise ProtocolError(f"the answer to {asked} {what} has {len(rows)} results")
    return rows


def results(answer: Any, asked: int, what: str) -> list[dict[str, Any]]:
    """The `results` of an answer, one for each of the `asked` things. Raises ProtocolError."""
    return one_each(as_object(answer).get("results"), asked, what)
