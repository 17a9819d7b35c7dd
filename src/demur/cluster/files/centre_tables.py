"""Tables of cluster centres, in the unit cube and in the units of the points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

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


def fit_centres(
    reports: Reports,
    k: int,
    algorithm: str = "kmeans",
    *,
    decoder: str = "noise_aware",
    random_state: int | None = None,
) -> Centres:
    """The centres of local reports, ordered by their shares, the largest first."""
    if algorithm not in _MODELS:
        raise ValueError(f"algorithm must be one of {tuple(_MODELS)}")
    model = _MODELS[algorithm](k, random_state=random_state, decoder=str(decoder))
    model.fit_reports(reports)
    if algorithm == "kmeans":
        cube = np.asarray(model.cluster_centers_)
        weights = np.bincount(model.labels_, minlength=k) / len(reports)
    else:
        cube, weights = np.asarray(model.means_), np.asarray(model.weights_)
    order = np.argsort(-weights, kind="stable")
    note = f"Decoder: {model.decoder_} ({model.decoder_reason_})."
    return Centres(cube[order], weights[order], note)


def write_centres(path: Path, centres: Centres, metadata: ReportMetadata) -> None:
    """One row for each centre: `cluster`, `share`, the columns in original units.

    Coordinates in the cube follow as `cube_<column>`; without bounds there are no
    others. A name that a column of the points already has gets a `_` behind it.
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
    table = pa.table(columns, names=added + names)
    if kind_of(path) == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)


def _unused(name: str, taken: list[str]) -> str:
    while name in taken:
        name += "_"
    return name
