"""The tour: one dataset, one book, and what a refusal looks like.

The data are the handwritten digits that ship with scikit-learn: 1,797 images of 8 x 8
pixels from 0 to 16, a public range. They are public, so the tour may show what a real
run must not: the number of images and the accuracy without noise.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.panel import Panel
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

from demur.cli.main import book_tables
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne
from demur.core.bounds import clip_rows
from demur.core.curve import PiecewiseLinear
from demur.core.errors import BudgetExceeded
from demur.core.sensitivity import Table as SensitivityTable
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from demur.report import write_report

_DELTA = 1e-5
_PIXELS = 64
_CLASSES = 10
_COUNT_WEIGHT = 0.2  # The count's share of a record's contribution.


def run(out: Path, console: Console) -> None:
    """Take the tour; leaves book.db, head.txt and report.html under `out`."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    train, test = _split()
    console.print(
        Panel.fit(
            "[bold]demur[/]: learning from people's data under a promise that can be"
            " checked.\nOne dataset, one book; every release is paid for before its"
            " noise is drawn."
        )
    )

    console.rule("1. Data and a bound that is enforced")
    clipped, bound, space = clip_rows(train[0] / 128.0, max_norm=1.0, space="pixels")
    console.print(
        f"{len(clipped):,} images (public data: a real run would not print that)."
        f" Every row is clipped to norm {bound.value:g} ({bound.source}), so nobody"
        " can move a sum by more."
    )

    console.rule("2. A book with a budget at two units")
    unit, near = AddOrRemoveOne(), Ball(0.25, space=space.name)
    ledger = Ledger.open(
        out / "book.db",
        dataset="digits",
        budgets={unit: Budget(4.0, _DELTA), near: Budget(1.0, _DELTA)},
    )
    for at, budget in ledger.terms.budgets:
        console.print(f"  epsilon {budget.epsilon:g} to protect {at.describe()}")

    console.rule("3. A private classifier: class sums with Gaussian noise")
    sums = _class_sums(clipped, train[1])
    exact = _accuracy(sums, test)
    table = Table(
        "epsilon (this release)", "epsilon near", "accuracy", "of non-private"
    )
    for epsilon in track([0.5, 1.0, 2.0], description="releasing", console=console):
        mechanism = _mechanism(epsilon)
        release = mechanism.release(sums, ledger, label=f"class sums, eps {epsilon:g}")
        accuracy = _accuracy(release.value, test)
        table.add_row(
            f"{epsilon:g}",
            f"{release.entry.epsilon(near, _DELTA):.3f}",
            f"{accuracy:.3f}",
            f"{accuracy / exact:.1%}",
        )
    console.print(table)
    console.print(
        "The same noise hides a small change to an image (epsilon near) far better"
        " than the image's presence: a cost is a function of the distance."
    )
    console.print(Panel(release.statement(records=len(clipped)), title="statement"))

    console.rule("4. One request too many")
    try:
        _mechanism(4.0).release(sums, ledger, label="one more look, eps 4")
    except BudgetExceeded as error:
        console.print(Panel(str(error), title="[bold red]declined[/]"))

    console.rule("5. The book, read and checked")
    for item in book_tables(ledger):
        console.print(item)
    head = ledger.head()
    (out / "head.txt").write_text(f"{head}\n")
    found = ledger.verify(head)
    console.print(f"verified against its head: {'whole' if found.ok else 'DAMAGED'}")
    reading = ledger.epsilon(_DELTA, ReplaceOne())
    console.print(
        f"Read at another unit, the replacement of a whole record: epsilon"
        f" {reading:.3f} at delta {_DELTA:g}."
    )
    write_report(ledger, out / "report.html")
    ledger.close()
    console.print(f"\nReport: [bold]{out / 'report.html'}[/]   Book: {out / 'book.db'}")


def _split() -> tuple[
    tuple[NDArray[np.float64], NDArray[np.int64]],
    tuple[NDArray[np.float64], NDArray[np.int64]],
]:
    """Every fourth image is held out and stands for public test data."""
    digits = load_digits()
    held = np.arange(len(digits.target)) % 4 == 0
    return (
        (digits.data[~held], digits.target[~held]),
        (digits.data[held], digits.target[held]),
    )


def _class_sums(
    rows: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """For each class the sum of its rows and, weighted, their number."""
    sums = np.zeros((_CLASSES, _PIXELS + 1))
    np.add.at(sums[:, :_PIXELS], labels, rows)
    sums[:, _PIXELS] = _COUNT_WEIGHT * np.bincount(labels, minlength=_CLASSES)
    return sums


def _mechanism(epsilon: float) -> Gaussian:
    """Noise for the class sums, calibrated at the presence of one record.

    One record adds (row, weight) to one class: norm at most sqrt(1 + weight^2). A
    replacement with another label moves two classes, sqrt(2) times that; with the same
    label it moves the row alone, by at most 2. A move by r inside the class is r.
    """
    one = math.sqrt(1.0 + _COUNT_WEIGHT**2)
    sensitivity: SensitivityTable = {
        AddOrRemoveOne(): one,
        ReplaceOne(): max(2.0, math.sqrt(2.0) * one),
        "pixels": PiecewiseLinear.linear(slope=1.0, cap=2.0),
    }
    return Gaussian.calibrated(
        epsilon=epsilon,
        delta=_DELTA,
        sensitivity=sensitivity,
        unit=AddOrRemoveOne(),
        dimension=_CLASSES * (_PIXELS + 1),
        name="class sums with Gaussian noise",
        unprotected=("under the ball: labels and the number of images",),
    )


def _accuracy(
    sums: NDArray[np.float64], test: tuple[NDArray[np.float64], NDArray[np.int64]]
) -> float:
    """Nearest class mean on held-out images."""
    counts = np.maximum(sums[:, _PIXELS] / _COUNT_WEIGHT, 1.0)
    means = sums[:, :_PIXELS] / counts[:, None]
    rows = clip_rows(test[0] / 128.0, max_norm=1.0).data
    nearest = np.argmin(
        ((rows[:, None, :] - means[None, :, :]) ** 2).sum(axis=2), axis=1
    )
    return float(np.mean(nearest == test[1]))
