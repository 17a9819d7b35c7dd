"""Tables of cluster centres, in the unit cube and in the units of the points."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from demur.cluster.errors import UnsupportedClusters
from demur.cluster.estimators import PrivateGMM, PrivateKMeans, PrivateTMM
from demur.cluster.files.point_tables import kind_of
from demur.cluster.files.report_metadata import ReportMetadata
from demur.mechanisms.reports import Reports

Values = NDArray[np.float64]

_MODELS: dict[str, Any] = {
    "kmeans": PrivateKMeans,
    "gmm": PrivateGMM,
    "tmm": PrivateTMM,
}


@dataclass(frozen=True)
class Centres:
    """Cluster centres in the unit cube, their shares, and which decoder was used."""

    cube: Values
    weights: Values
    note: str
    labels: NDArray[np.intp]  # of the reports
    # 95% of the posterior, where there is one: clusters x 2, clusters x columns x 2.
    shares_interval: Values | None = None
    interval: Values | None = None
    covariances: Values | None = None


def fit_centres(
    reports: Reports,
    k: int | str,
    algorithm: str = "kmeans",
    *,
    decoder: str = "noise_aware",
    random_state: int | None = None,
) -> Centres:
    """The centres of local reports, ordered by their shares, the largest first.

    Where the reports do not show k clusters, `note` says so in place of a warning.
    """
    if algorithm not in _MODELS:
        raise ValueError(f"algorithm must be one of {tuple(_MODELS)}")
    model = _MODELS[algorithm](k, random_state=random_state, decoder=str(decoder))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnsupportedClusters)
        model.fit_reports(reports)
    notes = [f"Decoder: {model.decoder_} ({model.decoder_reason_})."]
    for one in caught:
        if issubclass(one.category, UnsupportedClusters):
            notes.append(f"Note: {one.message}")
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    known: tuple[Values | None, ...] = (None, None, None)
    if algorithm == "kmeans":
        cube = np.asarray(model.cluster_centers_)
        weights = np.bincount(model.labels_, minlength=len(cube)) / len(reports)
        if model.decoder_ == "noise_aware":  # of the points, through the noise
            weights = model.weights_
            known = (
                model.weights_interval_,
                model.centers_interval_,
                model.centers_covariance_,
            )
    else:
        cube, weights = np.asarray(model.means_), np.asarray(model.weights_)
    order = np.argsort(-weights, kind="stable")
    rank = np.argsort(order)
    return Centres(
        cube[order],
        weights[order],
        " ".join(notes),
        rank[model.labels_],
        *(None if one is None else one[order] for one in known),
    )


def write_centres(path: Path, centres: Centres, metadata: ReportMetadata) -> None:
    """One row for each centre: `cluster`, `share`, the columns in original units.

    Coordinates in the cube follow as `cube_<column>`; without bounds there are no
    others. Where there is a posterior, `share_low`, `share_high` and each
    `<column>_low`, `<column>_high` (`cube_<column>_low` without bounds) are its 95%. A
    name that a column of the points already has gets a `_` behind it.
    """
    names: list[str] = []
    columns: list[Any] = []
    if metadata.low is not None:
        names += metadata.columns
        columns += list(metadata.in_original_units(centres.cube).T)
    for name, column in zip(metadata.columns, centres.cube.T, strict=True):
        names.append(_unused(f"cube_{name}", names))
        columns.append(column)
    added = [_unused("cluster", names), _unused("share", names)]
    columns = [np.arange(len(centres.cube)), centres.weights, *columns]
    names = added + names
    for name, column in _ends(centres, metadata):
        names.append(_unused(name, names))
        columns.append(column)
    table = pa.table(columns, names=names)
    if kind_of(path) == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)


def _ends(centres: Centres, metadata: ReportMetadata) -> list[tuple[str, Values]]:
    """Columns of the ends of intervals, with their names."""
    if centres.shares_interval is None or centres.interval is None:
        return []
    prefix = "" if metadata.low is not None else "cube_"
    ends = [("share", centres.shares_interval)]
    shown = shown_interval(centres, metadata)
    assert shown is not None
    for i, name in enumerate(metadata.columns):
        ends.append((prefix + name, shown[:, i]))
    return [
        (f"{name}_{side}", both[:, j])
        for name, both in ends
        for j, side in enumerate(("low", "high"))
    ]


def shown_interval(centres: Centres, metadata: ReportMetadata) -> Values | None:
    """The intervals of centres in the units of the points, where these are known."""
    if centres.interval is None or metadata.low is None:
        return centres.interval
    sides = np.moveaxis(centres.interval, 2, 0)
    return np.stack([metadata.in_original_units(side) for side in sides], axis=2)


def write_labels(
    path: Path, centres: Centres, reports: Reports, metadata: ReportMetadata
) -> None:
    """One row for each report: its id and the number of its cluster."""
    names = [metadata.id_column or "row", "cluster"]
    names[1] = _unused(names[1], names[:1])
    table = pa.table([reports.row_ids, centres.labels], names=names)
    if kind_of(path) == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)


def _unused(name: str, taken: list[str]) -> str:
    while name in taken:
        name += "_"
    return name
