"""Public datasets for a sweep, in the unit cube, and the CSV of its trials."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

from demur.cluster.sweep import METRICS, Sweep
from demur.convex.rows.tables import read_rows

_SHIPPED = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
    "breast_cancer": datasets.load_breast_cancer,
}
_CENTRES_OF_BLOBS = 3


@dataclass(frozen=True)
class PublicData:
    """Points of the unit cube, classes if there are any, and how they were scaled."""

    name: str
    points: NDArray[np.float64]
    labels: NDArray[np.int64] | None
    note: str

    @property
    def classes(self) -> int | None:
        """How many classes there are."""
        return None if self.labels is None else len(np.unique(self.labels))


def load_public(
    dataset: str,
    *,
    label: str | None = None,
    columns: list[str] | None = None,
    id_column: str | None = None,
    samples: int = 300,
    random_state: int = 42,
) -> PublicData:
    """A dataset of scikit-learn, the original repository's blobs, or a table."""
    if not Path(dataset).suffix and (columns is not None or id_column is not None):
        raise ValueError("--columns and --id-column are about a file of points")
    if dataset in _SHIPPED:
        X, y = _SHIPPED[dataset](return_X_y=True)
    elif dataset == "blobs":
        X, y = datasets.make_blobs(
            n_samples=samples,
            n_features=2,
            centers=_CENTRES_OF_BLOBS,
            cluster_std=0.5,
            random_state=random_state,
        )
    elif Path(dataset).suffix:
        left_out = () if id_column is None else (id_column,)
        X, y, _ = read_rows(dataset, label=label, columns=columns, exclude=left_out)
    else:
        raise ValueError(
            f"dataset must be one of {', '.join((*_SHIPPED, 'blobs'))} or a file; got"
            f" {dataset[:80]!r}"
        )
    X = np.asarray(X, dtype=np.float64)
    if not np.isfinite(X).all():
        raise ValueError(f"{dataset} must hold finite numbers; some are not")
    low, high = X.min(axis=0), X.max(axis=0)
    varying = high > low
    if not varying.any():
        raise ValueError(f"{dataset} has no column that varies")
    points = (X[:, varying] - low[varying]) / (high - low)[varying]
    note = "Columns were scaled by their own smallest and largest values: public data."
    if not varying.all():
        note += f" {int((~varying).sum())} constant columns were left out."
    labels = None if y is None else np.unique(y, return_inverse=True)[1]
    against = "the classes" if y is not None else "non-private k-means"
    return PublicData(
        Path(dataset).stem,
        np.clip(points, 0.0, 1.0),
        None if labels is None else labels.astype(np.int64).reshape(-1),
        f"{note} ARI and NMI are against {against}.",
    )


def write_trials(sweep: Sweep, path: Path) -> None:
    """Write one line for each trial, and one for the data without noise."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ["algorithm", "epsilon", "L", "asked_L", "price", "of"]
        names += ["trial", "decoder"]
        writer.writerow([*names, *METRICS])
        empty = [""] * (len(names) - 1)
        writer.writerow(["not private", *empty, *asdict(sweep.baseline).values()])
        for t in sweep.trials:
            used = [t.mechanism.epsilon, t.mechanism.L, t.L, t.price, sweep.priced]
            setting = [t.algorithm, *used, t.trial, t.decoder]
            writer.writerow([*setting, *asdict(t.quality).values()])
