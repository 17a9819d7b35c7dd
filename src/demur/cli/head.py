"""`demur head`: fit a private classifier on a table, and predict with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from demur.ledger import Ledger

head_app = typer.Typer(
    help="Train a private head on a table, and use it.", no_args_is_help=True
)


class Kind(StrEnum):
    """Which head to train."""

    PROTOTYPES = "prototypes"
    SOFTMAX = "softmax"
    LOGISTIC = "logistic"
    SVM = "svm"


Data = Annotated[
    Path,
    typer.Argument(help="Parquet, CSV or npz.", metavar="DATA", show_default=False),
]


@head_app.command("fit")
def fit(
    data: Data,
    label: Annotated[str, typer.Option(help="The column (npz: array) of labels.")],
    epsilon: Annotated[float, typer.Option(help="Privacy at the radius.")],
    radius: Annotated[float, typer.Option(help="How far a record may move.")],
    delta: Annotated[float, typer.Option(help="Keep it well below 1/n.")] = 1e-6,
    kind: Annotated[Kind, typer.Option("--head", help="What to train.")] = (
        Kind.PROTOTYPES
    ),
    lam: Annotated[
        float | None, typer.Option(help="Regularisation (default 0 or 0.01).")
    ] = None,
    norm_bound: Annotated[float, typer.Option(help="Rows are clipped to it.")] = 1.0,
    mechanism: Annotated[str, typer.Option(help="output or noisy_gd.")] = "output",
    classes: Annotated[
        str | None, typer.Option(help="Public classes, separated by commas.")
    ] = None,
    space: Annotated[str, typer.Option(help="The space of the radius.")] = "records",
    book: Annotated[
        str | None, typer.Option(help="Charge this book (made if it is not there).")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file.")] = Path(
        "head.npz"
    ),
) -> None:
    """Train a head on DATA, release it once with noise, and write one safe file."""
    from demur.cli.main import _plain_errors, console
    from demur.convex.files import save_head
    from demur.convex.tables import read_rows

    with _plain_errors():
        rows = read_rows(data, label=label)
        assert rows.y is not None
        ledger = _open(book, data.stem, radius, space, epsilon, delta)
        with _bar() as progress:
            head = _estimator(kind, lam, mechanism, progress)
            head.set_params(
                epsilon=epsilon,
                delta=delta,
                radius=radius,
                norm_bound=norm_bound,
                classes=_parse(classes, rows.y.dtype) if classes else None,
                ledger=ledger,
                space=space,
                label=f"head of {data.stem}",
            )
            head.fit(rows.X, rows.y)
        save_head(head, output, columns=rows.columns)
        console.print(head.privacy_.statement(), highlight=False)
        console.print(f"written: {output}")
        if ledger is not None:
            ledger.close()


@head_app.command("predict")
def predict(
    head_file: Annotated[
        Path, typer.Argument(help="What `demur head fit` wrote.", metavar="HEAD")
    ],
    data: Data,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A CSV; default: print.")
    ] = None,
) -> None:
    """The predicted class of each row of DATA, one to a line."""
    from demur.cli.main import _plain_errors, console
    from demur.convex.files import head_columns, load_head
    from demur.convex.tables import read_rows

    with _plain_errors():
        head = load_head(head_file)
        rows = read_rows(data, label=None, columns=head_columns(head_file))
        text = "\n".join(["prediction", *(str(c) for c in head.predict(rows.X))])
        if output is None:
            print(text)
        else:
            output.write_text(text + "\n")
            console.print(f"written: {output}")


def _estimator(
    kind: Kind,
    lam: float | None,
    mechanism: str,
    progress: Callable[[int, float], None],
) -> Any:
    from demur.convex import estimators

    if kind is Kind.PROTOTYPES:
        return estimators.BallPrototypeClassifier(lam=0.0 if lam is None else lam)
    made = {
        Kind.SOFTMAX: estimators.BallSoftmaxClassifier,
        Kind.LOGISTIC: estimators.BallLogisticRegression,
        Kind.SVM: estimators.BallSVC,
    }[kind]
    return made(
        lam=1e-2 if lam is None else lam, mechanism=mechanism, progress=progress
    )


def _open(
    book: str | None,
    dataset: str,
    radius: float,
    space: str,
    epsilon: float,
    delta: float,
) -> Ledger | None:
    if book is None:
        return None
    from demur.core.adjacency import Ball, Unit
    from demur.core.errors import BookMismatch
    from demur.ledger import Budget, Ledger

    try:
        return Ledger.open(book)
    except BookMismatch:
        budgets: dict[Unit, Budget] = {
            Ball(radius, space=space): Budget(epsilon, delta)
        }
        return Ledger.open(book, dataset=dataset, budgets=budgets)


def _parse(classes: str, dtype: Any) -> list[Any]:
    """Names as they are, numbers as numbers, to match the labels' type."""
    names = [name.strip() for name in classes.split(",")]
    return [dtype.type(name) for name in names] if dtype.kind in "iuf" else names


@contextmanager
def _bar() -> Iterator[Callable[[int, float], None]]:
    """A bar that fills as the gradient falls, or as steps are taken."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fitting", total=1.0)

        yield lambda step, share: progress.update(task, completed=share)
