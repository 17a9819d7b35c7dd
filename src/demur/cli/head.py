"""`demur head`: fit a private classifier on a table, and predict with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from demur.cli.ledger.options import (
    BudgetOption,
    ChargedLedger,
    Create,
    KeysFolder,
    LedgerOption,
    PasswordFile,
    SigningKey,
)
from demur.cli.shell import (
    App,
    AsJson,
    console,
    entry_facts,
    print_json,
    progress_console,
    written,
)

if TYPE_CHECKING:
    from demur.core.entry import Entry

head_app = App(
    help="Train a private head on a table, and use it.", no_args_is_help=True
)


class MechanismName(StrEnum):
    """Where noise is added: to the finished head, or to every gradient."""

    OUTPUT = "output"
    NOISY_GD = "noisy_gd"


class HeadKind(StrEnum):
    """Which head to train."""

    PROTOTYPES = "prototypes"
    SOFTMAX = "softmax"
    LOGISTIC = "logistic"
    SVM = "svm"


Data = Annotated[
    Path,
    typer.Argument(help="Parquet, CSV or npz.", metavar="DATA", show_default=False),
]
_LARGE = 2**30  # bytes of Parquet from which files are streamed by default


@head_app.command("fit")
def fit(
    data: Data,
    label: Annotated[str, typer.Option(help="The column (npz: array) of labels.")],
    epsilon: Annotated[float, typer.Option(help="Privacy at the radius.")],
    radius: Annotated[float, typer.Option(help="How far a record may move.")],
    delta: Annotated[float, typer.Option(help="Keep it well below 1/n.")] = 1e-6,
    kind: Annotated[HeadKind, typer.Option("--head", help="What to train.")] = (
        HeadKind.PROTOTYPES
    ),
    lam: Annotated[
        float | None, typer.Option(help="Regularisation (default 0 or 0.01).")
    ] = None,
    norm_bound: Annotated[float, typer.Option(help="Rows are clipped to it.")] = 1.0,
    mechanism: Annotated[
        MechanismName, typer.Option(help="Noise on the head, or on every gradient.")
    ] = MechanismName.OUTPUT,
    classes: Annotated[
        str | None, typer.Option(help="Public classes, separated by commas.")
    ] = None,
    space: Annotated[str, typer.Option(help="The space of the radius.")] = "records",
    ledger: LedgerOption = None,
    create: Create = False,
    budget: BudgetOption = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    stream: Annotated[
        bool | None,
        typer.Option(
            help="Read Parquet in passes, in little memory (default: above 1 GiB)."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file.")] = Path(
        "head.npz"
    ),
    as_json: AsJson = False,
) -> None:
    """Train a head on DATA, release it once with noise, and write one safe file.

    DATA may be a folder of Parquet files. Ctrl-C before the charge stops at once and
    spends nothing; after it the file is written first.
    """
    from demur.cli.interrupts import InterruptGuard, explain_interrupt
    from demur.convex.files import save_head
    from demur.core import validate

    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}. Nothing was spent.")
    # Refuse bad arguments before a ledger is created.
    validate.positive(epsilon=epsilon, radius=radius, norm_bound=norm_bound)
    if lam is not None:
        validate.non_negative(lam=lam)
    validate.open_probability(delta=delta)
    validate.name(space=space)
    charged = ChargedLedger.of(ledger, create, budget, signing_key, password_file, keys)

    def go_on(new: list[Entry]) -> str:
        if not new:
            return "Run the same command again."
        if guard.interrupted and output.exists():
            return f"The head was written: {output}."
        return "Its head is lost, and another fit is charged again."

    reopen = None if charged is None else charged.read
    with (
        InterruptGuard() as guard,
        explain_interrupt(reopen, go_on),
        ExitStack() as closing,
    ):
        rows = _rows(data, label, stream)
        opened = None
        if charged is not None:
            opened = charged.open(dataset=data.stem, guard=guard)
            closing.enter_context(opened)
        with _bar() as progress:
            head = _estimator(kind, lam, mechanism.value, progress)
            head.set_params(
                epsilon=epsilon,
                delta=delta,
                radius=radius,
                norm_bound=norm_bound,
                classes=_parse(classes, rows.label_type) if classes else None,
                ledger=opened,
                space=space,
                label=f"head of {data.stem}",
            )
            head.fit(rows.X, rows.y)
        save_head(head, output, columns=rows.columns)
        if guard.interrupted:
            raise KeyboardInterrupt
    if as_json:
        print_json({"written": str(output), "entry": entry_facts(head.entry_)})
        return
    console.print(head.privacy_.statement(), highlight=False, markup=False)
    written(output)


@head_app.command("predict")
def predict(
    head_file: Annotated[
        Path, typer.Argument(help="What `demur head fit` wrote.", metavar="HEAD")
    ],
    data: Data,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A CSV; default: print.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the predicted class of each row of DATA, one per line."""
    from demur.convex.files import head_columns, load_head
    from demur.convex.rows.tables import read_rows

    head = load_head(head_file)
    rows = read_rows(data, label=None, columns=head_columns(head_file))
    predicted = [str(c) for c in head.predict(rows.X)]
    if output is not None:
        output.write_text("\n".join(["prediction", *predicted]) + "\n")
        if as_json:
            print_json({"written": str(output), "rows": len(predicted)})
        else:
            written(output)
    elif as_json:
        print_json({"predictions": predicted})
    else:
        print("\n".join(["prediction", *predicted]))


