"""Figures into the pages that show them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README, PERFORMANCE, BENCHMARKS = ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "benchmarks.md"


def replaced(path: Path, mark: str, text: str) -> None:
    """`text` between the two comments `<!-- mark -->` and `<!-- /mark -->` of a file."""
    content = path.read_text()
    made, count = re.subn(
        f"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda found: found[1] + text + "\n" + found[2],
        content,
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{path} has no place for {mark}")
    path.write_text(made)
