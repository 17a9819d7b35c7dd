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
from demur.cli.list_options import names, numbers
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
_SHOWN = 12
_LARGE = 2**30  # bytes of Parquet from which files are streamed by default


@head_app.command("fit")
def fit(
    data: Data,
    label: Annotated[str, typer.Option(help="The column (npz: array) of labels.")],
    epsilon: Annotated[float, typer.Option(help="Privacy at the unit.")],
    radius: Annotated[
        float | None,
        typer.Option(help="How far a record may move: short for --unit ball,radius=."),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="What is protected, as in replace-one, replace-one,"
            "records_per_person=3 or ball,radius=0.2,space=records."
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Keep it well below 1/n.")] = 1e-6,
    kind: Annotated[HeadKind, typer.Option("--head", help="What to train.")] = (
        HeadKind.PROTOTYPES
    ),
    lam: Annotated[
        float | None, typer.Option(help="Regularisation (default 0 or 0.01).")
    ] = None,
    norm_bound: Annotated[float, typer.Option(help="Rows are clipped to it.")] = 1.0,
    clip: Annotated[
        bool, typer.Option(help="Clip longer rows, or refuse to fit them.")
    ] = True,
    mechanism: Annotated[
        MechanismName, typer.Option(help="Noise on the head, or on every gradient.")
    ] = MechanismName.OUTPUT,
    steps: Annotated[int | None, typer.Option(help="Steps of noisy_gd.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Length of a step of noisy_gd.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of noisy_gd.")] = None,
    theta_radius: Annotated[
        float | None, typer.Option(help="Public bound on the head, for noisy_gd.")
    ] = None,
    bias_scale: Annotated[
        float | None, typer.Option(help="The bias feature; 0 for no bias.")
    ] = None,
    tau: Annotated[
        float | None, typer.Option(help="The gradient norm that the solver reaches.")
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option(help="The most steps of the solver.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="huber or squared_hinge, for --head svm.")
    ] = None,
    huber_width: Annotated[
        float | None, typer.Option(help="Half-width of the Huber corner.")
    ] = None,
    class_weight: Annotated[
        str | None,
        typer.Option(help="balanced, or weights as in red=2,green=1."),
    ] = None,
    weight_column: Annotated[
        str | None, typer.Option(help="The column of the records' weights.")
    ] = None,
    weight_bound: Annotated[
        float | None, typer.Option(help="Weights of records are cut at it.")
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(help="counts, uniform or weights w1,w2,...: for prototypes."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Public classes, separated by commas.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="The feature columns, separated by commas.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Columns to leave out, separated by commas.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="The column that names persons: left out.")
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
    if lam is not None:
        validate.non_negative(lam=lam)
    head = _estimator(
        kind,
        {
            "lam": lam,
            "mechanism": None if mechanism is MechanismName.OUTPUT else str(mechanism),
            "steps": steps,
            "learning_rate": learning_rate,
            "momentum": momentum,
            "theta_radius": theta_radius,
            "bias_scale": bias_scale,
            "tau": tau,
            "max_iterations": max_iterations,
            "loss": loss,
            "huber_width": huber_width,
            "prior": _prior(prior),
            "weight_bound": weight_bound,
            "class_weight": class_weight,
        },
    )
    head.set_params(
        epsilon=epsilon,
        delta=delta,
        radius=radius,
        unit=_unit(unit),
        norm_bound=norm_bound,
        clip=clip,
        space=space,
        label=f"head of {data.stem}",
    )
    promised = head.promise()
    left_out = [*(names(exclude) or []), *([id_column] if id_column else [])]
    if weight_column is not None and kind is HeadKind.PROTOTYPES:
        raise ValueError(
            "--weight-column is not an option of --head prototypes. Leave it out."
            " Nothing was spent."
        )
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
        rows = _rows(data, label, stream, names(columns), left_out, weight_column)
        opened = None
        if charged is not None:
            opened = charged.open(dataset=data.stem, guard=guard)
            closing.enter_context(opened)
        with _bar() as progress:
            head.set_params(
                classes=_parse(classes, rows.label_type) if classes else None,
                ledger=opened,
            )
            if kind is HeadKind.PROTOTYPES:
                head.fit(rows.X, rows.y)
            else:
                by_class = _class_weight(class_weight, rows.label_type)
                head.set_params(progress=progress, class_weight=by_class)
                head.fit(rows.X, rows.y, rows.weights)
        save_head(head, output, columns=rows.columns)
        if guard.interrupted:
            raise KeyboardInterrupt
    if as_json:
        print_json(
            {
                "written": str(output),
                "features": rows.columns,
                "unit": promised.unit.to_json(),
                "entry": entry_facts(head.entry_),
            }
        )
        return
    console.print(_features(rows.columns), highlight=False, markup=False)
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
    weights: Any = None


def _rows(
    data: Path,
    label: str,
    stream: bool | None,
    columns: list[str] | None,
    exclude: list[str],
    weight_column: str | None,
) -> _Rows:
    from demur.convex.rows.tables import features_of, read_rows

    if columns is not None and exclude:
        both = [name for name in exclude if name in columns]
        if both:
            raise ValueError(
                f"column {both[0]!r} is in --columns and is excluded. Name it once."
                " Nothing was spent."
            )
    parquet = data.is_dir() or data.suffix.lower() in (".parquet", ".pq")
    if stream and not parquet:
        raise ValueError(f"--stream needs Parquet; got {data.name}. Nothing was spent.")
    if stream is None:
        stream = data.is_dir() or (parquet and _size(data) >= _LARGE)
    if not stream:
        weights = None
        if weight_column is not None:
            exclude = [*exclude, weight_column]
            weights = read_rows(data, label=label, columns=[weight_column]).X[:, 0]
        rows = read_rows(data, label=label, columns=columns, exclude=exclude)
        assert rows.y is not None
        return _Rows(rows.X, rows.y, rows.y.dtype, rows.columns, weights)
    if weight_column is not None:
        raise ValueError(
            "--weight-column is for data that is read at once: leave --stream out."
            " Nothing was spent."
        )
    from demur.convex.rows.parquet import ParquetRows

    streamed = ParquetRows(data, label=label, columns=columns)
    if columns is None:
        chosen = features_of(streamed.column_names(), label=label, exclude=exclude)
        streamed = ParquetRows(data, label=label, columns=chosen)
    rows_on_disk = streamed.row_source()
    return _Rows(streamed, None, rows_on_disk.label_dtype, rows_on_disk.columns)


def _size(data: Path) -> int:
    return data.stat().st_size if data.exists() else 0


def _estimator(kind: HeadKind, options: dict[str, Any]) -> Any:
    """The estimator with the options that were given, each one of its own."""
    from demur import convex

    estimator = {
        HeadKind.PROTOTYPES: convex.BallPrototypeClassifier,
        HeadKind.SOFTMAX: convex.BallSoftmaxClassifier,
        HeadKind.LOGISTIC: convex.BallLogisticRegression,
        HeadKind.SVM: convex.BallSVC,
    }[kind]()
    known = estimator.get_params()
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in known:
            raise ValueError(
                f"--{name.replace('_', '-')} is not an option of --head {kind}."
                " Leave it out. Nothing was spent."
            )
    return estimator.set_params(**given)


def _class_weight(given: str | None, dtype: Any) -> str | dict[Any, float] | None:
    if given is None or given == "balanced":
        return given
    weights = {}
    for part in given.split(","):
        name, _, weight = part.partition("=")
        (label,) = _parse(name, dtype)
        (weights[label],) = numbers("--class-weight", [weight])
    return weights


def _unit(given: str | None) -> Any:
    """The unit that a text names."""
    if given is None:
        return None
    from demur.cli.ledger.terms import parse_unit  # the ledger is slow to load

    return parse_unit(given)


def _prior(given: str | None) -> str | list[float] | None:
    if given is None or given in ("counts", "uniform"):
        return given
    return numbers("--prior", [given])


def _features(columns: list[str]) -> str:
    """The columns that the head was trained on, in one line."""
    shown = ", ".join(columns[:_SHOWN])
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return f"Features ({len(columns)} columns): {shown}{more}."


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
