"""Bars as SVG, without a library."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH, LEFT, BAR, GAP, HEAD = 900, 170, 12, 3, 26
OURS, THEIRS = "#4c1d95", "#9ca3af"


def bars(groups: dict[str, dict[str, float]], *, title: str, ours: frozenset[str]) -> str:
    """A group for each workload, a bar for each system; a group's longest bar is its best rate."""
    parts: list[str] = []
    y = 40
    for group, rates in groups.items():
        parts.append(f'<text x="8" y="{y + 14}" class="group">{escape(group)}</text>')
        y += HEAD
        best = max(rates.values())
        for name, rate in rates.items():
            parts += _bar(y, name, rate, best, OURS if name in ours else THEIRS)
            y += BAR + GAP
        y += 8
    return _document(y + 8, title, parts)


def _bar(y: int, name: str, rate: float, best: float, colour: str) -> Iterable[str]:
    width = max(1.0, (WIDTH - LEFT - 110) * rate / best)
    yield f'<text x="{LEFT - 8}" y="{y + 10}" class="name">{escape(name)}</text>'
    yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
    yield f'<text x="{LEFT + width + 6:.1f}" y="{y + 10}" class="rate">{rate:,.0f}</text>'


def _document(height: int, title: str, parts: Iterable[str]) -> str:
    style = (
        "text{font-family:sans-serif;font-size:11px;fill:#374151}"
        ".title{font-size:15px;font-weight:bold}.group{font-weight:bold}.name{text-anchor:end}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="8" y="22" class="title">{escape(title)}</text>'
    )
    return head + "".join(parts) + "</svg>\n"
