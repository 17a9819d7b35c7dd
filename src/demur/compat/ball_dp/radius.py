"""Radii from within-class distances, and a private quantile.

A radius read off private data is itself a release, without noise. The functions here
compute it as the original does and remember it: a release at such a radius says that it
is conditional. Pass `public=True` where the data are public, or use
`demur.convex.private_radius`, which pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.compat.ball_dp.releases import Rng, source_of
from demur.convex.sensitivity import radius
from demur.convex.sensitivity.radius_origin import EstimatedRadius
from demur.core import validate
from demur.core.adjacency import ReplaceOne, Unit
from demur.core.bounds import real_array
from demur.core.digest import digest_of_array
from demur.core.errors import NotPrivate
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.exponential import GridQuantile


@dataclass(frozen=True)
class RadiusPolicy:
    """Radii by percentile, the norm bound, and how they were found.

    `estimated` says that radii (and B, unless declared) were read off data that were
    not declared public: a promise at such a radius is conditional.
    """

    r_values: dict[float, float]
    percentiles: tuple[float, ...]
    nn_sample_per_class: int
    B_mode: str
    B_public: float | None
    B_quantile: float
    B: float
    r_std: float
    max_norm: float
    bound_tol: float
    bound_check_passed: bool
    nn_dists_summary: dict[str, float]
    estimated: bool = True


def within_class_nn_distances(
    Z: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int,
    per_class: int = 400,
    seed: int = 0,
) -> NDArray[np.float32]:
    """The distance of each sampled record to its nearest sampled record of its class.

    They stand in the order in which records were sampled.

    >>> within_class_nn_distances([[0.0], [3.0], [4.0]], [0, 0, 0], num_classes=1)
    array([1., 3., 1.], dtype=float32)
    """
    validate.count(num_classes=num_classes)
    return radius.within_class_nn_distances(
        Z, y, num_classes=num_classes, per_class=per_class, random_state=seed
    ).astype(np.float32)


@dataclass(frozen=True)
class WithinClassNNPairs:
    """Sampled records i, their nearest ones j of the same class, and how far these are.

    `i` and `j` are positions in the arrays that were given, `cls` the class. Exact
    numbers of the data: nothing of this may be published.
    """

    i: NDArray[np.int64]
    j: NDArray[np.int64]
    dist: NDArray[np.float32]
    cls: NDArray[np.int64]


def within_class_nn_pairs(
    Z: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int,
    per_class: int = 400,
    seed: int = 0,
) -> WithinClassNNPairs:
    """The pairs whose distances `within_class_nn_distances` gives, in the same order.

    >>> pairs = within_class_nn_pairs([[0.0], [3.0], [4.0]], [0, 0, 0], num_classes=1)
    >>> sorted(zip(pairs.i.tolist(), pairs.j.tolist(), pairs.dist.tolist()))
    [(0, 1, 3.0), (1, 2, 1.0), (2, 1, 1.0)]
    """
    validate.count(num_classes=num_classes)
    nearest = radius.nearest_in_class(
        Z, y, num_classes=num_classes, per_class=per_class, random_state=seed
    )
    return WithinClassNNPairs(
        nearest.rows.astype(np.int64),
        nearest.neighbours.astype(np.int64),
        nearest.distances.astype(np.float32),
        np.asarray(y)[nearest.rows].astype(np.int64),
    )


def per_class_tail_stats_from_nn_pairs(
    pairs: WithinClassNNPairs,
    *,
    r: float,
    thresholds: Sequence[float] = (1.25, 1.50),
) -> list[dict[str, object]]:
    """For each class the quantiles of its distances, also over r; widest tail first.

    Keys: class, n_pairs, nn_med, nn_p95, nn_p99, mult_med, mult_p95, mult_p99 (the same
    over r) and frac_mult_gt_T for each threshold T. Distances are remembered as
    estimated from data.
    """
    validate.positive(r=r)
    quantiles = {"med": 0.5, "p95": 0.95, "p99": 0.99}
    table: list[dict[str, object]] = []
    for label in np.unique(pairs.cls):
        distances = np.asarray(pairs.dist, dtype=np.float64)[pairs.cls == label]
        shares = distances / float(r)
        row: dict[str, object] = {"class": int(label), "n_pairs": len(distances)}
        for name, q in quantiles.items():
            row[f"nn_{name}"] = EstimatedRadius(np.quantile(distances, q))
        for name, q in quantiles.items():
            row[f"mult_{name}"] = float(np.quantile(shares, q))
        for limit in thresholds:
            row[f"frac_mult_gt_{float(limit):g}"] = float(np.mean(shares > limit))
        table.append(row)
    return sorted(table, key=lambda row: -float(str(row["mult_p99"])))


def top_outlier_pairs(
    pairs: WithinClassNNPairs, *, top_k: int = 12
) -> list[dict[str, object]]:
    """The pairs that are farthest apart, farthest first: i, j, class and dist."""
    order = np.argsort(-np.asarray(pairs.dist, dtype=np.float64))
    return [
        {
            "i": int(pairs.i[at]),
            "j": int(pairs.j[at]),
            "class": int(pairs.cls[at]),
            "dist": EstimatedRadius(pairs.dist[at]),
        }
        for at in order[: max(1, int(top_k))]
    ]


def radii_from_percentiles(
    nn_dists: ArrayLike, percentiles: Sequence[float]
) -> dict[float, float]:
    """The percentiles of the distances; remembered as estimated from data."""
    values = np.asarray(nn_dists, dtype=np.float64).reshape(-1)
    if not values.size or not np.isfinite(values).all():
        raise ValueError("nn_dists must hold at least one distance, all finite")
    return {float(p): EstimatedRadius(np.percentile(values, p)) for p in percentiles}


def coverage_curve(
    nn_dists: ArrayLike, radii: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The radii and, for each, the share of distances that are at most as large."""
    at = np.asarray(radii, dtype=np.float64).reshape(-1)
    values = np.sort(np.asarray(nn_dists, dtype=np.float64).reshape(-1))
    if not values.size:
        raise ValueError("nn_dists must hold at least one distance")
    return at, np.searchsorted(values, at, side="right") / values.size


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
    """Radii from within-class nearest neighbours, and r_std = 2B.

    On training data the policy is marked `estimated`, and so is every release at one of
    its radii; `public=True` says that these data are public. `B_mode="public"` checks
    that no row is longer than B_public (1 + bound_tol); "max" and "quantile" read B off
    the data, which bounds nothing.
    """
    norm: dict[str, float | None] = {"norm_quantile": 1.0}
    if B_mode == "public":
        if B_public is None:
            raise ValueError("B_mode='public' needs B_public, the public norm bound")
        tolerance = bound_tol if check_public_bound else None
        norm = {"norm_bound": B_public, "tolerance": tolerance}
    elif B_mode == "quantile":
        norm = {"norm_quantile": B_quantile}
    elif B_mode != "max":
        raise ValueError(
            f"B_mode must be 'public', 'max' or 'quantile'; got {B_mode!r}"
        )
    policy = radius.compute_radius_policy(
        Ztr,
        ytr,
        public=True,
        percentiles=percentiles,
        per_class=nn_sample_per_class,
        random_state=seed,
        **norm,
    )
    radii, distances = policy.radii, policy.distances
    B, standard = policy.bound.value, policy.same_label_radius
    if not public:
        radii = {p: EstimatedRadius(r) for p, r in radii.items()}
        distances = {
            name: value if name == "n_nn" else EstimatedRadius(value)
            for name, value in distances.items()
        }
        if B_mode != "public":
            B, standard = EstimatedRadius(B), EstimatedRadius(standard)
    holds = B_mode == "public" and policy.largest_norm <= B * (1.0 + bound_tol)
    return RadiusPolicy(
        r_values=radii,
        percentiles=tuple(float(p) for p in percentiles),
        nn_sample_per_class=nn_sample_per_class,
        B_mode=B_mode,
        B_public=None if B_public is None else float(B_public),
        B_quantile=float(B_quantile),
        B=B,
        r_std=standard,
        max_norm=policy.largest_norm,
        bound_tol=float(bound_tol),
        bound_check_passed=holds,
        nn_dists_summary=distances,
        estimated=not public,
    )