class _Rows(NamedTuple):
    """The data for `fit`, the type of the labels, and the names of the features."""

    X: Any
    y: Any
    label_type: Any
    columns: list[str]


def _rows(data: Path, label: str, stream: bool | None) -> _Rows:
    from demur.convex.rows.tables import read_rows

    parquet = data.is_dir() or data.suffix.lower() in (".parquet", ".pq")
    if stream and not parquet:
        raise ValueError(f"--stream needs Parquet; got {data.name}. Nothing was spent.")
    if stream is None:
        stream = data.is_dir() or (parquet and _size(data) >= _LARGE)
    if not stream:
        rows = read_rows(data, label=label)
        assert rows.y is not None
        return _Rows(rows.X, rows.y, rows.y.dtype, rows.columns)
    from demur.convex.rows.parquet import ParquetRows

    streamed = ParquetRows(data, label=label)
    rows_on_disk = streamed.row_source()
    return _Rows(streamed, None, rows_on_disk.label_dtype, rows_on_disk.columns)


def _size(data: Path) -> int:
    return data.stat().st_size if data.exists() else 0


def _estimator(
    kind: HeadKind,
    lam: float | None,
    mechanism: str,
    progress: Callable[[int, float], None],
) -> Any:
    from demur import convex

    if kind is HeadKind.PROTOTYPES:
        return convex.BallPrototypeClassifier(lam=0.0 if lam is None else lam)
    estimator = {
        HeadKind.SOFTMAX: convex.BallSoftmaxClassifier,
        HeadKind.LOGISTIC: convex.BallLogisticRegression,
        HeadKind.SVM: convex.BallSVC,
    }[kind]
    return estimator(
        lam=1e-2 if lam is None else lam, mechanism=mechanism, progress=progress
    )


def _parse(classes: str, dtype: Any) -> list[Any]:
    """The classes in the labels' type: names, or numbers."""
    names = [name.strip() for name in classes.split(",")]
    return [dtype.type(name) for name in names] if dtype.kind in "iuf" else names


@contextmanager
def _bar() -> Iterator[Callable[[int, float], None]]:
    """A progress bar that follows the gradient norm, or the steps."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console(), transient=True) as progress:
        task = progress.add_task("fitting", total=1.0)

        def show(step: int, share: float) -> None:
            progress.update(task, completed=share, description=f"fitting, step {step}")

        yield show
