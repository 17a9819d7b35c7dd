"""`demur unlearn run` and `simulate`: streams of inserts and deletes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from demur.cli.shell import App, AsJson, Code, console
from demur.cli.stream_run import (
    StreamOptions,
    print_result,
    run_stream,
    write_files,
)

if TYPE_CHECKING:
    from demur.core.entry import Entry

unlearn_app = App(
    help="A model that deletes: a service with certificates, or a stream to try out.",
    no_args_is_help=True,
)


class ModeName(StrEnum):
    """How to learn and forget."""

    OGD = "ogd"
    RIDGE = "ridge"
    STANDARDISED_RIDGE = "standardised_ridge"
    LOGISTIC = "logistic"
    SEED = "seed"


class LossName(StrEnum):
    """What `ogd` descends."""

    HUBER = "huber"
    LOGISTIC = "logistic"


class ScopeName(StrEnum):
    """Whose records the neighbouring datasets differ in."""

    SUBJECT = "subject"
    JOINT = "joint"


class AccountingName(StrEnum):
    """How deletions compose."""

    BASIC = "basic"
    RDP = "rdp"
    ZCDP = "zcdp"
    GDP = "gdp"


Mode = Annotated[ModeName, typer.Option(help="How to learn and forget.")]
Loss = Annotated[LossName, typer.Option(help="What mode ogd descends.")]
Epsilon = Annotated[float, typer.Option(help="Budget of the deletions.")]
Delta = Annotated[float, typer.Option(help="Keep it well below 1/n.")]
Scope = Annotated[ScopeName, typer.Option(help="One person's records, or all deleted.")]
Accounting = Annotated[
    AccountingName | None, typer.Option(help="Default: gdp (seed: basic).")
]
Requests = Annotated[
    int | None, typer.Option(help="Requests of one person (default: any number).")
]
LambdaOption = Annotated[
    float, typer.Option("--lambda", help="Regularisation for each record.")
]
Norm = Annotated[float, typer.Option(help="Rows are clipped to it.")]
GammaLearn = Annotated[float, typer.Option(help="Average regret that N* aims at.")]
GammaPriv = Annotated[float, typer.Option(help="Average regret, deletions included.")]
Calibration = Annotated[int, typer.Option(help="Inserts of the bootstrap.")]
PlotOption = Annotated[
    Path | None, typer.Option(help="Draw regret and capacity (.png, .svg, .pdf).")
]


@unlearn_app.command("run")
def run(
    stream: Annotated[
        Path,
        typer.Argument(help="Parquet or CSV: op, id, y, features...", metavar="STREAM"),
    ],
    mode: Mode = ModeName.OGD,
    loss: Loss = LossName.HUBER,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    scope: Scope = ScopeName.SUBJECT,
    accounting: Accounting = None,
    requests_per_subject: Requests = None,
    lam: LambdaOption = 0.1,
    norm_bound: Norm = 1.0,
    gamma_learn: GammaLearn = 0.5,
    gamma_priv: GammaPriv = 1.0,
    calibration: Calibration = 500,
    ledger: LedgerOption = None,
    create: Create = False,
    budget: BudgetOption = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    plot: PlotOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the weights (.npz).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run STREAM; exits with 3 if a deletion could not be made.

    Ctrl-C before the charge stops at once and spends nothing; after it the stream is
    run to its end first, because its noise cannot be drawn again.
    """
    from demur.cli.interrupts import InterruptGuard, explain_interrupt
    from demur.core import validate
    from demur.unlearning.stream.workload import read_stream

    _check_writable(plot, ".png", ".svg", ".pdf")
    _check_writable(output, ".npz")
    # All that can be refused is refused before a ledger is made.
    validate.positive(
        epsilon=epsilon,
        norm_bound=norm_bound,
        gamma_learn=gamma_learn,
        gamma_priv=gamma_priv,
        **{"lambda": lam},
    )
    options = StreamOptions(
        mode=mode.value,
        loss=loss.value,
        epsilon=epsilon,
        delta=delta,
        scope=scope.value,
        accounting=accounting.value if accounting else None,
        requests_per_subject=requests_per_subject,
        lam=lam,
        norm_bound=norm_bound,
        gamma_learn=gamma_learn,
        gamma_priv=gamma_priv,
        calibration=calibration,
    )
    validate.open_probability(delta=delta)
    charged = ChargedLedger.of(ledger, create, budget, signing_key, password_file, keys)
    finished = False

    def go_on(new: list[Entry]) -> str:
        if not new:
            return "Run the same command again."
        if finished:
            return "The stream was run to its end, and the files are written."
        return (
            "The deletions of this run are lost: their noise cannot be drawn again."
            " Another run is another entry."
        )

    again = None if charged is None else charged.read
    with InterruptGuard() as guard, explain_interrupt(again, go_on):
        events = read_stream(stream)
        opened = None
        if charged is not None:
            opened = charged.open(dataset=stream.stem, filter="gaussian", guard=guard)
        try:
            result, weights = run_stream(events, options, opened)
        finally:
            if opened is not None:
                opened.close()
        # A mode that standardises has an intercept behind the weights of the features.
        names = [*events.features, "intercept"][: len(weights)]
        files = write_files(result, plot, output, weights, names)
        finished = True
        if guard.interrupted:
            raise KeyboardInterrupt
    print_result(result, options, files, as_json)
    if output is not None and result.refused and not as_json:
        console.print(f"not written: {output} would still hold refused records")
    if result.refused:
        raise typer.Exit(int(Code.DECLINED))


