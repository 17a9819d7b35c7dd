"""Audits of heads: replay at a ball and at replacement, raw noise, black box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.audit import (
    AuditResult,
    Claim,
    Level,
    audit,
    draws_needed,
    law_of,
    noise_test,
    replay,
)
from demur.convex import BallPrototypeClassifier, BallSoftmaxClassifier
from demur.convex.heads import inputs, prototypes
from demur.core import recording
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu
from demur.core.adjacency import Ball, ReplaceOne, Unit
from demur.core.curve import PiecewiseLinear
from demur.core.entropy import NoiseKey, Seeded, Source
from demur.core.sensitivity import Sensitivity, Table
from demur.mechanisms import Gaussian
from demur.mechanisms.exponential import GridQuantile
from demur.testing.audit_suite.case import Case, Size, broken
from demur.testing.audit_suite.counting import counts_test
from demur.testing.audit_suite.searched_heads import SEARCHES, searched

ENGINE = "convex"
_RADIUS, _DELTA, _EPSILON = 0.5, 1e-6, 2.0
_CLASSES = (0, 1, 2)
NEAR = Ball(_RADIUS, space="records")

Values = NDArray[np.float64]
Data = tuple[Values, NDArray[np.int64]]
Make = Callable[[Source], Any]


def _data() -> Data:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % len(_CLASSES)
    centres = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]) / 2.0
    return rng.normal(size=(60, 2)) * 0.2 + centres[labels], labels


def _moved(by: tuple[float, float], label: int | None = None) -> Data:
    """The dataset with its last record moved."""
    rows, labels = _data()
    rows[-1] += by
    if label is not None:
        labels[-1] = label
    return rows, labels


_BY_THE_RADIUS = (0.3, 0.4)


_SHARED: dict[str, Any] = {
    "delta": _DELTA,
    "radius": _RADIUS,
    "norm_bound": 1.0,
    "classes": _CLASSES,
}


def _prototypes(source: Source, epsilon: float = _EPSILON) -> BallPrototypeClassifier:
    return BallPrototypeClassifier(epsilon=epsilon, source=source, **_SHARED)


def _softmax(source: Source) -> BallSoftmaxClassifier:
    return BallSoftmaxClassifier(epsilon=_EPSILON, lam=0.1, source=source, **_SHARED)


def _noisy_gd(source: Source) -> BallSoftmaxClassifier:
    return BallSoftmaxClassifier(
        epsilon=_EPSILON, mechanism="noisy_gd", steps=5, source=source, **_SHARED
    )


def _replayed(
    make: Make, unit: Unit, other: Data, subject: str
) -> Callable[[Size, int], AuditResult]:
    def run(data: Data, source: Source) -> dict[str, Any]:
        head = make(source).fit(*data)
        public = {k: v for k, v in vars(head).items() if k.endswith("_")}
        return {"model": public, "declared": head.privacy_.entry.declaration}

    def audited(size: Size, seed: int) -> AuditResult:
        result = replay(
            run, (_data(), other), unit=unit, subject=subject, random_state=seed
        )
        return result.audit_result()

    return audited


def _noise(size: Size, seed: int) -> AuditResult:
    sigma = float(np.max(_input_and_sigma(_data(), _prototypes, seed)[1]))
    count = size.of(draws_needed(law_of(Gaussian(sigma, {NEAR: 1.0}))))
    noise = Gaussian(sigma, {NEAR: 1.0}, dimension=count)
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    draws = noise.apply(np.zeros(count), key)
    return noise_test(draws, law_of(noise), subject="convex: the noise of a head")


def _choices(size: Size, seed: int) -> AuditResult:
    """How often the exponential mechanism chooses each candidate.

    Its law is written down here by itself: e^(-epsilon s / 2) for a candidate that is s
    values away from the median.
    """
    grid, values = np.arange(9.0), np.arange(8.0) + 0.5
    mechanism = GridQuantile(0.5, 1.0, grid, ReplaceOne())
    keys = Seeded(seed)
    drawn = [
        mechanism.apply(values, NoiseKey(keys.new_key(), private=False))
        for _ in range(size.of(2500))
    ]
    away = np.abs(4 - (values[None, :] <= grid[:, None]).sum(axis=1))
    weights = np.exp(-0.5 * mechanism.epsilon * away)
    return counts_test(
        np.bincount(np.array(drawn, np.int64), minlength=grid.size),
        weights / weights.sum(),
        subject="convex: choices of the exponential mechanism",
    )


def _input_and_sigma(data: Data, make: Make, seed: int) -> tuple[Values, Values]:
    """The exact vector that a fit gives to its mechanism, and its sigma."""
    tape = recording.Tape()
    with recording.watching(tape):
        make(Seeded(seed)).fit(*data)
    (use,) = tape.uses
    assert isinstance(use.declared, recording.Shift)
    exact = use.value[0].reshape(-1)
    return exact, np.broadcast_to(use.declared.sigma, exact.shape)


def _told_apart(epsilon: float, size: Size, seed: int) -> AuditResult:
    """A head that claims `_EPSILON` with the noise of `epsilon`, released many times.

    It is fitted once on each dataset; its release is repeated. One class mean moves by
    the whole sensitivity along a known direction.
    """
    make = partial(_prototypes, epsilon=epsilon)
    claim = _prototypes(Seeded(seed)).fit(*_data()).privacy_.entry
    direction = np.zeros((len(_CLASSES), 2))
    direction[_data()[1][-1]] = _BY_THE_RADIUS

    def run(data: Data, source: Source, count: int) -> Values:
        exact, sigma = _input_and_sigma(data, make, seed)
        mechanism = Gaussian(
            np.tile(sigma, count), {NEAR: 1.0}, dimension=count * exact.size
        )
        key = NoiseKey(source.new_key(), private=False)
        return mechanism.apply(np.tile(exact, count), key).reshape(count, -1)

    return audit(
        run,
        (_moved(_BY_THE_RADIUS), _data()),
        Claim.of(claim, unit=NEAR, delta=_DELTA, score=direction.reshape(-1)),
        many=True,
        runs=size.of(10_000),
        random_state=seed,
        subject="convex: prototypes",
    )


def _half_sensitivity(size: Size, seed: int) -> AuditResult:
    right = prototypes.plan_prototypes

    def wrong(*args: Any, **options: Any) -> Any:
        plan = right(*args, **options)
        noise = plan.mechanism
        assert isinstance(noise.sensitivity, Sensitivity)
        ((space, curve),) = noise.sensitivity.spaces
        knots = tuple((radius, moved / 2.0) for radius, moved in curve.knots)
        table: Table = {space: PiecewiseLinear(knots, curve.saturates)}
        return replace(plan, mechanism=Gaussian(noise.sigma, table, noise.dimension))

    with broken(prototypes, "plan_prototypes", wrong):
        return _PROTOTYPES_REPLAYED(size, seed)


def _raw_rows(size: Size, seed: int) -> AuditResult:
    right = inputs.prepare

    def wrong(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
        prepared = right(estimator, X, y, **options)
        assert isinstance(prepared, inputs.Prepared)
        return prepared._replace(X=np.asarray(X))

    far = _moved((30.0, 40.0))
    audited = _replayed(_prototypes, Ball(2.0, "records"), far, "convex: prototypes")
    with broken(inputs, "prepare", wrong):
        return audited(size, seed)


def _half_noise(size: Size, seed: int) -> AuditResult:
    twice = gaussian_epsilon(2.0 * gaussian_mu(_EPSILON, _DELTA), _DELTA)
    return _told_apart(twice, size, seed)


_PROTOTYPES_REPLAYED = _replayed(
    _prototypes, NEAR, _moved(_BY_THE_RADIUS), "convex: prototypes"
)


def cases() -> tuple[Case, ...]:
    """Correct heads, then twins."""
    near = _moved(_BY_THE_RADIUS)
    elsewhere = _moved((5.0, -5.0), label=0)
    return (
        Case(ENGINE, "prototypes at a ball", Level.REPLAY, _PROTOTYPES_REPLAYED),
        Case(
            ENGINE,
            "softmax head at a ball",
            Level.REPLAY,
            _replayed(_softmax, NEAR, near, "convex: softmax head"),
        ),
        Case(
            ENGINE,
            "softmax head at any replacement",
            Level.REPLAY,
            _replayed(_softmax, ReplaceOne(), elsewhere, "convex: softmax head"),
        ),
        Case(
            ENGINE,
            "noisy gradient descent at a ball",
            Level.REPLAY,
            _replayed(_noisy_gd, NEAR, near, "convex: noisy gradient descent"),
        ),
        *(
            Case(
                ENGINE,
                name,
                Level.SENSITIVITY,
                searched(make, pair, unit, f"convex: {name}", least),
            )
            for name, make, pair, unit, least in SEARCHES
        ),
        Case(ENGINE, "the noise of a head", Level.NOISE, _noise),
        Case(ENGINE, "choices of the exponential mechanism", Level.NOISE, _choices),
        Case(
            ENGINE,
            "prototypes of two datasets",
            Level.BLACK_BOX,
            lambda size, seed: _told_apart(_EPSILON, size, seed),
        ),
        Case(ENGINE, "prototypes", Level.BLACK_BOX, _half_noise, "half the noise"),
        Case(
            ENGINE,
            "prototypes",
            Level.REPLAY,
            _half_sensitivity,
            "half the sensitivity declared",
        ),
        Case(
            ENGINE,
            "prototypes",
            Level.REPLAY,
            _raw_rows,
            "rows clipped into a copy and used as they were",
        ),
    )
