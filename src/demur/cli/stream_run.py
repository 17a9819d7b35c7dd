"""Running a stream for `demur unlearn`: its options and its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur.cli.shell import console, print_json, progress_console, written

if TYPE_CHECKING:
    from demur.ledger import Ledger
    from demur.unlearning.models.base import Mode
    from demur.unlearning.stream.workload import EventStream, StreamResult


@dataclass(frozen=True)
class StreamOptions:
    """The options of the command line."""

    mode: str
    loss: str
    epsilon: float
    delta: float
    scope: Any
    accounting: Any
    requests_per_subject: int | None
    lam: float
    norm_bound: float
    gamma_learn: float
    gamma_priv: float
    calibration: int

    @property
    def mode_class(self) -> type[Mode]:
        """The mode by name."""
        from demur.unlearning.models import MODES

        return MODES[self.mode]

    @property
    def labels(self) -> bool:
        """Whether y is a class."""
        losses = self.mode_class.losses
        return (self.loss if self.loss in losses else losses[0]) == "logistic"

    def mode_config(self, inserts: int) -> dict[str, Any]:
        """The options of the mode; --lambda counts for each record."""
        mode = self.mode_class
        per_record = mode.regulariser == "lam"
        config: dict[str, Any] = {
            mode.regulariser: self.lam if per_record else self.lam * inserts
        }
        if mode.clips:
            config["norm_bound"] = self.norm_bound
        if len(mode.losses) > 1:
            config["loss"] = self.loss
        return config


def write_files(
    result: StreamResult,
    plot: Path | None,
    output: Path | None,
    weights: Any,
    features: list[str],
) -> list[Path]:
    """Write the files that were asked for; no weights that hold refused records."""
    from demur.cli.stream_views import draw_stream, save_weights

    files = []
    if plot is not None:
        draw_stream(result.curve, plot)
        files.append(plot)
    if output is not None and not result.refused:
        save_weights(output, weights, features)
        files.append(output)
    return files


def print_result(
    result: StreamResult, options: StreamOptions, files: list[Path], as_json: bool
) -> None:
    """Print the result: JSON, or a table and a few lines."""
    from demur.cli.stream_views import stream_facts, stream_lines, stream_table

    if as_json:
        print_json(stream_facts(result, files))
        return
    console.print(stream_table(result, options.scope, options.epsilon))
    for line in stream_lines(result, options.mode):
        console.print(line, highlight=False, markup=False)
    for path in files:
        written(path)


def run_stream(
    events: EventStream, options: StreamOptions, ledger: Ledger | None
) -> tuple[StreamResult, Any]:
    """Run the stream through a model of the options; the result, and the weights."""
    import numpy as np

    from demur.unlearning import Calibrator, MemoryPair, PrivacyOdometer
    from demur.unlearning.models import make_mode
    from demur.unlearning.stream.losses import best_in_hindsight, loss_of
    from demur.unlearning.stream.workload import StreamRunner

    formula = options.mode_class.formula
    odometer = PrivacyOdometer(
        options.epsilon,
        options.delta,
        options.lam,
        gamma=options.gamma_priv,
        accounting=options.accounting,
        formula=formula,
        scope=options.scope,
        requests_per_subject=options.requests_per_subject,
        ledger=ledger,
    )
    records, dimension = events.X.shape
    mode = make_mode(options.mode, dimension, **options.mode_config(records))
    # The command has the whole stream, so it can compute the best u in hindsight.
    checked = [mode.check(x, y) for x, y in zip(events.X, events.Y, strict=True)]
    rows, targets = zip(*checked, strict=True)
    best = best_in_hindsight(
        loss_of(mode),
        np.array(rows, dtype=np.float64),
        np.array(targets, dtype=np.float64),
    )
    model = MemoryPair(
        mode.dimension,
        odometer,
        Calibrator(formula=formula),
        mode=mode,
        metrics=True,
        comparator=best,
    )
    with _bar(len(events)) as tick:
        result = StreamRunner(
            model,
            events,
            calibration=options.calibration,
            gamma_learn=options.gamma_learn,
            tick=tick,
        ).run()
    return result, model.theta


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=progress_console(), transient=True) as progress:
        task = progress.add_task("events", total=total)
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if done % 256 == 0 or done == total:  # drawing costs more than learning
                progress.update(task, completed=done)

        yield tick
