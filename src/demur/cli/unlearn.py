"""`demur unlearn`: play streams of inserts and deletes through a model that forgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from demur.ledger import Ledger
    from demur.unlearning.workload import Curve, Played, Stream

_UNLIMITED = 2**39  # a capacity that no stream uses up

unlearn_app = typer.Typer(
    help="Learn and forget a stream, with an account of every deletion.",
    no_args_is_help=True,
)


class ModeName(StrEnum):
    """How to learn and forget."""

    OGD = "ogd"
    RIDGE = "ridge"
    LOGISTIC = "logistic"
    SEED = "seed"


class LossName(StrEnum):
    """What `ogd` descends."""

    HUBER = "huber"
    LOGISTIC = "logistic"


class ScopeName(StrEnum):
    """Whose records the two worlds differ in."""

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
Requests = Annotated[int, typer.Option(help="Requests that one person may make.")]
LambdaOption = Annotated[
    float, typer.Option("--lambda", help="Regularisation for each record.")
]
Norm = Annotated[float, typer.Option(help="Rows are clipped to it.")]
GammaLearn = Annotated[float, typer.Option(help="Average regret that N* aims at.")]
GammaPriv = Annotated[float, typer.Option(help="Average regret, deletions included.")]
Calibration = Annotated[int, typer.Option(help="Inserts of the bootstrap.")]
Book = Annotated[str | None, typer.Option(help="Charge this book (made if absent).")]
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
    requests_per_subject: Requests = 1,
    lambda_: LambdaOption = 0.1,
    norm_bound: Norm = 1.0,
    gamma_learn: GammaLearn = 0.5,
    gamma_priv: GammaPriv = 1.0,
    calibration: Calibration = 500,
    book: Book = None,
    plot: PlotOption = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the weights (.npz).")
    ] = None,
) -> None:
    """Play STREAM; exits with 2 if a deletion could not be honoured."""
    from demur.cli.main import _plain_errors, console
    from demur.unlearning.workload import read_stream

    with _plain_errors():
        _check_target(plot, ".png", ".svg", ".pdf")
        _check_target(output, ".npz")
        events = read_stream(stream)
        options = _Options(
            mode=mode.value,
            loss=loss.value,
            epsilon=epsilon,
            delta=delta,
            scope=scope.value,
            accounting=accounting.value if accounting else None,
            requests_per_subject=requests_per_subject,
            lambda_=lambda_,
            norm_bound=norm_bound,
            gamma_learn=gamma_learn,
            gamma_priv=gamma_priv,
            calibration=calibration,
        )
        ledger = _open(book, stream.stem, options)
        played, weights = _play(events, options, ledger)
        _show(played, options)
        if plot is not None:
            _draw(played.curve, plot)
            console.print(f"written: {plot}")
        if output is not None and played.refused:
            console.print(f"not written: {output} would still know refused records")
        elif output is not None:
            _save(output, weights, events.features)
            console.print(f"written: {output}")
        if ledger is not None:
            ledger.close()
    if played.refused:
        raise typer.Exit(2)


@unlearn_app.command("simulate")
def simulate(
    ratio: Annotated[str, typer.Option(help="Inserts to deletes.")] = "10:1",
    inserts: Annotated[int, typer.Option(help="How many inserts.")] = 20_000,
    dim: Annotated[int, typer.Option(help="How many features.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the data; noise has none.")] = 0,
    mode: Mode = ModeName.OGD,
    loss: Loss = LossName.HUBER,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    scope: Scope = ScopeName.SUBJECT,
    accounting: Accounting = None,
    lambda_: LambdaOption = 0.1,
    gamma_learn: GammaLearn = 0.5,
    gamma_priv: GammaPriv = 1.0,
    calibration: Calibration = 500,
    plot: PlotOption = None,
) -> None:
    """The workload of so many inserts to so many deletes, on made-up data."""
    from demur.cli.main import _plain_errors, console
    from demur.unlearning.workload import simulated

    with _plain_errors():
        options = _Options(
            mode=mode.value,
            loss=loss.value,
            epsilon=epsilon,
            delta=delta,
            scope=scope.value,
            accounting=accounting.value if accounting else None,
            requests_per_subject=1,
            lambda_=lambda_,
            norm_bound=1.0,
            gamma_learn=gamma_learn,
            gamma_priv=gamma_priv,
            calibration=calibration,
        )
        _check_target(plot, ".png", ".svg", ".pdf")
        every, per = _ratio(ratio)
        events = simulated(
            inserts,
            every,
            per,
            dim=dim,
            labels=options.labels,
            warm_up=calibration,
            seed=seed,
        )
        played, _ = _play(events, options, None)
        _show(played, options)
        if plot is not None:
            _draw(played.curve, plot)
            console.print(f"written: {plot}")


@unlearn_app.command("verify")
def verify(
    certificate: Annotated[
        Path, typer.Argument(help="A certificate of deletion (JSON).")
    ],
    journal: Annotated[
        str,
        typer.Argument(help="The service: a file, sqlite:///... or postgresql://..."),
    ],
    book: Annotated[
        str | None,
        typer.Option(help="The book that was charged, if it is not the service's own."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of sentences.")
    ] = False,
) -> None:
    """Check a certificate against journal and book; exits with 1 if it does not hold.

    The journal's chain, the deletion's row word for word, the entry in the book, and
    the epsilon that the noise comes to.
    """
    from demur.cli.main import _plain_errors, console
    from demur.unlearning.certificate import Certificate
    from demur.unlearning.witness import verify_certificate

    with _plain_errors():
        held = Certificate.load(certificate)
        found = verify_certificate(held, journal, book=book)
        if as_json:
            answer = {
                "ok": found.ok,
                "rows": found.rows,
                "head": str(found.head),
                "problems": found.problems,
                "unknown": found.unknown,
            }
            print(json.dumps(answer, indent=2))
        else:
            console.print(str(held), highlight=False, soft_wrap=True)
            verdict = "The certificate holds." if found.ok else "It does NOT hold."
            console.print(f"{found}\n{verdict}", highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Options:
    """The command line's numbers, and what they make."""

    mode: str
    loss: str
    epsilon: float
    delta: float
    scope: Any
    accounting: Any
    requests_per_subject: int
    lambda_: float
    norm_bound: float
    gamma_learn: float
    gamma_priv: float
    calibration: int

    @property
    def labels(self) -> bool:
        """Whether y is a class."""
        learns_loss = self.mode == "ogd" and self.loss == "logistic"
        return self.mode == "logistic" or learns_loss

    def mode_config(self, inserts: int) -> dict[str, Any]:
        """What the mode is made with; --lambda counts for each record."""
        if self.mode == "seed":
            return {"lambda_": self.lambda_}
        bound = {"norm_bound": self.norm_bound}
        if self.mode == "ogd":
            return bound | {"loss": self.loss, "lambda_": self.lambda_}
        return bound | {"Lambda": self.lambda_ * inserts}


