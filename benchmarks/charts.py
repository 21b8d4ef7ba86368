"""Bar charts as SVG, without a library: panels of horizontal bars, one scale a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LEFT, _RIGHT = 860, 330, 90
_ROW, _BAR, _GAP = 18, 12, 34
_INK, _SOFT, _OURS, _OTHER, _MARK = "#1d2327", "#6a737b", "#2a6fbb", "#98a2ab", "#b32424"


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`mark` is a line across the bars: where both are equal."""

    title: str
    bars: Sequence[Bar]
    mark: float | None = None


def chart(title: str, panels: Sequence[Panel]) -> str:
    """One picture; bars called `quiver` and those of panels with a mark are ours."""
    height = 40 + sum(_GAP + _ROW * len(panel.bars) for panel in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="15" font-weight="600" fill="{_INK}">{escape(title)}</text>',
    ]
    top = 40
    for panel in panels:
        lines += _panel(panel, top)
        top += _GAP + _ROW * len(panel.bars)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel, top: int) -> list[str]:
    """Bars longer than four times the mark are cut there: the text says how long they are."""
    most = max(*(bar.value for bar in panel.bars), panel.mark or 0.0, 1e-12)
    if panel.mark:
        most = min(most, 4 * panel.mark)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    lines = [f'<text x="10" y="{top + 14}" font-weight="600" fill="{_SOFT}">{escape(panel.title)}</text>']
    y = top + 22
    for bar in panel.bars:
        colour = _OURS if panel.mark or bar.label == "quiver" else _OTHER
        width = max(1.0, min(max(bar.value, 0.0), most) * scale)
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end" fill="{_INK}">{escape(bar.label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{y + 10}" fill="{_SOFT}">{escape(bar.text)}</text>',
        ]
        y += _ROW
    if panel.mark:
        x = _LEFT + panel.mark * scale
        lines.append(f'<path d="M{x:.1f} {top + 18} V{y - 2}" stroke="{_MARK}" stroke-dasharray="3 3"/>')
    return lines
