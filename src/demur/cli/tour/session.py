"""What the chapters of the tour share: the data, one ledger and a console.

The data are the handwritten digits that ship with scikit-learn: 1,797 images of 8 x 8
pixels from 0 to 16, a public range. They are public, so the tour may show what a real
run must not: the number of images, and figures without noise. Every fourth image is
held out and stands for public data: the encoder is fitted to it, and accuracies are
measured on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from demur.core.adjacency import Ball, Erasure, LipschitzMap, ReplaceOne
from demur.core.bounds import clip_rows, to_unit_cube
from demur.core.entry import Entry
from demur.core.rounding import printed_down
from demur.ledger import Budget, Filter, Ledger

DELTA = 1e-5
SHARE = DELTA / 4  # of one release: four of them fit
NEAR = Ball(0.3, space="pixels")
REPLACED = ReplaceOne()
ERASED = Erasure()

_COMPONENTS = 16
# Bounds are chosen in public: pixels lie in [0, 1] and there are 64 of them.
_EMBEDDING_SCALE = 3.0
_CUBE = 2.6

Values = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Images as the engines use them: embedded, and as points of the unit square."""

    embedded: Values
    points: Values
    labels: Labels

    @property
    def parity(self) -> Values:
        """+1 for an even digit, -1 for an odd one."""
        return np.where(self.labels % 2 == 0, 1.0, -1.0)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Session:
    """Data, ledger and console of one tour."""

    out: Path
    console: Console
    ledger: Ledger
    people: Part
    public: Part

    @classmethod
    def open(cls, out: Path, console: Console) -> Session:
        """Load the digits and open the ledger."""
        people, public = _parts()
        ledger = Ledger.open(
            out / "ledger.db",
            dataset="digits",
            budgets={
                NEAR: Budget(4.5, DELTA),
                REPLACED: Budget(18.0, DELTA),
                ERASED: Budget(1.0, DELTA),
            },
            # The ledger reads both spaces in pixels: a projection moves no two images
            # further apart, the division brings them nearer by that factor.
            maps=[
                LipschitzMap("pixels", "embedding", 1.0 / _EMBEDDING_SCALE),
                LipschitzMap("pixels", "square", 1.0 / (2.0 * _CUBE)),
            ],
            filter=Filter.pure(),
        )
        session = cls(out, console, ledger, people, public)
        session._print_budgets()
        return session

    def _print_budgets(self) -> None:
        self.console.print(
            f"{len(self.people):,} handwritten digits (public data: a real run would"
            " not print the number), embedded by an encoder that was fitted to other,"
            " public images. One ledger, with a budget for each unit:"
        )
        table = Table("what is protected", "epsilon", "delta")
        for unit, budget in self.ledger.terms.budgets:
            epsilon, delta = printed_down(budget.epsilon), printed_down(budget.delta)
            table.add_row(unit.describe(), epsilon, delta)
        self.console.print(table)

    def note_utility(self, entry: Entry, name: str, value: float, plain: float) -> None:
        """Note on `entry` a figure that was measured on public data."""
        self.ledger.annotate(
            entry,
            "utility",
            {"name": name, "value": float(value), "non_private": float(plain)},
        )

    def show(self, columns: tuple[str, ...], *rows: tuple[Any, ...]) -> None:
        """Print a table."""
        table = Table(*columns)
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)

    def show_statement(self, text: str) -> None:
        """Print a privacy statement."""
        self.console.print(Panel(text, title="statement", title_align="left"))


def accuracy(predicted: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of labels that were predicted correctly."""
    return float(np.mean(np.asarray(predicted) == labels))


def _parts() -> tuple[Part, Part]:
    digits = load_digits()
    pixels, labels = digits.data / 16.0, digits.target
    held_out = np.arange(len(labels)) % 4 == 0
    encoder = PCA(_COMPONENTS).fit(pixels[held_out])
    projected = encoder.transform(pixels)
    embedded = clip_rows(projected / _EMBEDDING_SCALE, norm_bound=1.0).data
    square = np.clip(projected[:, :2], -_CUBE, _CUBE)
    points = to_unit_cube(square, low=[-_CUBE, -_CUBE], high=[_CUBE, _CUBE]).data
    people, public = (
        Part(embedded[rows], points[rows], labels[rows])
        for rows in (~held_out, held_out)
    )
    return people, public
