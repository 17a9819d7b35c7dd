"""`demur head`: fit a private classifier on a table, and predict with it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli.head_rows import read_head_rows
from demur.cli.ledger.options import (
    BudgetOption,
    ChargedLedger,
    Create,
    KeysFolder,
    LedgerOption,
    PasswordFile,
    SigningKey,
)
from demur.cli.list_options import names, numbers, threshold
from demur.cli.shell import (
    App,
    AsJson,
    console,
    entry_facts,
    fitting_bar,
    print_json,
    written,
)
from demur.cli.tuning import HeldBack, Runs, Tune, check_options, ids_of, tuned_head

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
    DISCRIMINANT = "discriminant"
    SOFTMAX = "softmax"
    LOGISTIC = "logistic"
    SVM = "svm"


Data = Annotated[
    Path,
    typer.Argument(help="Parquet, CSV or npz.", metavar="DATA", show_default=False),
]
_SHOWN = 12
_KINDS = {
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers",
    "b": "true and false",
}


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
        str | None,
        typer.Option(help="Regularisation (default 0 or 0.01), or auto."),
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
    tune: Tune = None,
    runs: Runs = None,
    held_back: HeldBack = 0.2,
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
    from demur.convex.files import save_head, saved_parameters

    # Refuse bad arguments before a ledger is created.
    _check_output(output)
    check_options(held_back, runs)
    head = _estimator(
        kind,
        {
            "lam": _lam(lam, kind),
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
    _check_mechanism(
        mechanism,
        {
            MechanismName.NOISY_GD: {
                "steps": steps,
                "learning_rate": learning_rate,
                "momentum": momentum,
                "theta_radius": theta_radius,
            },
            MechanismName.OUTPUT: {"tau": tau, "max_iterations": max_iterations},
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
    weighted = "class_weight" in head.get_params()
    if weight_column is not None and not weighted:
        raise ValueError(
            f"--weight-column is not an option of --head {kind}. Leave it out."
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
        rows = read_head_rows(
            data,
            label,
            stream,
            names(columns),
            left_out,
            weight_column,
            names(classes),
        )
        opened = None
        if charged is not None:
            # A search is one (epsilon, delta) block, and a pure filter adds them up.
            new = None if tune is None else "pure"
            opened = charged.open(dataset=data.stem, filter=new, guard=guard)
            closing.enter_context(opened)
        with fitting_bar(tune is None) as progress:
            head.set_params(
                classes=_parse("--classes", classes, rows.label_type)
                if classes
                else None,
                ledger=opened,
            )
            given: tuple[Any, ...] = (rows.X, rows.y)
            if weighted:
                by_class = _class_weight(class_weight, rows.label_type)
                head.set_params(progress=progress, class_weight=by_class)
                given = (*given, rows.weights)
            saved_parameters(head)  # what cannot be written must not be paid for
            if tune is None:
                head.fit(*given)
            else:
                ids = ids_of(data, id_column)
                head = tuned_head(head, tune, runs, held_back, rows, ids, opened)
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


def _estimator(kind: HeadKind, options: dict[str, Any]) -> Any:
    """The estimator with the options that were given, each one of its own."""
    from demur import convex

    estimator = {
        HeadKind.PROTOTYPES: convex.BallPrototypeClassifier,
        HeadKind.DISCRIMINANT: convex.BallDiscriminantClassifier,
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


def _check_output(output: Path) -> None:
    """Refuse a place where no file can be written, before anything is charged."""
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent}. Nothing was spent.")
    if output.is_dir():
        raise ValueError(
            f"no file can be written to {output}, which is a folder: name a file in it."
            " Nothing was spent."
        )
    if not os.access(output.parent, os.W_OK):
        raise ValueError(
            f"no file can be written to {output}: you may not write into its folder."
            " Nothing was spent."
        )


def _check_mechanism(
    mechanism: MechanismName, options: dict[MechanismName, dict[str, Any]]
) -> None:
    """Refuse options of the other mechanism, which would be ignored."""
    for needed, values in options.items():
        for name, value in values.items():
            if value is not None and mechanism is not needed:
                raise ValueError(
                    f"--{name.replace('_', '-')} is an option of --mechanism {needed}."
                    " Nothing was spent."
                )


def _lam(given: str | None, kind: HeadKind) -> float | str | None:
    from demur.core import validate

    if given is None:
        return None
    lam = threshold("--lam", given)
    if isinstance(lam, float):
        validate.non_negative(lam=lam)
    elif kind is HeadKind.PROTOTYPES:
        raise ValueError(
            "lam must be a number from 0 for --head prototypes; got auto. Nothing was"
            " spent."
        )
    return lam


def _class_weight(given: str | None, dtype: Any) -> str | dict[Any, float] | None:
    if given is None or given == "balanced":
        return given
    weights = {}
    for part in given.split(","):
        name, _, weight = part.partition("=")
        (label,) = _parse("--class-weight", name, dtype)
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


def _parse(option: str, classes: str, dtype: Any) -> list[Any]:
    """The classes in the labels' type: names, or numbers."""
    given = [name.strip() for name in classes.split(",")]
    if dtype.kind not in "iufb":
        return given
    try:
        if dtype.kind == "b":
            return [{"true": True, "false": False}[name.lower()] for name in given]
        return [dtype.type(name).item() for name in given]
    except (ValueError, OverflowError, KeyError):
        raise ValueError(
            f"{option} must name labels as they are in the data, which are"
            f" {_KINDS[dtype.kind]}; got {classes[:40]!r}. Nothing was spent."
        ) from None
