"""Draws docs/images/idea.svg: differential privacy and the ledger in one picture.

    python -m tools.idea_picture

Plain SVG, repeatable to the byte, with colours for light and dark pages. For a phone
there is idea_phone.svg, where the same parts stand one below the other.
"""

from __future__ import annotations

import math
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "docs" / "images"
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


def pictures() -> dict[str, str]:
    """The pictures as SVG text, by the names of their files."""
    wide = [
        _crowds(),
        _arrow(172, 75, 262, 118),
        _arrow(172, 195, 262, 152),
        _computation(270, 78),
        _arrow(448, 135, 520, 135),
        _published(530, 190),
        _ledger(170, 318, 460.0, beside=True),
    ]
    narrow = [
        _at(18, -28, _crowds(below=False)),
        _arrow(105, 126, 160, 160),
        _arrow(325, 126, 270, 160),
        _computation(130, 166),
        _arrow(215, 286, 215, 318),
        _published(55, 462),
        _ledger(20, 620, 260.0, beside=False),
    ]
    return {
        "idea.svg": _svg(860, 400, wide),
        "idea_phone.svg": _svg(430, 720, narrow),
    }


def _svg(width: int, height: int, parts: list[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' role="img" aria-label="Two datasets that differ by one record go through'
        " noise, and the results look nearly the same. A ledger with a budget of"
        " epsilon 1 has paid for three releases and declines a fourth that does not"
        ' fit.">'
    )
    return "\n".join([opening, f"<style>{_STYLE}</style>", *parts, "</svg>\n"])


def _at(x: float, y: float, part: str) -> str:
    return f'<g transform="translate({x} {y})">{part}</g>'


def _crowds(*, below: bool = True) -> str:
    """The people with you and without you, below or beside one another."""
    without = (
        f'{_crowd(20, 160, present=False)}<text x="85" y="252" class="mid quiet">'
        "without it</text>"
    )
    return (
        f"{_crowd(20, 40, present=True)}"
        '<text x="85" y="132" class="mid you-text">with your record</text>'
        f"{without if below else _at(225, -120, without)}"
    )


def _computation(x: float, y: float) -> str:
    return _at(
        x,
        y,
        '<rect width="170" height="114" rx="12" class="box"/>'
        '<text x="85" y="38" class="mid big">computation</text>'
        '<text x="85" y="66" class="mid">+ random noise</text>'
        f"{_dice(85, 90)}",
    )


def _published(left: float, bottom: float) -> str:
    x = left + 160
    return (
        f"{_bells(left, bottom)}"
        f'<text x="{x}" y="{bottom + 32}" class="mid big">what is published</text>'
        f'<text x="{x}" y="{bottom + 54}" class="mid quiet">hard to tell which it'
        " was</text>"
    )


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


def _ledger(left: float, top: float, scale: float, *, beside: bool) -> str:
    """A budget with three releases that fit, and one that does not.

    Its name stands beside it, or above it where there is no room.
    """
    height = 40
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
    name, spent = ((left - 14, top + 17), (left - 14, top + 37))
    if not beside:
        name, spent = ((left, top - 36), (left, top - 12))
    side = "end " if beside else ""
    drawn += [
        f'<rect x="{left}" y="{top}" width="{scale:.0f}" height="{height}"'
        ' class="track"/>',
        f'<rect x="{x + 6:.0f}" y="{top + 6}" width="{0.3 * scale:.0f}"'
        f' height="{height - 12}" class="no"/>',
        f'<text x="{x + 0.3 * scale + 12:.0f}" y="{top + 26}" class="no-text">declined'
        "</text>",
        f'<path d="M{end:.0f} {top - 8} v{height + 16}" class="line"/>',
        f'<text x="{name[0]}" y="{name[1]}" class="{side}big">the ledger</text>',
        f'<text x="{spent[0]}" y="{spent[1]}" class="{side}quiet">epsilon spent</text>',
        f'<text x="{end:.0f}" y="{top - 15}" class="mid">budget: epsilon 1</text>',
    ]
    words = ("three releases, each paid for", "before its noise is drawn")
    lines = (" ".join(words),) if beside else words
    middle = left + scale * 0.425
    drawn += [
        f'<text x="{middle:.0f}" y="{top + 62 + 22 * i}" class="mid quiet">{line}'
        "</text>"
        for i, line in enumerate(lines)
    ]
    return "".join(drawn)


if __name__ == "__main__":
    for name, text in pictures().items():
        (IMAGES / name).write_text(text)
