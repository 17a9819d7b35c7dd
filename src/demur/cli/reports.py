"""`demur reports`: perturb points, cluster reports, look at the mechanism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli.report_tables import centre_table, constants_table, sweep_table
from demur.cli.values import ManyValues, names, numbers, threshold, thresholds

if TYPE_CHECKING:
    from demur.ledger import Ledger
    from demur.mechanisms import BPM

reports_app = typer.Typer(
    help="Perturb points where they are (BPM), and cluster the reports.",
    no_args_is_help=True,
)


class Algorithm(StrEnum):
    """Which model is fitted to the reports."""

    KMEANS = "kmeans"
    GMM = "gmm"
    TMM = "tmm"


class Decoder(StrEnum):
    """How the server undoes the noise."""

    NOISE_AWARE = "noise_aware"
    CLIP = "clip"
    PLAIN = "plain"


Threshold = Annotated[
    str, typer.Option("--L", help="Threshold distance: a number, inf, or auto.")
]


@reports_app.command("make", cls=ManyValues)
def make(
    source: Annotated[
        Path, typer.Argument(help="Points: Parquet or CSV.", metavar="IN")
    ],
    output: Annotated[
        Path, typer.Argument(help="Reports: Parquet or CSV.", metavar="OUT")
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy per unit of the cube.")],
    low: Annotated[
        list[str], typer.Option(help="Public lower bound, one or one per column.")
    ],
    high: Annotated[
        list[str], typer.Option(help="Public upper bound, one or one per column.")
    ],
    L: Threshold = "auto",
    columns: Annotated[
        str | None, typer.Option(help="Names, separated by commas; default: all.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Whole numbers that name the rows.")
    ] = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Move values outside to the bounds.")
    ] = False,
    book: Annotated[
        str | None, typer.Option(help="Charge this book (made if it is not there).")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A killed job repeats its reports under it.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The entry's name.")] = None,
    space: Annotated[str, typer.Option(help="The space of radii.")] = "cube",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is there.")
    ] = False,
) -> None:
    """Turn the points of IN into reports that may be handed to anyone.

    Columns that are not named are not read. The file is read twice: once to check and
    to take a digest, once to perturb; one entry is charged in between.
    """
    from demur.cli.main import _plain_errors, console
    from demur.cluster.point_tables import PointTable
    from demur.cluster.report_job import ReportJob
    from demur.mechanisms import BPM

    with _plain_errors():
        table = PointTable(
            source,
            low=numbers("--low", low),
            high=numbers("--high", high),
            columns=names(columns),
            id_column=id_column,
            clip=clip,
        )
        bpm = BPM(epsilon, threshold("--L", L), table.dimension)
        with _bar() as progress, ExitStack() as closing:
            job = ReportJob.prepare(
                table,
                output,
                bpm,
                space=space,
                overwrite=overwrite,
                progress=progress,
            )
            ledger = None
            if book is not None:  # made only now, when there is something to charge
                ledger = closing.enter_context(_open(book, source.stem, bpm))
            made = job.run(ledger, label=label, idempotency_key=idempotency_key)
        console.print(made.entry.statement(), highlight=False)
        if clip:
            console.print("Values outside the bounds were moved to them (--clip).")
        console.print(f"written: {made.path}")


@reports_app.command("cluster")
def cluster(
    reports: Annotated[
        Path, typer.Argument(help="What `make` wrote.", metavar="REPORTS")
    ],
    k: Annotated[int, typer.Option("-k", "--clusters", help="How many clusters.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Parquet or CSV of centres.")
    ] = None,
    algorithm: Annotated[Algorithm, typer.Option(help="What to fit.")] = (
        Algorithm.KMEANS
    ),
    decoder: Annotated[Decoder, typer.Option(help="How to undo the noise.")] = (
        Decoder.NOISE_AWARE
    ),
    seed: Annotated[int | None, typer.Option(help="Of the clustering.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Where the file does not say.")
    ] = None,
    L: Annotated[
        str | None, typer.Option("--L", help="Where the file does not say.")
    ] = None,
) -> None:
    """Cluster REPORTS as if they had not been perturbed. Costs no privacy."""
    from demur.cli.main import _plain_errors, console
    from demur.cluster.centre_tables import fit_centres, write_centres
    from demur.cluster.point_tables import kind_of
    from demur.cluster.report_files import read_reports

    with _plain_errors():
        if output is not None:
            kind_of(output)
            if output.exists() and reports.exists() and output.samefile(reports):
                raise ValueError(
                    "the output must not be the reports: they are paid for, and would"
                    " be lost"
                )
        told = None if L is None else threshold("--L", L)
        found, metadata = read_reports(reports, epsilon=epsilon, L=told)
        with console.status("clustering"):
            centres = fit_centres(found, k, algorithm, decoder=decoder, seed=seed)
        console.print(centre_table(centres, metadata))
        console.print(centres.note, highlight=False)
        if output is not None:
            write_centres(output, centres, metadata)
            console.print(f"written: {output}")


@reports_app.command("inspect")
def inspect(
    epsilon: Annotated[float, typer.Option(help="Privacy per unit of the cube.")],
    dimension: Annotated[int, typer.Option(help="Coordinates of a point.")],
    L: Threshold = "auto",
    samples: Annotated[int, typer.Option(help="Reports to draw; 0: none.")] = 2000,
    plot: Annotated[Path | None, typer.Option(help="A picture (.png, .svg).")] = None,
    seed: Annotated[int | None, typer.Option(help="To repeat the picture.")] = None,
) -> None:
    """The mechanism's constants, and whether its reports fall where they should."""
    from demur.cli.main import _plain_errors, console
    from demur.cluster.inspection import inspect as draw_and_count
    from demur.mechanisms import BPM

    with _plain_errors():
        bpm = BPM(epsilon, threshold("--L", L), dimension)
        console.print(constants_table(bpm))
        console.print(bpm.declaration().name, highlight=False)
        if samples == 0:
            if plot is not None:
                raise ValueError("--plot needs --samples")
            return
        found = draw_and_count(bpm, samples, seed=seed)
        low, high = found.share.interval
        verdict = "agrees" if found.share.agrees else "does NOT agree"
        console.print(
            f"\nWithin L of the point: {found.share.inside} of {samples} reports,"
            f" {found.share.observed:.4f} (99% interval {low:.4f} to {high:.4f});"
            f" expected p_L = {found.share.expected:.4f}: {verdict}.",
            highlight=False,
        )
        if plot is not None:
            from demur.cli.report_plots import plot_inspection

            plot_inspection(found, plot)
            console.print(f"written: {plot}")


