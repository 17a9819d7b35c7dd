r"""Distances between a mechanism's inputs on two datasets, and what is allowed.

Each noise point records its declaration (`core.recording`). Its two inputs are compared
in the geometry of that declaration; NaN and different shapes are infinitely far apart.

- `Shift`: |x - x'|, in units of sigma where each coordinate has its own. Allowed is the
  declared sensitivity at the unit. It costs mu = distance / sigma.
- `RowNoise`: every row has its own noise, so n reports cost one person no more than
  one *if one record is one row*. Rows are matched by id, over all uses of one key: at
  most `records_per_person` of them may differ, each by at most the radius of the unit.
  A row that moves by r costs what the declaration says of Ball(r).
- `ScoredChoice`: the largest |s - s'|; 1 is allowed, and costs epsilon times it.
- `Step`: the whole run is one Gaussian on C G; see `step_distances`.

A distance may exceed what is declared by 1e-9 of it, for its own rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from demur.audit.measurement import (
    MeasuredLoss,
    Measurement,
    Pair,
    input_difference,
    norm,
)
from demur.audit.step_distances import measure_steps
from demur.core.accounting.events import (
    AllocatedGaussian,
    Event,
    GaussianEvent,
    Neighbours,
    PoissonGaussian,
    Pure,
    TruncatedPoissonGaussian,
    atoms,
)
from demur.core.adjacency import Ball, Unit
from demur.core.cost import Cost, GaussianOverBalls, PureOverBalls
from demur.core.errors import NotCovered, NotPriced
from demur.core.recording import Arrays, RowNoise, ScoredChoice, Shift, Step

ROUNDING = 1e-9  # of distances, which are themselves computed in float64


def measure(pairs: Sequence[Pair], unit: Unit) -> list[Measurement]:
    """All comparisons of the uses of two runs, matched one by one."""
    measurements: list[Measurement] = []
    steps: list[Pair] = []
    rows: dict[int | None, list[Pair]] = {}
    for pair in pairs:
        declared = pair[0].declared
        match declared:
            case Shift():
                measurements.append(_shift(pair, declared, unit))
            case ScoredChoice():
                measurements.append(_scores(pair, declared))
            case RowNoise():
                rows.setdefault(pair[0].key, []).append(pair)
            case Step():
                steps.append(pair)
    for same_key in rows.values():
        measurements += _rows(same_key, unit)
    return [*measurements, *measure_steps(steps, unit)]


def charged_loss(event: Event) -> MeasuredLoss | None:
    """The loss an event allows, its sampling being known; None if it has no such form.

    Batches are the same in both runs here, so a sampled event counts as if its record
    took part.
    """
    total = MeasuredLoss()
    for atom, count in atoms(event).items():
        match atom:
            case GaussianEvent(multiplier=z):
                total += MeasuredLoss(squared_mu=count / z**2)
            case Pure(epsilon=epsilon):
                total += MeasuredLoss(epsilon=count * epsilon)
            case AllocatedGaussian(multiplier=z):
                total += MeasuredLoss(squared_mu=count / z**2)
            case PoissonGaussian() | TruncatedPoissonGaussian():
                # The multiplier is per contribution; a replacement moves two.
                moves = 2 if atom.neighbours is Neighbours.REPLACE_ONE else 1
                total += MeasuredLoss(squared_mu=count * (moves / atom.multiplier) ** 2)
            case _:
                return None
    return total


# -- one use by itself -----------------------------------------------------------------


def _shift(pair: Pair, declared: Shift, unit: Unit) -> Measurement:
    moved, sigma = input_difference(pair), declared.sigma
    in_sigmas = isinstance(sigma, np.ndarray)
    distance = math.inf
    if moved is not None:
        distance = norm(moved / sigma if in_sigmas else moved)
    try:
        allowed = declared.sensitivity.at(unit) * (1.0 + ROUNDING)
    except NotCovered:
        # Nothing is declared at this unit, so nothing may move.
        allowed = 0.0
    mu = distance if in_sigmas else distance / float(sigma)
    return Measurement(
        f"the input of {pair[0].name!r}",
        distance,
        allowed,
        MeasuredLoss(squared_mu=mu * mu),
    )


def _scores(pair: Pair, declared: ScoredChoice) -> Measurement:
    moved = input_difference(pair)
    distance = math.inf
    if moved is not None and np.isfinite(moved).all():
        distance = float(np.max(np.abs(moved), initial=0.0))
    return Measurement(
        f"the scores of {pair[0].name!r}",
        distance,
        1.0,
        MeasuredLoss(epsilon=declared.epsilon * distance),
    )


# -- reports ---------------------------------------------------------------------------


def _rows(pairs: Sequence[Pair], unit: Unit) -> Iterator[Measurement]:
    """All uses of one key: which rows differ, and by how much."""
    name, declared = pairs[0][0].name, pairs[0][0].declared
    assert isinstance(declared, RowNoise)
    cost = declared.cost
    moved: list[float] = []
    for before, after in pairs:
        moved += _moved_rows(before.value, after.value)
    yield Measurement(
        f"the number of rows of {name!r} that differ",
        float(len(moved)),
        float(unit.records_per_person) if _covers(cost, unit) else 0.0,
        counted=True,
    )
    allowed = unit.radius * (1.0 + ROUNDING) if isinstance(unit, Ball) else math.inf
    for distance in moved:
        loss = _row_loss(cost, distance)
        yield Measurement(f"a row of {name!r}", distance, allowed, loss)


def _covers(cost: Cost, unit: Unit) -> bool:
    try:
        cost.at(unit)
    except (NotCovered, NotPriced):
        return False
    return True


def _moved_rows(first: Arrays, second: Arrays) -> list[float]:
    (ids, rows), (other_ids, other_rows) = first, second
    order, other_order = np.argsort(ids), np.argsort(other_ids)
    if rows.shape != other_rows.shape or (ids[order] != other_ids[other_order]).any():
        return [math.inf]
    rows, other_rows = rows[order], other_rows[other_order]
    with np.errstate(invalid="ignore"):
        apart = rows - other_rows
    return [norm(row) for row in apart[(apart != 0.0).any(axis=1)]]


def _row_loss(cost: Cost, distance: float) -> MeasuredLoss:
    """The declared loss of one row that moves by `distance`."""
    if not math.isfinite(distance):
        return MeasuredLoss(math.inf, math.inf)
    curves = (PureOverBalls, GaussianOverBalls)
    spaces = [term.space for term in cost.basic_terms() if isinstance(term, curves)]
    if not spaces:
        return MeasuredLoss()
    return charged_loss(cost.at(Ball(distance, space=spaces[0]))) or MeasuredLoss()