def dp_quantile_exponential_mechanism(
    values: ArrayLike,
    quantile: float,
    eps: float,
    *,
    rng: Rng = None,
    grid: ArrayLike | None = None,
    lo: float | None = None,
    hi: float | None = None,
    grid_size: int = 2048,
    ledger: Ledger | None = None,
    unit: Unit | None = None,
    label: str = "a quantile",
) -> float:
    """A quantile of `values`, eps-DP, chosen from a public `grid`; refused without one.

    `lo` and `hi`, public, are short for `grid_size` equal steps between them.

    The original chooses among the values themselves: its answer is somebody's value
    verbatim, and a value that only one of two neighbouring datasets has tells them
    apart at no epsilon. Here candidates are fixed in advance, and the score of a
    candidate is the number of values between it and the quantile.

    It is eps-DP where one record changes one value. A record changes many
    nearest-neighbour distances: for those use `demur.convex.private_radius`.
    Charged at `unit`, by default any replacement of one record.
    """
    if grid is None and lo is not None and hi is not None:
        validate.count(grid_size=grid_size)
        grid = np.linspace(lo, hi, grid_size)
    if grid is None:
        raise NotPrivate(
            "dp_quantile_exponential_mechanism needs grid= (or lo= and hi=), candidates"
            " fixed without looking at the data: an answer chosen among the values is"
            " somebody's value verbatim, and has no epsilon. Nothing was spent."
        )
    validate.positive(eps=eps)
    validate.open_probability(quantile=quantile)
    candidates = np.sort(real_array("grid", grid).reshape(-1))
    numbers = real_array("values", values).reshape(-1)
    for name, array in (("grid", candidates), ("values", numbers)):
        if not array.size or not np.isfinite(array).all():
            raise ValueError(
                f"{name} must hold at least one number, all finite. Nothing was spent."
            )
    unit = ReplaceOne() if unit is None else unit
    mechanism = GridQuantile(
        quantile,
        eps,
        candidates,
        unit,
        unprotected=("the number of values",),
        assumptions=("one record changes one value", "the grid is public"),
    )
    with ledger_for(ledger, mechanism.declaration()).paid(
        mechanism,
        label=label,
        digest=mechanism.digest(numbers),
        source=source_of(rng),
    ) as payment:
        answer = mechanism.apply(numbers, payment.key)
        payment.released(digest_of_array(np.array([answer])))
    return answer
