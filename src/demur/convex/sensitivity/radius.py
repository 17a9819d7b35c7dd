r"""The radius of a ball: from public data, or paid for out of a ledger.

A radius read off the private records is itself a release: sigma, which everybody
learns, would differ between neighbouring datasets, and the unit itself would depend on
the data. `compute_radius_policy` is therefore for *public* data and asks for
`public=True`; `private_radius` reads a quantile of within-class distances off private
data and pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import NearestNeighbors

from demur.convex.sensitivity.radius_origin import PaidRadius
from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, clip_rows, finite_matrix, real_array
from demur.core.digest import digest_of_array, digest_of_parts
from demur.core.entropy import Source, Stream
from demur.core.errors import NotPrivate
from demur.core.release import Release
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.exponential import GridQuantile

Array = NDArray[np.float64]

Strategy: TypeAlias = Literal["pooled", "labelwise"]

GRID_POINTS = 200


@dataclass(frozen=True)
class RadiusPolicy:
    """Radii by percentile of nearest-neighbour distance, and a bound on the rows.

    `bound` is declared where it is public and estimated where it was read off the rows;
    an estimated bound makes every statement that rests on it conditional.
    """

    radii: dict[float, float]
    bound: Bound
    largest_norm: float
    distances: dict[str, float]

    @property
    def same_label_radius(self) -> float:
        """2B: at this radius a record may become any other of its label."""
        return 2.0 * self.bound.value


def within_class_nn_distances(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    per_class: int = 400,
    random_state: int = 0,
) -> Array:
    """Each sampled row's distance to the nearest other one of its class."""
    nearest = nearest_in_class(
        X, y, num_classes=num_classes, per_class=per_class, random_state=random_state
    )
    return nearest.distances


class NearestInClass(NamedTuple):
    """Sampled rows, the nearest other sampled row of the class, and how far it is."""

    rows: NDArray[np.intp]
    neighbours: NDArray[np.intp]
    distances: Array


def nearest_in_class(
    X: ArrayLike,
    y: ArrayLike,
    *,
    num_classes: int | None = None,
    per_class: int = 400,
    random_state: int = 0,
) -> NearestInClass:
    """Each sampled row with its nearest one, class after class; exact, for public data.

    Rows of a class stand in the order in which they were sampled.
    """
    rows, labels = finite_matrix("X", X), np.asarray(y)
    _same_length(rows, labels)
    validate.count(per_class=per_class)
    rng = np.random.default_rng(random_state)
    found: list[NearestInClass] = []
    classes = np.unique(labels) if num_classes is None else np.arange(num_classes)
    for label in classes:
        index = np.flatnonzero(labels == label)
        if len(index) < 2:
            continue
        index = rng.choice(index, min(per_class, len(index)), replace=False)
        if len(index) < 2:
            continue
        two = NearestNeighbors(n_neighbors=2).fit(rows[index]).kneighbors(rows[index])
        # Among equal rows the first of the two need not be the row itself.
        other = (two[1][:, 0] == np.arange(len(index))).astype(np.intp)
        at = np.arange(len(index)), other
        found.append(NearestInClass(index, index[two[1][at]], two[0][at]))
    if not found:
        raise ValueError("no class has two records: there is no within-class distance")
    return NearestInClass(*(np.concatenate(part) for part in zip(*found, strict=True)))


def compute_radius_policy(
    X: ArrayLike,
    y: ArrayLike,
    *,
    public: bool = False,
    norm_bound: float | None = None,
    norm_quantile: float | None = None,
    tolerance: float | None = 1e-3,
    percentiles: Sequence[float] = (10, 25, 50, 75, 90),
    per_class: int = 400,
    random_state: int = 0,
) -> RadiusPolicy:
    """Radii and a norm bound from *public* data; refused without `public=True`.

    `radii[p]` is the p-th percentile of within-class nearest-neighbour distances, from
    at most `per_class` rows of each class. The norm bound is one of two: `norm_bound`
    is declared, and checked against the rows up to a relative `tolerance` (None: not
    checked); `norm_quantile` reads it off the rows (1.0 for the largest norm), which
    makes it estimated.

    >>> policy = compute_radius_policy([[0.0], [0.1], [0.5], [1.0]], [0, 0, 1, 1],
    ...     percentiles=(50,), norm_bound=1.0, public=True)
    >>> round(policy.radii[50.0], 3), policy.same_label_radius
    (0.3, 2.0)
    """
    if not public:
        raise NotPrivate(
            "compute_radius_policy reads distances and norms off the data and would"
            " publish them without noise. Pass public=True if the data are public, use"
            " private_radius(...) to pay for a radius, or take the radius from policy."
            " Nothing was spent."
        )
    rows = finite_matrix("X", X)
    norms = np.linalg.norm(rows, axis=1)
    largest = float(norms.max())
    bound = _norm_bound(norms, norm_bound, norm_quantile)
    if norm_bound is not None and tolerance is not None:
        validate.non_negative(tolerance=tolerance)
        if not largest <= bound.value * (1.0 + tolerance):
            raise ValueError(
                f"norm_bound={bound.value:g} does not hold: a row has norm"
                f" {largest:g}. Clip the rows to it (clip_rows), or declare a larger"
                " bound."
            )
    distances = within_class_nn_distances(
        rows, y, per_class=per_class, random_state=random_state
    )
    values = np.percentile(distances, percentiles)
    return RadiusPolicy(
        radii={float(p): float(r) for p, r in zip(percentiles, values, strict=True)},
        bound=bound,
        largest_norm=largest,
        distances={
            "nn_min": float(distances.min()),
            "nn_med": float(np.median(distances)),
            "nn_p95": float(np.percentile(distances, 95)),
            "nn_max": float(distances.max()),
            "n_nn": float(len(distances)),
        },
    )