@unlearn_app.command("simulate")
def simulate(
    ratio: Annotated[str, typer.Option(help="Inserts to deletes.")] = "10:1",
    inserts: Annotated[int, typer.Option(help="How many inserts.")] = 20_000,
    dimension: Annotated[int, typer.Option(help="How many features.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the data; noise has none.")] = 0,
    mode: Mode = ModeName.OGD,
    loss: Loss = LossName.HUBER,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    scope: Scope = ScopeName.SUBJECT,
    accounting: Accounting = None,
    lam: LambdaOption = 0.1,
    gamma_learn: GammaLearn = 0.5,
    gamma_priv: GammaPriv = 1.0,
    calibration: Calibration = 500,
    plot: PlotOption = None,
    as_json: AsJson = False,
) -> None:
    """Run a simulated stream with so many inserts to so many deletes."""
    from demur.unlearning.stream.workload import simulated

    options = StreamOptions(
        mode=mode.value,
        loss=loss.value,
        epsilon=epsilon,
        delta=delta,
        scope=scope.value,
        accounting=accounting.value if accounting else None,
        requests_per_subject=1,  # simulated records have different owners
        lam=lam,
        norm_bound=1.0,
        gamma_learn=gamma_learn,
        gamma_priv=gamma_priv,
        calibration=calibration,
    )
    _check_writable(plot, ".png", ".svg", ".pdf")
    every, per = _ratio(ratio)
    events = simulated(
        inserts,
        every,
        per,
        dimension=dimension,
        labels=options.labels,
        warm_up=calibration,
        seed=seed,
    )
    result, weights = run_stream(events, options, None)
    files = write_files(result, plot, None, weights, events.features)
    print_result(result, options, files, as_json)


def _check_writable(path: Path | None, *endings: str) -> None:
    """Refuse a file that could not be written, before anything is spent."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path} must end in {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent}")


def _ratio(text: str) -> tuple[int, int]:
    inserts, colon, deletes = text.partition(":")
    try:
        counts = int(inserts), int(deletes)
    except ValueError:
        counts = 0, 0
    if not colon or min(counts) < 1:
        raise ValueError(f"--ratio must be like 10:1; got {text!r}")
    return counts
