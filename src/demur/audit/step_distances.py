r"""Distances between two runs of noisy training steps, and what is allowed.

Noise stddev C^-1 Z on the sums G is a function of C G + stddev Z, whichever way later
sums depend on earlier releases, and the releases are equal in both runs of a replay.
So the whole run is one Gaussian on C G: it costs mu = |C (G - G')| / stddev, the norm
over all steps together. G_t moves by at most one contribution (two where a record is
replaced) in each step that the record takes part in, and not at all in the others;
those steps must be a pattern of the plan's `Participation`, and the norm at most the
contribution times C's sensitivity over such patterns.

Sums of float32 are rounded differently when a record is missing among them; steps may
exceed their bound by 2^-16 of it for that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from demur.audit.measurement import (
    Array,
    MeasuredLoss,
    Measurement,
    Pair,
    input_difference,
    norm,
)
from demur.core.adjacency import AddOrRemoveOne, Ball, ReplaceOne, Unit, ZeroOut
from demur.core.recording import Step
from demur.mechanisms.correlated import BandedToeplitz, Strategy

FLOAT32 = 2.0**-16
_MOVES: dict[type, int] = {AddOrRemoveOne: 1, ZeroOut: 1, ReplaceOne: 2, Ball: 2}


def measure_steps(pairs: Sequence[Pair], unit: Unit) -> Iterator[Measurement]:
    """All comparisons of the steps of two datasets, run by run."""
    for run in _runs(pairs):
        yield from _steps(run, unit)


def _runs(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Steps of one strategy belong together; a step 0 begins the next run."""
    runs: list[list[Pair]] = []
    latest: dict[int, list[Pair]] = {}
    for pair in pairs:
        declared = pair[0].declared
        assert isinstance(declared, Step)
        which = id(declared.strategy)
        if declared.step == 0 or which not in latest:
            latest[which] = []
            runs.append(latest[which])
        latest[which].append(pair)
    return runs


def _steps(run: Sequence[Pair], unit: Unit) -> Iterator[Measurement]:
    declared = [pair[0].declared for pair in run]
    steps = [step for step in declared if isinstance(step, Step)]
    assert len(steps) == len(declared)
    first, numbers = steps[0], [step.step for step in steps]
    what = "a step's sum of clipped contributions"
    differences = [input_difference(pair) for pair in run]
    whole = [d for d in differences if d is not None and np.isfinite(d).all()]
    if len(whole) < len(run) or numbers != list(range(len(run))):
        yield Measurement(what, math.inf, 0.0, MeasuredLoss(squared_mu=math.inf))
        return
    moved = np.array(whole)
    sums, mixed = moved, moved
    if first.mixed:
        sums = _unmixed(first.strategy, moved)
    else:
        mixed = _mixed(first.strategy, moved)
    moves = _MOVES.get(type(unit), 0) * unit.records_per_person
    each = moves * first.bound
    norms = [norm(row) for row in sums]
    yield Measurement(what, max(norms), each * (1.0 + FLOAT32))
    distance = norm(mixed.reshape(-1))
    mu = distance / first.stddev
    loss = MeasuredLoss(squared_mu=mu * mu)
    participation = first.participation
    if participation is None:
        yield Measurement("all steps together", distance, math.inf, loss)
        return
    sensitivity = first.strategy.sensitivity(participation).value
    allowed = each * sensitivity * (1.0 + FLOAT32)
    yield Measurement(
        "all steps together, in the geometry of C", distance, allowed, loss
    )
    if unit.records_per_person == 1:
        there = [t for t, moved_by in enumerate(norms) if moved_by > FLOAT32 * each]
        most = participation.most(first.strategy.iterations)
        apart = min((b - a for a, b in itertools.pairwise(there)), default=math.inf)
        yield Measurement(
            "the number of steps with the record", len(there), most, counted=True
        )
        if apart < participation.min_separation:
            yield Measurement(
                "the number of steps that are too close to another with the record",
                1.0,
                0.0,
                counted=True,
            )


def _bands(strategy: Strategy, step: int) -> Array:
    """C[t, t], C[t, t-1], ..., without the whole matrix where C is Toeplitz."""
    if isinstance(strategy, BandedToeplitz):
        reached = min(strategy.bands, step + 1)
        coefs = np.asarray(strategy.coefs, np.float64)[:reached]
        scales: Array = strategy.output_scales()[step - np.arange(reached)]
        return coefs / scales
    return strategy.matrix()[step, step::-1]


def _mixed(strategy: Strategy, sums: Array) -> Array:
    """The rows of C G."""
    mixed = np.zeros_like(sums)
    for t in range(len(sums)):
        row = _bands(strategy, t)
        mixed[t] = row @ sums[t - np.arange(len(row))]
    return mixed


def _unmixed(strategy: Strategy, mixed: Array) -> Array:
    """G from the rows of C G."""
    sums = np.zeros_like(mixed)
    for t in range(len(mixed)):
        row = _bands(strategy, t)
        known = row[1:] @ sums[t - np.arange(1, len(row))]
        sums[t] = (mixed[t] - known) / row[0]
    return sums