def _check_target(path: Path | None, *endings: str) -> None:
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
        found = int(inserts), int(deletes)
    except ValueError:
        found = 0, 0
    if not colon or min(found) < 1:
        raise ValueError(f"--ratio must be like 10:1; got {text!r}")
    return found


def _open(book: str | None, dataset: str, options: _Options) -> Ledger | None:
    if book is None:
        return None
    from demur.core.adjacency import Erasure
    from demur.core.errors import BookMismatch
    from demur.ledger import Budget, Ledger

    try:
        return Ledger.open(book)
    except BookMismatch:
        budgets = {Erasure(): Budget(options.epsilon, options.delta)}
        return Ledger.open(book, dataset=dataset, budgets=budgets, filter="gaussian")


def _play(
    events: Stream, options: _Options, ledger: Ledger | None
) -> tuple[Played, Any]:
    from demur.unlearning import Calibrator, MemoryPair, PrivacyOdometer
    from demur.unlearning.losses import best_in_hindsight, loss_of
    from demur.unlearning.modes import make_mode
    from demur.unlearning.workload import Player

    formula: Any = "seed" if options.mode == "seed" else "consistent"
    odometer = PrivacyOdometer(
        options.epsilon,
        options.delta,
        options.lambda_,
        gamma=options.gamma_priv,
        accounting=options.accounting,
        formula=formula,
        scope=options.scope,
        requests_per_subject=options.requests_per_subject,
        ledger=ledger,
    )
    records, dim = events.X.shape
    made = make_mode(options.mode, dim, **options.mode_config(records))
    # The command holds the whole stream, so it may know the best u in hindsight.
    checked = [made.check(x, y) for x, y in zip(events.X, events.Y, strict=True)]
    rows, targets = zip(*checked, strict=True)
    best = best_in_hindsight(loss_of(made), _array(rows), _array(targets))
    model = MemoryPair(
        made.dim,
        odometer,
        Calibrator(formula=formula),
        mode=made,
        metrics=True,
        comparator=best,
    )
    with _bar(len(events)) as tick:
        played = Player(
            model,
            events,
            calibration=options.calibration,
            gamma_learn=options.gamma_learn,
            tick=tick,
        ).play()
    return played, model.theta


