"""`--tune` of `demur head fit` and `demur train`: a private search, paid for once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli.shell import progress_console
from demur.core import validate

if TYPE_CHECKING:
    from demur.cli.head_rows import HeadRows
    from demur.ledger import Ledger

Tune = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        help="Search over settings, as in NAME=0.1,1,10: a secret number of fits, one"
        " payment. May be repeated.",
    ),
]
Runs = Annotated[
    float | None,
    typer.Option(help="The mean number of fits of --tune (default: 2 each)."),
]
HeldBack = Annotated[
    float, typer.Option(help="The share of persons that score the fits of --tune.")
]


def check_options(held_back: float, runs: float | None = None) -> None:
    """Refuse shares and means that are none, with or without --tune."""
    validate.open_probability(held_back=held_back)
    if runs is not None:
        validate.positive(runs=runs)


def parse_grid(tune: list[str]) -> dict[str, list[Any]]:
    """The grid that `name=value,value` options name.

    >>> parse_grid(["lam=0.01,0.1", "loss=huber"])
    {'lam': [0.01, 0.1], 'loss': ['huber']}
    """
    grid: dict[str, list[Any]] = {}
    for text in tune:
        name, equals, values = text.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or not values or key in grid:
            raise ValueError(
                "--tune takes one setting and its values, as in lam=0.01,0.1, and each"
                f" setting once; got {text[:60]!r}. Nothing was spent."
            )
        grid[key] = [_value(value.strip()) for value in values.split(",")]
    return grid


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def tuned_head(
    head: Any,
    tune: list[str],
    runs: float | None,
    share: float,
    rows: HeadRows,
    ids: Any,
    ledger: Ledger | None,
) -> Any:
    """The winner of a private search over the settings; the search pays."""
    from demur.tuning import NotSearchable, PrivateGridSearch

    if rows.y is None or rows.weights is not None:
        raise ValueError(
            "--tune is for rows in memory without weights: leave --stream and"
            " --weight-column out. Nothing was spent."
        )
    grid = parse_grid(tune)
    unknown = sorted(set(grid) - set(head.get_params()))
    if unknown:
        raise ValueError(
            f"--tune {unknown[0]} is not a setting of {type(head).__name__}. Nothing"
            " was spent."
        )
    search = PrivateGridSearch(
        head.set_params(ledger=None),
        grid,
        ledger=ledger,
        repetitions=runs,
        share=share,
        label=f"{head.label}, searched",
    )
    # Public numbers alone: how many fits there will be is a secret.
    settings = 1
    for values in grid.values():
        settings *= len(values)
    progress_console().print(
        f"searching over {settings} settings; how many fits there are stays secret, so"
        " there is no bar"
    )
    search.fit(rows.X, rows.y, ids)
    if search.outcome_ != "found":
        raise NotSearchable(
            "every fit of the search failed, and nothing more is told. The entry is"
            " spent. Check the settings, and search again."
        )
    return search.best_estimator_


def ids_of(data: Path, id_column: str | None) -> Any:
    """The person of each row, or None where the number of the row is the id."""
    if id_column is None:
        return None
    from demur.convex.rows.tables import read_column

    return read_column(data, id_column)
