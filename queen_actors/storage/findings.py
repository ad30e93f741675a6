"""What a look at a data directory finds: sentences, and what can be done about each."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

BACKUP = "Restore the data directory from a backup"

Remedy = Literal["cut", "remove", "aside", "rebuild", "restrict", "format", "note"]
"""What a repair does about a finding; each is explained in `doctor.py`."""


class Finding(Struct, frozen=True):
    """Something that is wrong with a file, in a sentence, and what can be done."""

    name: str
    """The file, in the directory; empty: the directory itself."""
    sentence: str
    advice: str
    remedy: Remedy | None = None
    """What a repair does; None when nothing that is safe can be done about it."""
    at: int = 0
    """The byte at which a cut would be made."""
    harmless: bool = False
    """A start accepts it, or deals with it by itself."""


class Findings:
    """Findings, and facts: sentences about what is there."""

    def __init__(self) -> None:
        self.all: list[Finding] = []
        self.facts: list[str] = []

    def add(
        self,
        name: str,
        sentence: str,
        advice: str,
        remedy: Remedy | None = None,
        *,
        at: int = 0,
        harmless: bool = False,
    ) -> None:
        self.all.append(Finding(name, sentence, advice, remedy, at, harmless))

    @property
    def refused(self) -> bool:
        """Is there anything that an open would not accept, or that was lost?"""
        return any(not finding.harmless for finding in self.all)
