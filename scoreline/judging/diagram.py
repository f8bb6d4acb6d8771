"""Draw a reliability diagram as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import sqrt
from typing import Any

_SIZE, _MARGIN = 300, 45
"""Of the square of the diagram, and around it, in pixels."""

_LARGEST = 12
"""The radius of the point of the bin with the most rows, in pixels. The areas of points are as the numbers of rows."""


def reliability_diagram(identifier: str, title: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """Return a diagram of what was predicted (across) and what was observed (up).

    identifier: of the element, on its page. bins: with ``predicted``, ``observed`` and ``rows`` of each.
    """
    most = max(one["rows"] for one in bins)
    points = sorted(bins, key=lambda one: float(one["predicted"]))
    path = " ".join(f"{_across(one['predicted']):.1f},{_up(one['observed']):.1f}" for one in points)
    circles = "\n".join(
        f'<circle cx="{_across(one["predicted"]):.1f}" cy="{_up(one["observed"]):.1f}" '
        f'r="{max(2.0, _LARGEST * sqrt(one["rows"] / most)):.1f}" fill="#1a4f9c" fill-opacity="0.75"/>'
        for one in points
    )
    furthest = max(points, key=lambda one: abs(one["predicted"] - one["observed"]))
    said = (
        f"{len(points)} bins of rows. The one furthest from the line has a mean prediction of "
        f"{furthest['predicted']:.2f}, and {furthest['observed']:.2f} of its rows came true."
    )
    ticks = "\n".join(
        f'<text x="{_across(value):.1f}" y="{_MARGIN + _SIZE + 18}" text-anchor="middle">{value:g}</text>\n'
        f'<text x="{_MARGIN - 8}" y="{_up(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in (0, 0.25, 0.5, 0.75, 1)
    )
    whole, middle = _SIZE + 2 * _MARGIN, _MARGIN + _SIZE / 2
    return f"""<svg role="img" aria-labelledby="{identifier}-title {identifier}-said" width="{whole}" height="{whole}"
 viewBox="0 0 {whole} {whole}" font-size="12" fill="#1a1a1a">
<title id="{identifier}-title">{escape(title)}</title>
<desc id="{identifier}-said">{escape(said)}</desc>
<rect x="{_MARGIN}" y="{_MARGIN}" width="{_SIZE}" height="{_SIZE}" fill="none" stroke="#6b6b6b"/>
<line x1="{_across(0)}" y1="{_up(0)}" x2="{_across(1)}" y2="{_up(1)}" stroke="#6b6b6b" stroke-dasharray="5 4"/>
<polyline points="{path}" fill="none" stroke="#1a4f9c" stroke-width="1.5"/>
{circles}
{ticks}
<text x="{middle}" y="{whole - 6}" text-anchor="middle">predicted</text>
<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">observed</text>
</svg>"""


def _across(value: float) -> float:
    return _MARGIN + _SIZE * value


def _up(value: float) -> float:
    return _MARGIN + _SIZE * (1 - value)
