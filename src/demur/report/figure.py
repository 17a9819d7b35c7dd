"""Charts as SVG inside the page, and as files.

A chart is drawn twice, for a wide and for a narrow screen, because a picture that is
only scaled down cannot be read. In the page its colours are the page's variables, so
that it follows the light or dark scheme, and its text remains text.
"""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from demur.report.text import attribute, one_line

# Safe for colour-blind eyes (after Okabe and Ito), dark enough to read on white; the
# page's style sheet has a lighter set of the same names for dark screens.
INK, QUIET, GRID, PAPER = "#1d2733", "#52606e", "#d5dde5", "#fefefe"
SERIES = ("#0067a5", "#c04f00", "#007a5a", "#a33c7d", "#7a6000", "#4747a8")
BAD = "#b3261e"
_VARIABLES = {
    INK: "ink",
    QUIET: "quiet",
    GRID: "grid",
    PAPER: "paper",
    BAD: "bad",
    **{colour: f"c{i + 1}" for i, colour in enumerate(SERIES)},
}
_PIXELS = 96.0  # CSS pixels to an inch
# Matplotlib's settings are those of the process: threads draw one after another.
_DRAWING = threading.Lock()


@dataclass(frozen=True)
class Frame:
    """The width a chart is drawn for, in inches, and the size of its letters."""

    name: str
    width: float
    letters: float

    @property
    def narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.name == "narrow"


WIDE = Frame("wide", 864 / _PIXELS, 9.0)
NARROW = Frame("narrow", 358 / _PIXELS, 8.4)


def figure_of_panels(frame: Frame, height: float) -> Figure:
    """A figure for panels one below the other: titles stand apart from axes above."""
    layout = ConstrainedLayoutEngine(h_pad=0.1)
    return Figure(figsize=(frame.width, height), layout=layout)


@dataclass(frozen=True)
class Chart:
    """A chart: a name for its files, a title, and a description in words."""

    name: str
    title: str
    alt: str
    draw: Callable[[Frame], Figure]


@contextmanager
def drawing(frame: Frame, *, text_as_text: bool = True) -> Iterator[None]:
    """Matplotlib settings for drawing and writing figures."""
    settings: dict[Any, Any] = {
        "svg.fonttype": "none" if text_as_text else "path",
        "svg.hashsalt": "demur",
        "text.parse_math": False,  # a label may hold dollar signs
        "font.family": "DejaVu Sans",
        "font.size": frame.letters,
        "axes.titlesize": frame.letters + 0.6,
        "axes.labelsize": frame.letters,
        "xtick.labelsize": frame.letters - 0.4,
        "ytick.labelsize": frame.letters - 0.4,
        "legend.fontsize": frame.letters - 0.2,
        "axes.labelcolor": INK,
        "axes.edgecolor": QUIET,
        "axes.titlecolor": INK,
        "text.color": INK,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "axes.unicode_minus": False,
    }
    with _DRAWING, matplotlib.rc_context(settings), warnings.catch_warnings():
        # The font may lack the script of a label; browsers have others.
        warnings.filterwarnings("ignore", message="Glyph")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not")
        yield


def inline(chart: Chart) -> str:
    """Both drawings as SVG; the style sheet of the page shows one of them."""
    return "\n".join(_inline_svg(chart, frame) for frame in (WIDE, NARROW))


def _inline_svg(chart: Chart, frame: Frame) -> str:
    buffer = io.StringIO()
    with drawing(frame):
        figure = chart.draw(frame)
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    body = text[text.index("<svg") : text.rindex("</svg>") + len("</svg>")]
    opening, rest = body.split(">", 1)
    box = re.search(r'viewBox="([^"]+)"', opening)
    assert box is not None
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, count=1, flags=re.DOTALL)
    # Several drawings share one page, so that ids must not repeat.
    mark = f"{chart.name}-{frame.name}-"
    rest = re.sub(r'\bid="', f'id="{mark}', rest)
    rest = rest.replace("url(#", f"url(#{mark}")
    rest = rest.replace('xlink:href="#', f'href="#{mark}')
    for colour, variable in _VARIABLES.items():
        rest = rest.replace(colour, f"var(--{variable})")
    width, height = (float(v) for v in box[1].split()[2:])
    return (
        f'<svg class="{frame.name}" role="img" aria-label="{attribute(chart.alt)}"'
        f' viewBox="{box[1]}" width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}"'
        f' xmlns="http://www.w3.org/2000/svg">{rest}'
    )


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write the wide drawing as NAME.svg and NAME.png, on white."""
    with drawing(WIDE, text_as_text=False):
        figure = chart.draw(WIDE)
        paths = [folder / f"{chart.name}.svg", folder / f"{chart.name}.png"]
        figure.savefig(paths[0], facecolor="white", metadata={"Date": None})
        figure.savefig(paths[1], facecolor="white", dpi=2 * _PIXELS)
    return paths


def short(text: str, most: int) -> str:
    """The text, cut to `most` characters with three dots."""
    text = one_line(text)
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


def plain_ticks(axes: Axes) -> None:
    """Plain decimal numbers on both axes."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")


def label_line(axes: Axes, level: float, text: str) -> None:
    """Words on a line across the axes, without touching it."""
    axes.annotate(
        text, (0.01, level), xycoords=axes.get_yaxis_transform(), xytext=(2, 2.5),
        textcoords="offset points", va="bottom", color=INK,
    )  # fmt: skip


def ceiling(values: list[float]) -> float:
    """The upper end of an axis from zero, with space above the highest value."""
    finite = [v for v in values if math.isfinite(v)]
    top = max(finite, default=1.0)
    return 1.14 * top if top > 0 else 1.0