@reports_app.command("sweep", cls=ManyValues)
def sweep(
    dataset: Annotated[
        str, typer.Option(help="iris, wine, digits, breast_cancer, blobs, or a file.")
    ] = "iris",
    epsilons: Annotated[list[str], typer.Option(help="Several.")] = ["1", "2", "4"],  # noqa: B006
    Ls: Annotated[list[str], typer.Option("--Ls", help="Numbers, or auto.")] = ["auto"],  # noqa: B006
    trials: Annotated[int, typer.Option(help="Draws of noise per setting.")] = 20,
    algorithms: Annotated[list[str], typer.Option(help="kmeans gmm tmm.")] = ["kmeans"],  # noqa: B006
    decoder: Annotated[Decoder, typer.Option(help="How to undo the noise.")] = (
        Decoder.NOISE_AWARE
    ),
    clusters: Annotated[
        int | None, typer.Option("-k", "--clusters", help="Default: the classes.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of classes, in a file.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Rows of blobs.")] = 300,
    seed: Annotated[int, typer.Option(help="Of blobs and of the clustering.")] = 42,
    csv: Annotated[Path | None, typer.Option(help="Every trial.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture (.png, .svg).")] = None,
) -> None:
    """Try epsilons and Ls on PUBLIC data: every number is computed from raw points."""
    from demur.cli.main import _plain_errors, console
    from demur.cli.sweep_data import load_public
    from demur.cluster.sweep import sweep as run

    with _plain_errors():
        data = load_public(dataset, label=label, samples=samples, seed=seed)
        k = clusters or data.classes
        if k is None:
            raise ValueError(f"-k must say how many clusters {dataset} has")
        console.print(
            "[bold red]A sweep compares with the raw data[/]: its numbers are not"
            " private, and choosing epsilon or L by them on private data is a leak."
            " Use it on public or test data."
        )
        with _bar() as progress:
            found = run(
                data.points,
                data.labels,
                n_clusters=k,
                epsilons=numbers("--epsilons", epsilons),
                Ls=thresholds("--Ls", Ls),
                trials=trials,
                algorithms=algorithms,
                decoder=decoder,
                seed=seed,
                progress=lambda done, total: progress("trials", done, total),
            )
        console.print(sweep_table(found, data.name, trials))
        console.print(data.note, highlight=False)
        if csv is not None:
            from demur.cli.sweep_data import write_trials

            write_trials(found, csv)
            console.print(f"written: {csv}")
        if plot is not None:
            from demur.cli.report_plots import plot_sweep

            plot_sweep(found, plot, data.name)
            console.print(f"written: {plot}")


def _open(book: str, dataset: str, bpm: BPM) -> Ledger:
    from demur.cluster.report_job import whole_budget
    from demur.core.adjacency import ReplaceOne
    from demur.core.errors import BookMismatch
    from demur.ledger import Ledger

    try:
        return Ledger.open(book)
    except BookMismatch:
        budgets: Any = {ReplaceOne(): whole_budget(bpm)}
        return Ledger.open(book, dataset=dataset, budgets=budgets, filter="pure")


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each stage of the work."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield tell
