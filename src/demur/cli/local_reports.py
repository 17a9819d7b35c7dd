"""`demur reports`: perturb points, cluster local reports, inspect the mechanism."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
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
from demur.cli.list_options import (
    ManyValues,
    names,
    numbers,
    threshold,
    thresholds,
    whole_number,
)
from demur.cli.local_report_checks import (
    Algorithm,
    DecoderName,
    charged_before,
    must_be_picture,
    must_have_room,
    stage_bars,
    units_of,
)
from demur.cli.local_report_tables import (
    centre_table,
    constants,
    constants_table,
    counted,
    sweep_table,
)
from demur.cli.shell import (
    App,
    AsJson,
    console,
    entry_facts,
    errors,
    print_json,
    written,
)

if TYPE_CHECKING:
    from demur.core.adjacency import Unit
    from demur.core.entry import Entry

reports_app = App(
    help="Perturb points on the client (BPM), and cluster the local reports.",
    no_args_is_help=True,
)


Threshold = Annotated[
    str, typer.Option("--L", help="Threshold distance: a number, inf, or auto.")
]


@reports_app.command("make", cls=ManyValues)
def make(
    path: Annotated[Path, typer.Argument(help="Points: Parquet or CSV.", metavar="IN")],
    output: Annotated[
        Path, typer.Argument(help="Local reports: Parquet or CSV.", metavar="OUT")
    ],
    low: Annotated[
        list[str], typer.Option(help="Public lower bound, one or one per column.")
    ],
    high: Annotated[
        list[str], typer.Option(help="Public upper bound, one or one per column.")
    ],
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy per unit of the cube.")
    ] = None,
    L: Threshold = "auto",
    price: Annotated[
        float | None,
        typer.Option(help="Epsilon for the ledger's unit: chooses --epsilon and --L."),
    ] = None,
    people: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --price: reports in all files; default: rows of IN."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names, separated by commas; default: all.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Whole numbers that name the rows.")
    ] = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Move values outside to the bounds.")
    ] = False,
    ledger: LedgerOption = None,
    create: Create = False,
    budget: BudgetOption = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="A killed job repeats its reports under it.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The entry's name.")] = None,
    space: Annotated[str, typer.Option(help="The space of radii.")] = "cube",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write local reports of the points of IN, which may be given to anyone.

    Columns that are not named are not read. The file is read twice: once to check and
    to take a digest, once to perturb; one entry is charged in between. A job with a
    ledger that was interrupted is resumed by the same command, and pays once.
    """
    from demur.cli.interrupts import explain_interrupt
    from demur.cli.resumable_jobs import Job
    from demur.cluster.files.point_tables import PointTable
    from demur.cluster.files.report_job import ReportJob, mechanism_for_job

    charged = ChargedLedger.of(ledger, create, budget, signing_key, password_file, keys)

    def go_on(new: list[Entry]) -> str:
        if ledger is None:
            return "Nothing was recorded. Run the same command again."
        if not new and not resumable.begun:
            return "Run the same command again."
        return (
            "The same command makes the reports it has paid for, and pays nothing more:"
            f" run it again (its job is {resumable.path.name})."
            if idempotency_key is None
            else "The same command with the same key goes on and pays nothing more."
        )

    resumable = Job(output, wanted=ledger is not None and idempotency_key is None)
    with explain_interrupt(None if charged is None else charged.read, go_on):
        table = PointTable(
            path,
            low=numbers("--low", low),
            high=numbers("--high", high),
            columns=names(columns),
            id_column=id_column,
            clip=clip,
            space=space,
        )
        bpm = mechanism_for_job(
            table, epsilon, threshold("--L", L), price, units_of(charged, price), people
        )
        with stage_bars() as progress, ExitStack() as closing:
            job = ReportJob.prepare(
                table,
                output,
                bpm,
                overwrite=overwrite,
                begun=charged_before(charged, resumable.known(idempotency_key)),
                progress=progress,
            )
            opened = None
            if charged is not None:  # made only now, when there is something to charge
                opened = closing.enter_context(
                    charged.open(dataset=path.stem, filter="pure")
                )
            key = closing.enter_context(resumable).key(idempotency_key)
            reports = job.run(ledger=opened, label=label, idempotency_key=key)
    if as_json:
        print_json(
            {
                "written": str(reports.path),
                "epsilon": bpm.epsilon,
                "L": bpm.L,
                "dimension": bpm.dimension,
                "clipped": clip,
                "entry": entry_facts(reports.entry),
            }
        )
        return
    console.print(reports.entry.statement(), highlight=False, markup=False)
    if clip:
        console.print("Values outside the bounds were moved to them (--clip).")
    written(reports.path)


