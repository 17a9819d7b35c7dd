"""Audits of local reports: replay of a clustering, the radius law, black box."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from demur.audit import (
    AuditResult,
    Claim,
    Law,
    Level,
    audit,
    draws_needed,
    independence_test,
    law_of,
    noise_test,
    replay,
)
from demur.cluster import PrivateKMeans
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.mechanisms import BPM, GaussianReports, GridResponse, LaplaceReports
from demur.testing.audit_suite.case import Case, Size
from demur.testing.audit_suite.counting import binomial_test, counts_test
from demur.testing.audit_suite.layouts import spark
from demur.testing.audit_suite.searched_heads import kmeans

ENGINE = "cluster"
_BPM = BPM(epsilon=4.0, L=0.4, dimension=2)
_WIDE = BPM(epsilon=4.0, L="auto", dimension=2)

Values = NDArray[np.float64]
Sampler = Callable[[Values, Seeded, int], Values]


def _points(moved: bool = False) -> Values:
    rng = np.random.default_rng(1)
    points = rng.random((40, 2)) * 0.8 + 0.1
    if moved:
        points[-1] = 1.0  # larger than all others
    return points


def _key(source: Seeded) -> NoiseKey:
    return NoiseKey(source.new_key(), private=False)


def _clustered(prepare: Callable[[Values], Values], size: Size, seed: int) -> Any:
    def run(points: Values, source: Source) -> dict[str, Any]:
        released = _BPM.privatize(prepare(points), ledger=None, source=source)
        model = PrivateKMeans(1, _BPM.epsilon, L=_BPM.L, random_state=0)
        model.fit_reports(released.value)
        return {
            "reports": released.value,
            "centres": model.cluster_centers_,
            "declared": released.entry.declaration,
        }

    return replay(
        run,
        (_points(), _points(moved=True)),
        unit=ReplaceOne(),
        subject="cluster: local reports and k-means",
        random_state=seed,
    ).audit_result()


def _min_max(points: Values) -> Values:
    low, high = points.min(axis=0), points.max(axis=0)
    scaled: Values = (points - low) / (high - low)
    return scaled


def _differences(points: Values) -> Values:
    moved: Values = (points - np.roll(points, 1, axis=0) + 1.0) / 2.0
    return moved


def _apply(mechanism: BPM) -> Sampler:
    def sample(point: Values, source: Seeded, count: int) -> Values:
        return mechanism.apply(np.tile(point, (count, 1)), _key(source))

    return sample


def _first_sampler(point: Values, source: Seeded, count: int) -> Values:
    """The ball's mass without its factor e^(-kL), as it was first written down.

    A report falls into the ball far too often, and the density jumps at its edge.
    """
    k, L, d = _BPM.epsilon, _BPM.L, _BPM.dimension
    volume = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
    inside = math.factorial(d) * volume / k**d
    inside *= float(special.gammainc(d, k * L)) * math.exp(k * L)
    outside = math.exp(-k * L) * ((1 + 2 * L) ** d - volume * L**d)
    rng = np.random.default_rng(source.seed)
    drawn = rng.random(count) * special.gammainc(d, k * L)
    away = rng.normal(size=(count, d))
    away *= (special.gammaincinv(d, drawn) / k / np.linalg.norm(away, axis=1))[:, None]
    reports: Values = point + away
    left = np.flatnonzero(rng.random(count) >= inside / (inside + outside))
    while left.size:
        reports[left] = rng.random((left.size, d)) * (1 + 2 * L) - L
        left = left[np.linalg.norm(reports[left] - point, axis=1) <= L]
    return reports


def _told_apart(
    claimed: BPM, sample: Sampler, score: str, size: Size, seed: int
) -> AuditResult:
    """Opposite corners, where a replacement costs most.

    "ratio": the log-likelihood ratio that the mechanism claims. "crescent": inside the
    ball of one and outside that of the other, which detects a density that jumps.
    """
    corner = 0.0 if score == "ratio" else 0.2
    pair = (np.full(2, corner), np.full(2, 1.0 - corner))

    def ratio(report: Values) -> float:
        one, two = (claimed.log_density(point, report) for point in pair)
        return float(one - two)

    def crescent(report: Values) -> float:
        one, two = (float(np.linalg.norm(report - point)) for point in pair)
        return float(one <= claimed.L < two)

    return audit(
        sample,
        pair,
        Claim.of(
            claimed.declaration().cost.at(ReplaceOne()),
            score=ratio if score == "ratio" else crescent,
        ),
        many=True,
        runs=size.of(20_000),
        random_state=seed,
        subject="cluster: BPM reports",
    )


def _radii(sample: Sampler, size: Size, seed: int) -> AuditResult:
    law = law_of(_BPM)
    point = np.array([0.5, 0.5])
    count = size.of(draws_needed(law))
    # Only reports inside the ball have this radius law: draw enough of them.
    reports = sample(point, Seeded(seed), int(2.5 * count / min(_BPM.p_L, 1.0)))
    radii = np.linalg.norm(reports - point, axis=1)
    inside = radii <= _BPM.L
    return noise_test(radii[inside][:count], law, subject="cluster: radius of BPM")


def _share(sample: Sampler, size: Size, seed: int) -> AuditResult:
    """How many reports fall into the ball, a Bernoulli(p_L) each."""
    count = size.of(60_000)
    point = np.array([0.5, 0.5])
    radii = np.linalg.norm(sample(point, Seeded(seed), count) - point, axis=1)
    hits = int((radii <= _BPM.L).sum())
    return binomial_test(
        hits, count, _BPM.p_L, subject="cluster: reports inside the ball"
    )


def _coordinates(mechanism: Any, name: str, size: Size, seed: int) -> AuditResult:
    law: Law = law_of(mechanism)
    count = size.of(draws_needed(law))
    rows = np.zeros((-(-count // 2), 2))
    released = mechanism.privatize(rows, ledger=None, source=Seeded(seed))
    draws = released.value.values.reshape(-1)[:count]
    return noise_test(draws, law, subject=f"cluster: noise of {name}")


def _apart(mechanism: Any, name: str, size: Size, seed: int) -> AuditResult:
    """Whether the coordinates of a report have noise of their own."""
    released = mechanism.privatize(
        np.zeros((size.of(21_000), 2)), ledger=None, source=Seeded(seed)
    )
    return independence_test(
        released.value.values, law_of(mechanism), subject=f"cluster: {name}"
    )


def _cells(size: Size, seed: int) -> AuditResult:
    """How often each cell of a grid is reported for one point.

    Its law is written down here by itself: the own cell has e^epsilon times the
    probability of every other one.
    """
    mechanism = GridResponse(epsilon=2.0, dimension=2, bits=1)
    points = np.full((size.of(20_000), 2), 0.2)
    released = mechanism.privatize(points, ledger=None, source=Seeded(seed))
    places = (released.value.values > 0.5) @ np.array([2, 1])
    odds = np.array([math.exp(2.0), 1.0, 1.0, 1.0])
    return counts_test(
        np.bincount(places, minlength=4),
        odds / odds.sum(),
        subject="cluster: cells of a grid response",
    )


def cases() -> tuple[Case, ...]:
    """Correct local reports, then twins."""
    exact, half = _apply(_BPM), _apply(BPM(2.0 * _BPM.epsilon, _BPM.L, 2))
    half_wide = BPM(2.0 * _WIDE.epsilon, _WIDE.L, 2)
    others = {
        "Laplace reports": LaplaceReports(epsilon=4.0, dimension=2),
        "Gaussian reports": GaussianReports(epsilon=4.0, dimension=2),
    }
    correct = (
        Case(
            ENGINE,
            "local reports and k-means at any replacement",
            Level.REPLAY,
            lambda size, seed: _clustered(lambda points: points, size, seed),
        ),
        Case(
            ENGINE,
            "how often a BPM report stays in the ball",
            Level.NOISE,
            lambda size, seed: _share(exact, size, seed),
        ),
        Case(
            ENGINE,
            "the radius of BPM",
            Level.NOISE,
            lambda size, seed: _radii(exact, size, seed),
        ),
        *(
            Case(
                ENGINE,
                name,
                Level.NOISE,
                partial(_coordinates, mechanism, name),
            )
            for name, mechanism in others.items()
        ),
        *(
            Case(
                ENGINE,
                f"coordinates of {name}",
                Level.NOISE,
                partial(_apart, mechanism, f"coordinates of {name}"),
            )
            for name, mechanism in others.items()
        ),
        Case(ENGINE, "cells of a grid response", Level.NOISE, _cells),
        Case(ENGINE, "k-means on the server", Level.SENSITIVITY, kmeans),
        Case(
            ENGINE,
            "BPM reports of two points",
            Level.BLACK_BOX,
            lambda s, i: _told_apart(_WIDE, _apply(_WIDE), "ratio", s, i),
        ),
        *spark.cases(ENGINE),
    )
    twins = (
        (
            "half the noise",
            Level.BLACK_BOX,
            lambda s, i: _told_apart(_WIDE, _apply(half_wide), "ratio", s, i),
        ),
        ("half the noise", Level.NOISE, lambda s, i: _radii(half, s, i)),
        (
            "the sampler that forgets a factor e^(-kL)",
            Level.BLACK_BOX,
            lambda s, i: _told_apart(_BPM, _first_sampler, "crescent", s, i),
        ),
        (
            "the sampler that forgets a factor e^(-kL)",
            Level.NOISE,
            lambda s, i: _share(_first_sampler, s, i),
        ),
        (
            "points scaled by their own minimum and maximum",
            Level.REPLAY,
            lambda s, i: _clustered(_min_max, s, i),
        ),
        (
            "a record that touches two rows",
            Level.REPLAY,
            lambda s, i: _clustered(_differences, s, i),
        ),
    )
    return (
        *correct,
        *(
            Case(ENGINE, "local reports", level, run, what)
            for what, level, run in twins
        ),
    )
