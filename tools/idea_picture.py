"""Draws docs/images/idea.svg: differential privacy and the ledger in one picture.

    python -m tools.idea_picture

Plain SVG, repeatable to the byte, with colours for light and dark pages.
"""

from __future__ import annotations

import math
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "idea.svg"
_STYLE = """
text { font: 17px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  fill: #1d2733; }
.big { font-size: 20px; font-weight: 600; } .quiet { fill: #52606e; }
.mid { text-anchor: middle; } .end { text-anchor: end; }
.person { fill: #8a99a8; } .you { fill: #c04f00; } .you-text { fill: #c04f00; }
.gone { fill: none; stroke: #8a99a8; stroke-width: 1.5; stroke-dasharray: 3 3; }
.box { fill: #eef4f8; stroke: #0067a5; stroke-width: 2; }
.line { stroke: #52606e; stroke-width: 2; fill: none; } .tip { fill: #52606e; }
.with { fill: #c04f00; fill-opacity: .22; stroke: #c04f00; stroke-width: 2; }
.without { fill: #8a99a8; fill-opacity: .25; stroke: #52606e; stroke-width: 2; }
.track { fill: none; stroke: #52606e; stroke-width: 2; }
.one { fill: #0067a5; } .two { fill: #2f88c2; } .three { fill: #4f7fa3; }
.no { fill: #b3261e; fill-opacity: .08; stroke: #b3261e; stroke-width: 2;
  stroke-dasharray: 6 4; }
.no-text { fill: #b3261e; font-weight: 600; } .on { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  text { fill: #e9eef3; } .quiet { fill: #a9b6c3; } .person { fill: #6f7f8e; }
  .you, .you-text { fill: #f39a5b; } .gone { stroke: #6f7f8e; }
  .box { fill: #19222b; stroke: #5bb6ee; } .line, .track { stroke: #a9b6c3; }
  .tip { fill: #a9b6c3; } .with { fill: #f39a5b; stroke: #f39a5b; }
  .without { fill: #a9b6c3; stroke: #a9b6c3; } .no { stroke: #ff8a7d; }
  .no-text { fill: #ff8a7d; } .three { fill: #3f86b5; } .on { fill: #ffffff; }
}
"""
_PEOPLE = 5  # in a row
_YOU = 7


def picture() -> str:
    """The picture as SVG text."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 400" role="img"'
        ' aria-label="Two datasets that differ by one record go through noise, and'
        " the results look nearly the same. A ledger with a budget of epsilon 1 has"
        ' paid for three releases and declines a fourth that does not fit.">',
        f"<style>{_STYLE}</style>",
        _crowd(20, 40, present=True),
        '<text x="85" y="132" class="mid you-text">with your record</text>',
        _crowd(20, 160, present=False),
        '<text x="85" y="252" class="mid quiet">without it</text>',
        _arrow(172, 75, 262, 118),
        _arrow(172, 195, 262, 152),
        '<rect x="270" y="78" width="170" height="114" rx="12" class="box"/>',
        '<text x="355" y="116" class="mid big">computation</text>',
        '<text x="355" y="144" class="mid">+ random noise</text>',
        _dice(355, 168),
        _arrow(448, 135, 520, 135),
        _bells(530, 190),
        '<text x="690" y="222" class="mid big">what is published</text>',
        '<text x="690" y="244" class="mid quiet">nobody can tell which it was</text>',
        _ledger(),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _person(x: float, y: float, kind: str) -> str:
    return (
        f'<g class="{kind}"><circle cx="{x}" cy="{y}" r="6.5"/>'
        f'<path d="M{x - 10} {y + 24} v-6 a10 10 0 0 1 20 0 v6 z"/></g>'
    )


def _crowd(left: float, top: float, *, present: bool) -> str:
    drawn = []
    for number in range(2 * _PEOPLE):
        x = left + 13 + 26 * (number % _PEOPLE)
        y = top + 8 + 38 * (number // _PEOPLE)
        kind = "person" if number != _YOU else "you" if present else "gone"
        drawn.append(_person(x, y, kind))
    return "".join(drawn)


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    angle = math.atan2(y2 - y1, x2 - x1)
    ends = [
        f"{x2 + 11 * math.cos(angle + turn):.1f},{y2 + 11 * math.sin(angle + turn):.1f}"
        for turn in (2.6, -2.6)
    ]
    return (
        f'<path d="M{x1} {y1} L{x2 - 8 * math.cos(angle):.1f}'
        f' {y2 - 8 * math.sin(angle):.1f}" class="line"/>'
        f'<polygon points="{x2},{y2} {" ".join(ends)}" class="tip"/>'
    )


def _dice(x: float, y: float) -> str:
    """A row of small bars of random-looking heights."""
    heights = (4, 9, 6, 14, 8, 16, 5, 12, 7, 10, 4)
    bars = (
        f'<rect x="{x - 44 + 8 * i}" y="{y + 14 - h}" width="5" height="{h}"/>'
        for i, h in enumerate(heights)
    )
    return f'<g class="person">{"".join(bars)}</g>'


def _bells(left: float, bottom: float) -> str:
    """Two densities that lie almost on each other."""

    def bell(middle: float) -> str:
        points = [
            (left + step, bottom - 130 * math.exp(-(((step - middle) / 52) ** 2) / 2))
            for step in range(0, 321, 5)
        ]
        return " ".join(f"{x:.0f},{y:.1f}" for x, y in points)

    ground = f"{left + 320},{bottom} {left},{bottom}"
    return (
        f'<polygon points="{bell(152)} {ground}" class="without"/>'
        f'<polygon points="{bell(168)} {ground}" class="with"/>'
        f'<path d="M{left} {bottom} h320" class="line"/>'
    )


def _ledger() -> str:
    """A budget with three releases that fit, and one that does not."""
    left, top, height, scale = 170, 318, 40, 460.0
    releases = (("one", 0.35, "0.35"), ("two", 0.30, "0.3"), ("three", 0.2, "0.2"))
    drawn, x = [], float(left)
    for kind, epsilon, text in releases:
        width = scale * epsilon
        drawn.append(
            f'<rect x="{x:.0f}" y="{top}" width="{width:.0f}" height="{height}"'
            f' class="{kind}"/><text x="{x + width / 2:.0f}" y="{top + 26}"'
            f' class="mid on">{text}</text>'
        )
        x += width
    end = left + scale
    drawn += [
        f'<rect x="{left}" y="{top}" width="{scale:.0f}" height="{height}"'
        ' class="track"/>',
        f'<rect x="{x + 6:.0f}" y="{top + 6}" width="138" height="{height - 12}"'
        ' class="no"/>',
        f'<text x="{x + 150:.0f}" y="{top + 26}" class="no-text">declined</text>',
        f'<path d="M{end:.0f} {top - 8} v{height + 16}" class="line"/>',
        f'<text x="{left - 14}" y="{top + 17}" class="end big">the ledger</text>',
        f'<text x="{left - 14}" y="{top + 37}" class="end quiet">epsilon spent</text>',
        f'<text x="{end:.0f}" y="{top - 15}" class="mid">budget: epsilon 1</text>',
        f'<text x="{left + scale * 0.425:.0f}" y="{top + 62}" class="mid quiet">three'
        " releases, each paid for before its noise is drawn</text>",
    ]
    return "".join(drawn)


if __name__ == "__main__":
    PICTURE.write_text(picture())
