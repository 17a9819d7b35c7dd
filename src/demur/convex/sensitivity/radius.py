r"""The radius of a ball: from policy, from public data, or paid for.

A radius read off the private records is a release: sigma, which everybody learns, would
differ between neighbours, and the unit itself would depend on the data.
`compute_radius_policy` is therefore for *public* data and says so in its signature;
`private_radius` reads a quantile of within-class distances off private data and pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors

from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, clip_rows, finite_matrix
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.entropy import Source, Stream
from demur.core.errors import NotPrivate
from demur.core.release import Release
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.exponential import GridQuantile

Array = NDArray[np.float64]

GRID_POINTS = 200


@dataclass(frozen=True)
class RadiusPolicy:
    """Radii by percentile of nearest-neighbour distance, and a bound on the rows.

    `bound` says what B is worth: declared where it is public, estimated where it was
    read off the rows; an estimated bound makes every statement on it conditional.
    """

    r_values: dict[float, float]
    percentiles: tuple[float, ...]
    nn_sample_per_class: int
    B_mode: str
    B: float
    r_std: float
    max_norm: float
    bound_check_passed: bool
    nn_dists_summary: dict[str, float]
    bound: Bound


def within_class_nn_distances(
    Z: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    per_class: int = 400,
    seed: int = 0,
) -> Array:
    """Each sampled row's distance to the nearest other one of its class."""
    rows, labels = finite_matrix("Z", Z), np.asarray(y)
    _same_length(rows, labels)
    validate.count(per_class=per_class)
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    known = np.unique(labels) if num_classes is None else np.arange(num_classes)
    for label in known:
        index = np.flatnonzero(labels == label)
        if len(index) > per_class:
            index = rng.choice(index, per_class, replace=False)
        if len(index) < 2:
            continue
        near = NearestNeighbors(n_neighbors=2).fit(rows[index])
        found.append(near.kneighbors(rows[index])[0][:, 1])
    if not found:
        raise ValueError("no class has two records: there is no within-class distance")
    return np.concatenate(found)


def compute_radius_policy(
    Ztr: ArrayLike,
    ytr: ArrayLike,
    *,
    percentiles: Sequence[float] = (10, 25, 50, 75, 90),
    nn_sample_per_class: int = 400,
    seed: int = 0,
    B_mode: Literal["public", "max", "quantile"] = "public",
    B_public: float | None = None,
    B_quantile: float = 0.999,
    check_public_bound: bool = True,
    bound_tol: float = 1e-3,
    public: bool = False,
) -> RadiusPolicy:
    """Radii and a norm bound from *public* data; refuses unless told that it is.

    `r_values[p]` is the p-th percentile of within-class nearest-neighbour distances,
    `r_std` = 2B the arbitrary same-label replacement. B_mode "public" takes `B_public`
    and checks it; "max" and "quantile" read B off the rows: estimated, so that a
    statement which rests on it is conditional.

    >>> policy = compute_radius_policy([[0.0], [0.1], [0.5], [1.0]], [0, 0, 1, 1],
    ...     percentiles=(50,), B_public=1.0, public=True)
    >>> round(policy.r_values[50.0], 3), policy.r_std
    (0.3, 2.0)
    """
    if not public:
        raise NotPrivate(
            "compute_radius_policy reads distances and norms off the data and would"
            " publish them without noise. Pass public=True if the data are public, use"
            " private_radius(...) to pay for a radius, or take the radius from policy."
            " Nothing was spent."
        )
    rows = finite_matrix("Ztr", Ztr)
    norms = np.linalg.norm(rows, axis=1)
    largest = float(norms.max())
    if B_mode == "public":
        if B_public is None:
            raise ValueError("B_mode='public' needs B_public, the public norm bound")
        validate.positive(B_public=B_public)
        B, source = float(B_public), BoundSource.DECLARED
        passed = largest <= B * (1.0 + bound_tol)
        if check_public_bound and not passed:
            raise ValueError(
                f"B_public={B:g} does not hold: a row has norm {largest:g}. Clip the"
                " rows to it (clip_rows), or declare a larger bound."
            )
    elif B_mode in ("max", "quantile"):
        validate.probability(B_quantile=B_quantile)
        B = largest if B_mode == "max" else float(np.quantile(norms, B_quantile))
        source, passed = BoundSource.ESTIMATED, B_mode == "max"
    else:
        raise ValueError(
            f"B_mode must be 'public', 'max' or 'quantile'; got {B_mode!r}"
        )
    distances = within_class_nn_distances(
        rows, ytr, per_class=nn_sample_per_class, seed=seed
    )
    values = np.percentile(distances, percentiles)
    return RadiusPolicy(
        r_values={float(p): float(r) for p, r in zip(percentiles, values, strict=True)},
        percentiles=tuple(float(p) for p in percentiles),
        nn_sample_per_class=nn_sample_per_class,
        B_mode=B_mode,
        B=B,
        r_std=2.0 * B,
        max_norm=largest,
        bound_check_passed=bool(passed),
        nn_dists_summary={
            "nn_min": float(distances.min()),
            "nn_med": float(np.median(distances)),
            "nn_p95": float(np.percentile(distances, 95)),
            "nn_max": float(distances.max()),
            "n_nn": float(len(distances)),
        },
        bound=Bound(B, source),
    )