def _array(values: Any) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float64)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("events", total=total)
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if done % 256 == 0 or done == total:  # drawing costs more than learning
                progress.update(task, completed=done)

        yield tick


def _show(played: Played, options: _Options) -> None:
    """A table of theory against practice, and what became of the deletions."""
    from rich.table import Table

    from demur.cli.main import console
    from demur.unlearning.modes import MODES

    m = played.metrics
    table = Table("", "theory", "practice", title=f"mode {m.mode}, {options.scope}")
    unlimited = m.m_theory is not None and m.m_theory >= _UNLIMITED
    capacity = "unlimited" if unlimited else _number(m.m_theory)
    table.add_row(
        "average regret", _number(m.avg_regret_theory), _number(m.avg_regret_empirical)
    )
    table.add_row("N*, inserts", _number(m.N_star_theory), _number(m.inserts_seen))
    table.add_row("deletions", capacity, _number(played.deleted))
    table.add_row("epsilon", _number(options.epsilon), _number(m.eps_spent))
    table.add_row("epsilon of one deletion", _number(m.eps_step_theory), "")
    table.add_row("noise of one deletion", _number(m.sigma_step_theory), "")
    for name in ("G", "D", "c", "C"):
        table.add_row(f"{name} (estimated)", "", _number(getattr(m, f"{name}_hat")))
    console.print(table)
    console.print(f"Theorem: {MODES[options.mode].theorem.statement}", highlight=False)
    if played.renewed:
        console.print(f"{played.renewed} times the certificate was renewed.")
    if played.waited:
        console.print(f"{played.waited} deletions waited for N*.")
    if played.refused:
        console.print(
            f"{played.refused} deletions were refused ({played.reason}): retrain"
            " without these records."
        )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _draw(curve: Curve, path: Path) -> None:
    """Average regret with its bound, and what is left of the capacity."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(curve.events, curve.regret, label="average regret")
    above.plot(curve.events, curve.bound, "--", label="its bound")
    above.set_ylabel("regret per round")
    above.set_yscale("symlog", linthresh=1e-2)
    above.legend(frameon=False)
    if max(curve.capacity) < _UNLIMITED:
        below.step(curve.events, curve.capacity, where="post")
    else:
        below.text(0.5, 0.5, "unlimited", ha="center", transform=below.transAxes)
        below.set_yticks([])
    below.set_ylabel("deletions left")
    below.set_xlabel("events")
    figure.savefig(path)


def _save(path: Path, weights: Any, features: list[str]) -> None:
    import numpy as np

    np.savez(path, weights=weights, features=np.array(features))