@reports_app.command("cluster")
def cluster(
    path: Annotated[
        Path, typer.Argument(help="Local reports that `make` wrote.", metavar="REPORTS")
    ],
    k: Annotated[
        str, typer.Option("-k", "--clusters", help="How many clusters, or auto.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Parquet or CSV of centres.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Parquet or CSV: the cluster of each report, by its id."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="A picture of the centres (two columns).")
    ] = None,
    algorithm: Annotated[Algorithm, typer.Option(help="What to fit.")] = (
        Algorithm.KMEANS
    ),
    decoder: Annotated[DecoderName, typer.Option(help="How to undo the noise.")] = (
        DecoderName.NOISE_AWARE
    ),
    seed: Annotated[int | None, typer.Option(help="Of the clustering.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Where the file does not say.")
    ] = None,
    L: Annotated[
        str | None, typer.Option("--L", help="Where the file does not say.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cluster local reports, taking their noise into account. Costs no privacy."""
    from demur.cluster.files.centre_tables import (
        fit_centres,
        shown_interval,
        write_centres,
        write_labels,
    )
    from demur.cluster.files.point_tables import kind_of
    from demur.cluster.files.report_files import read_reports

    must_be_picture(plot)
    must_have_room(plot)
    for written_to in (output, labels):
        if written_to is None:
            continue
        kind_of(written_to)
        must_have_room(written_to)
        if written_to.exists() and path.exists() and written_to.samefile(path):
            raise ValueError(
                "the output must not be the reports: they are paid for, and would be"
                " lost"
            )
    if output and labels and output.resolve() == labels.resolve():
        raise ValueError("--output and --labels must be two files")
    count = k if k == "auto" else whole_number("-k", k)
    given = None if L is None else threshold("--L", L)
    reports, metadata = read_reports(path, epsilon=epsilon, L=given)
    if plot is not None and len(metadata.columns) != 2:
        raise ValueError(
            f"--plot needs reports of two columns; these have {len(metadata.columns)}"
        )
    with errors.status("clustering"):
        centres = fit_centres(
            reports, count, algorithm, decoder=decoder, random_state=seed
        )
    if output is not None:
        write_centres(output, centres, metadata)
    if labels is not None:
        write_labels(labels, centres, reports, metadata)
    if plot is not None:
        from demur.cli.local_report_plots import plot_centres

        plot_centres(centres, reports, plot)
    if as_json:
        original = metadata.low is not None
        interval = shown_interval(centres, metadata)
        shares = centres.shares_interval
        print_json(
            {
                "written": None if output is None else str(output),
                "labels": None if labels is None else str(labels),
                "columns": list(metadata.columns),
                "shares": centres.weights.tolist(),
                "shares_interval": None if shares is None else shares.tolist(),
                "cube": centres.cube.tolist(),
                "centres": metadata.in_original_units(centres.cube).tolist()
                if original
                else None,
                "interval": None if interval is None else interval.tolist(),
                "note": centres.note,
            }
        )
        return
    console.print(centre_table(centres, metadata))
    console.print(centres.note, highlight=False, markup=False)
    for file in (output, labels, plot):
        if file is not None:
            written(file)


@reports_app.command("inspect")
def inspect(
    epsilon: Annotated[float, typer.Option(help="Privacy per unit of the cube.")],
    dimension: Annotated[int, typer.Option(help="Coordinates of a point.")],
    L: Threshold = "auto",
    samples: Annotated[int, typer.Option(help="Reports to draw; 0: none.")] = 2000,
    plot: Annotated[Path | None, typer.Option(help="A picture (.png, .svg).")] = None,
    seed: Annotated[int | None, typer.Option(help="To repeat the picture.")] = None,
    as_json: AsJson = False,
) -> None:
    """The constants of BPM, and a count of where its reports fall."""
    from demur.cluster.inspection import inspect as draw_and_count
    from demur.core.entropy import Seeded
    from demur.mechanisms import BPM

    bpm = BPM(epsilon, threshold("--L", L), dimension)
    if samples == 0 and plot is not None:
        raise ValueError("--plot needs --samples")
    must_have_room(plot)
    must_be_picture(plot)
    source = None if seed is None else Seeded(seed)
    inspection = draw_and_count(bpm, samples, source=source) if samples else None
    if inspection is not None and plot is not None:
        from demur.cli.local_report_plots import plot_inspection

        plot_inspection(inspection, plot)
    if as_json:
        counts = {} if inspection is None else counted(inspection, plot)
        print_json(constants(bpm) | counts)
        return
    console.print(constants_table(bpm))
    console.print(bpm.declaration().name, highlight=False)
    if inspection is None:
        return
    share = inspection.share
    low, high = share.interval
    verdict = "agrees" if share.agrees else "does NOT agree"
    console.print(
        f"\nWithin L of the point: {share.inside} of {samples} reports,"
        f" {share.observed:.4f} (99% interval {low:.4f} to {high:.4f});"
        f" expected p_L = {share.expected:.4f}: {verdict}.",
        highlight=False,
    )
    if plot is not None:
        written(plot)


@reports_app.command("sweep", cls=ManyValues)
def sweep(
    dataset: Annotated[
        str, typer.Option(help="iris, wine, digits, breast_cancer, blobs, or a file.")
    ] = "iris",
    epsilons: Annotated[list[str], typer.Option(help="Several.")] = ["1", "2", "4"],  # noqa: B006
    prices: Annotated[
        list[str],
        typer.Option(help="In place of --epsilons: of any replacement, or --radius."),
    ] = [],  # noqa: B006
    radius: Annotated[
        float | None, typer.Option(help="Prices are for a move by at most this.")
    ] = None,
    Ls: Annotated[list[str], typer.Option("--Ls", help="Numbers, or auto.")] = ["auto"],  # noqa: B006
    trials: Annotated[int, typer.Option(help="Draws of noise per setting.")] = 20,
    algorithms: Annotated[list[str], typer.Option(help="kmeans gmm tmm.")] = ["kmeans"],  # noqa: B006
    decoder: Annotated[DecoderName, typer.Option(help="How to undo the noise.")] = (
        DecoderName.NOISE_AWARE
    ),
    clusters: Annotated[
        int | None, typer.Option("-k", "--clusters", help="Default: the classes.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of classes, in a file.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of a file: names, separated by commas.")
    ] = None,
    id_column: Annotated[
        str | None, typer.Option(help="Of a file: a column to leave out.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Rows of blobs.")] = 300,
    seed: Annotated[int, typer.Option(help="Of blobs and of the clustering.")] = 42,
    csv: Annotated[Path | None, typer.Option(help="Every trial.")] = None,
    plot: Annotated[Path | None, typer.Option(help="A picture (.png, .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Try epsilons and Ls on PUBLIC data: every number is computed from raw points."""
    from demur.cli.sweep_data import load_public, write_trials
    from demur.cluster.sweep import SweepSettings
    from demur.cluster.sweep import sweep as run
    from demur.core.adjacency import Ball, ReplaceOne

    must_have_room(csv, plot)
    must_be_picture(plot)
    data = load_public(
        dataset,
        label=label,
        columns=names(columns),
        id_column=id_column,
        samples=samples,
        random_state=seed,
    )
    unit: Unit | None = None
    if prices:
        unit = ReplaceOne() if radius is None else Ball(radius, space="cube")
    elif radius is not None:
        raise ValueError("--radius says what --prices are for: give --prices too")
    k = data.classes if clusters is None else clusters
    if k is None:
        raise ValueError(f"-k must say how many clusters {dataset} has")
    errors.print(
        "[bold red]A sweep compares with the raw data[/]: its numbers are not private,"
        " and choosing epsilon or L by them on private data is a leak. Use it on public"
        " or test data."
    )
    settings = SweepSettings(
        numbers("--prices", prices) if prices else numbers("--epsilons", epsilons),
        thresholds("--Ls", Ls),
        algorithms,
        trials,
        decoder,
        unit,
    )
    with stage_bars() as progress:
        result = run(
            data.points,
            data.labels,
            n_clusters=k,
            settings=settings,
            random_state=seed,
            progress=lambda done, total: progress("trials", done, total),
        )
    files = [path for path in (csv, plot) if path is not None]
    if csv is not None:
        write_trials(result, csv)
    if plot is not None:
        from demur.cli.local_report_plots import plot_sweep

        plot_sweep(result, plot, data.name)
    if as_json:
        print_json(
            {
                "dataset": data.name,
                "trials": trials,
                "price_of": result.priced,
                "not_private": asdict(result.baseline),
                "settings": [asdict(band) for band in result.bands()],
                "note": data.note,
                "written": [str(path) for path in files],
            }
        )
        return
    console.print(sweep_table(result, data.name, trials))
    console.print(data.note, highlight=False, markup=False)
    for path in files:
        written(path)