def private_radius(
    X: ArrayLike,
    y: ArrayLike,
    *,
    epsilon: float,
    norm_bound: float,
    quantile: float = 0.5,
    ledger: Ledger | None = None,
    space: str = "records",
    grid: Sequence[float] | None = None,
    label: str = "a radius",
    source: Source | None = None,
) -> Release[float]:
    """A quantile of within-class distances, `epsilon`-DP for same-label replacement.

    Records are paired at random inside their class, each in one pair at most: a
    same-label replacement changes one distance, so the number of distances up to a
    candidate changes by at most 1. The exponential mechanism then picks from `grid`
    (fixed and public; default 200 steps to 2 `norm_bound`), the score of a candidate
    being how many distances it is away from the quantile. Charged as a pure epsilon at
    Ball(2 `norm_bound`): any same-label replacement, as rows are clipped to the bound.

    The radius is itself a release. A unit Ball(r) with this r depends on the data;
    read the ledger at a radius fixed in advance where that matters.
    """
    validate.positive(epsilon=epsilon)
    validate.open_probability(quantile=quantile)
    validate.positive(norm_bound=norm_bound)
    bounded = clip_rows(X, norm_bound, space=space)
    rows, labels = bounded.data, np.asanyarray(y)
    _same_length(rows, labels)
    candidates = _grid(grid, norm_bound)
    _must_have_pairs(labels)
    unit = Ball(2.0 * norm_bound, space=space)
    mechanism = GridQuantile(
        quantile,
        epsilon,
        candidates,
        unit,
        "a within-class distance by the exponential mechanism",
        bounds=(bounded.bound,),
        unprotected=("labels, the number of records of each class and n",),
        assumptions=(
            "the radius is itself a release, and the grid it was chosen from is public",
        ),
    )
    digest = digest_of_parts(digest_of_array(rows), labels.tolist())
    with ledger_for(ledger, mechanism.declaration()).paid(
        mechanism, label=label, digest=digest, source=source
    ) as payment:
        payment.key.pays_for(mechanism.fingerprint, digest)
        distances = _disjoint_pairs(rows, labels, payment.key.stream("pairs"))
        value = mechanism.apply(distances, payment.key, digest)
        payment.released(digest_of_array(np.array([value])))
    return Release(value, payment.entry)


def _must_have_pairs(labels: NDArray[np.generic]) -> None:
    """Refuse, before anything is charged, what has no within-class distance."""
    if np.unique(labels, return_counts=True)[1].max(initial=0) < 2:
        raise ValueError(
            "no class has two records: there is no within-class distance."
            " Nothing was spent."
        )


def _disjoint_pairs(rows: Array, labels: NDArray[np.generic], stream: Stream) -> Array:
    """Distances of random within-class pairs, each record in one pair at most.

    Which records are paired depends on labels and chance alone, never on the rows.
    """
    rng = np.random.default_rng(int.from_bytes(stream.read(16), "little"))
    found: list[Array] = []
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))
        half = len(index) // 2
        found.append(
            np.linalg.norm(rows[index[:half]] - rows[index[half : 2 * half]], axis=1)
        )
    return np.concatenate(found)


def _grid(grid: Sequence[float] | None, norm_bound: float) -> Array:
    if grid is None:
        return np.linspace(0.0, 2.0 * norm_bound, GRID_POINTS + 1)[1:]
    candidates = np.asarray(grid, dtype=np.float64)
    usable = np.isfinite(candidates) & (candidates > 0)
    if candidates.ndim != 1 or not len(candidates) or not usable.all():
        raise ValueError(
            f"grid must be a list of positive radii; got {grid!r:.80}."
            " Nothing was spent."
        )
    return np.sort(candidates)


def _same_length(rows: Array, labels: NDArray[np.generic]) -> None:
    if labels.ndim != 1 or len(labels) != len(rows):
        raise ValueError(
            f"y must have one label for each of {len(rows)} rows; got shape"
            f" {labels.shape}. Nothing was spent."
        )
    missing = labels.dtype.kind == "f" and not np.isfinite(labels).all()
    if missing or labels.dtype.kind == "c" or np.ma.is_masked(labels):
        raise ValueError(
            "y must be labels; it holds NaN, infinity, complex or masked entries."
            " Nothing was spent."
        )