def _norm_bound(
    norms: Array, norm_bound: float | None, norm_quantile: float | None
) -> Bound:
    if norm_bound is not None and norm_quantile is None:
        validate.positive(norm_bound=norm_bound)
        return Bound(float(norm_bound), BoundSource.DECLARED)
    if norm_quantile is not None and norm_bound is None:
        validate.probability(norm_quantile=norm_quantile)
        return Bound(float(np.quantile(norms, norm_quantile)), BoundSource.ESTIMATED)
    raise ValueError(
        "give norm_bound, the public bound on the norm of a row, or norm_quantile (1.0"
        " for the largest norm) to read it off the rows, and not both"
    )


def private_radius(
    X: ArrayLike,
    y: ArrayLike,
    *,
    epsilon: float,
    norm_bound: float,
    quantile: float = 0.5,
    strategy: Strategy = "pooled",
    ledger: Ledger | None = None,
    space: str = "records",
    grid: Sequence[float] | None = None,
    label: str = "a radius",
    source: Source | None = None,
) -> Release[float]:
    """A radius: a quantile of within-class distances, `epsilon`-DP, and its entry.

    Records are paired at random inside their class, each in one pair at most: a
    same-label replacement changes one distance, so the number of distances up to a
    candidate changes by at most 1. The exponential mechanism then picks from `grid`
    (fixed and public; default 200 steps to 2 `norm_bound`), by the number of distances
    between a candidate and the quantile:

    - strategy "pooled": of the distances of all classes together;
    - strategy "labelwise": of the class that is furthest behind, so that the radius is
      the largest of the classes' quantiles. One distance changes in one class, so the
      largest gap changes by at most 1 as well, and all classes together cost one
      epsilon. A class of few records has few distances to tell candidates apart: with
      m pairs in the smallest class take epsilon well above 1 / m.

    Charged as a pure epsilon at Ball(2 `norm_bound`): any same-label replacement, as
    rows are clipped to the bound.

    The radius is itself a release, and it is a `float` that says so: a head that gets
    it as `radius=` repeats it in its statement. A unit Ball(r) with this r depends on
    the data; read the ledger at a radius fixed in advance where that matters.
    """
    if strategy not in ("pooled", "labelwise"):
        raise ValueError(
            f"strategy must be 'pooled' or 'labelwise'; got {strategy!r}. Nothing was"
            " spent."
        )
    validate.positive(epsilon=epsilon)
    validate.open_probability(quantile=quantile)
    validate.positive(norm_bound=norm_bound)
    given = real_array("X", X, "a matrix")
    if not np.isfinite(given).all():
        raise ValueError(
            "X must be finite, and some rows hold NaN or infinity. Drop them, or fill"
            " them by a rule that does not look at other rows. Nothing was spent."
        )
    bounded = clip_rows(given, norm_bound, space=space)
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
        f"a within-class distance ({strategy}) by the exponential mechanism",
        bounds=(bounded.bound,),
        unprotected=("labels, the number of records of each class and n",),
        assumptions=(
            "the radius is itself a release, and the grid it was chosen from is public",
            "every record is a row of finite numbers with a label (any other is"
            " refused, which tells that there is one)",
        ),
    )
    digest = digest_of_parts(digest_of_array(rows), labels.tolist(), strategy)
    with ledger_for(ledger, mechanism.declaration()).paid(
        mechanism, label=label, digest=digest, source=source
    ) as payment:
        # The entry is bound to the rows: the pairs are drawn from its key too.
        key = payment.key.authorise(mechanism.fingerprint, digest)
        pairs = _disjoint_pairs(rows, labels, key.stream("pairs"))
        groups = pairs.groups if strategy == "labelwise" else None
        value = mechanism.drawn(pairs.distances, key, groups=groups)
        payment.released(digest_of_array(np.array([value])))
    return Release(PaidRadius(value), payment.entry)


def _must_have_pairs(labels: NDArray[np.generic]) -> None:
    """Refuse, before anything is charged, labels without a within-class pair."""
    try:
        sizes = np.unique(labels, return_counts=True)[1]
    except TypeError:  # words and numbers, or missing ones, have no order
        raise ValueError(
            "y must be labels of one type, none of them missing. Nothing was spent."
        ) from None
    if sizes.max(initial=0) < 2:
        raise ValueError(
            "no class has two records: there is no within-class distance."
            " Nothing was spent."
        )


class _Pairs(NamedTuple):
    distances: Array
    groups: NDArray[np.intp]


def _disjoint_pairs(rows: Array, labels: NDArray[np.generic], stream: Stream) -> _Pairs:
    """Distances of random within-class pairs, each record in one pair at most.

    Which records are paired depends on labels and chance alone, never on the rows.
    """
    rng = np.random.default_rng(int.from_bytes(stream.read(16), "little"))
    distances: list[Array] = []
    for label in np.unique(labels):
        index = rng.permutation(np.flatnonzero(labels == label))
        half = len(index) // 2
        distances.append(
            np.linalg.norm(rows[index[:half]] - rows[index[half : 2 * half]], axis=1)
        )
    groups = np.repeat(np.arange(len(distances)), [len(one) for one in distances])
    return _Pairs(np.concatenate(distances), groups)


def _grid(grid: Sequence[float] | None, norm_bound: float) -> Array:
    if grid is None:
        return np.linspace(0.0, 2.0 * norm_bound, GRID_POINTS + 1)[1:]
    candidates = real_array("grid", grid)
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
