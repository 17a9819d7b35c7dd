"""Audits of deletions: comparison with a retrain, and replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.audit import (
    AuditResult,
    Level,
    audit_deletion,
    replay,
    search_sensitivity,
)
from demur.core.adjacency import Erasure
from demur.core.entropy import Source
from demur.testing.audit_suite.case import Case, Size
from demur.unlearning import MemoryPair, PrivacyOdometer
from demur.unlearning.models import OGD, Logistic, Ridge
from demur.unlearning.models.base import Mode
from demur.unlearning.retrain.comparison import verify_against_retrain
from demur.unlearning.retrain.worlds import stream

ENGINE = "unlearning"
_DIM, _LEARNED, _GONE = 4, 40, 25

Values = NDArray[np.float64]
Data = tuple[Values, Values]


def _records(count: int, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, _DIM))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, np.sign(rows @ np.linspace(1.0, -0.5, _DIM))


def _against_retrain(
    make: Callable[[], Mode],
    size: Size,
    seed: int,
    scale: float = 8.0,
    **more: Any,
) -> AuditResult:
    # Targets out of reach, where ogd forgets most slowly; ridge clips them.
    rows, targets = _records(120)
    events = stream(rows, targets * scale, {80: 79, 119: (3, 118)})
    report = verify_against_retrain(
        make(),
        events,
        trials=size.of(4000),
        confidence=1.0 - 1e-6,
        seed=seed,
        **more,
    )
    return audit_deletion(report, subject=f"unlearning: {report.mode}")


class _KeepsItsCache(OGD):
    """A deletion that leaves the last records in a cache."""

    def __init__(self, dimension: int, **config: Any) -> None:
        super().__init__(dimension, **config)
        self.recent: list[list[float]] = []

    def insert_many(self, X: ArrayLike, Y: ArrayLike) -> Any:
        self.recent = [*self.recent, *np.asarray(X).tolist()][-16:]
        return super().insert_many(X, Y)


class _ForgetsNothing(Ridge):
    """A deletion that is acknowledged and not carried out."""

    def delete(
        self,
        x: Any = None,
        y: Any = None,
        noise: Any = None,
        *,
        records: int = 1,
        grid: float | None = None,
    ) -> None:
        self.forget_nothing(noise, grid=grid)


class _Silent(OGD):
    """A deletion without its noise."""

    def forget_nothing(self, noise: Any = None, *, grid: Any = None) -> Any:
        silence = None if noise is None else np.zeros(_DIM)
        return super().forget_nothing(silence, grid=grid)


def _deleted(make: Callable[[], Mode | str]) -> Callable[[Data, Source], Any]:
    """Learn all, delete one, learn on.

    A mode whose state is secret shows its published copy alone.
    """

    def run(data: Data, source: Source) -> dict[str, Any]:
        rows, targets = data
        odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=4.0, source=source)
        model = MemoryPair(_DIM, odometer, mode=make())
        for row, target in zip(rows[:10], targets[:10], strict=True):
            model.calibrate_step(row, target)
        stats = model.finalize_calibration(1.0)
        for i in range(10, 30):
            model.insert(rows[i], targets[i], record_id=f"r{i}")
        odometer.finalize_with(stats, T_estimate=100_000)
        model.delete(rows[_GONE], targets[_GONE], record_id=f"r{_GONE}")
        if model.mode.secret:
            return {"published": model.mode.published()}
        return {
            "published": model.theta,
            "state": model.mode.state(),
            "later": model.insert_many(rows[30:], targets[30:]),
        }

    return run


def _with_blank(scale: float = 1.0) -> tuple[Data, Data]:
    """Records with targets `scale` times as large, and a blank in place of one."""
    rows, targets = _records(_LEARNED)
    blank = rows.copy()
    blank[_GONE] = 0.0
    return (rows, targets * scale), (blank, targets * scale)


def _searched(size: Size, seed: int) -> AuditResult:
    """Targets out of reach: the loss is straight there, and forgets most slowly."""
    return search_sensitivity(
        _deleted(lambda: "ogd"),
        (1.0, 20.0),
        _with_blank,
        unit=Erasure(),
        subject="unlearning: how far a deleted record moved ogd",
        least=0.9,
        random_state=seed,
    )


def _deleted_logistic(data: Data, source: Source) -> dict[str, Any]:
    """Learn all, renew, delete the last: its Newton step is all of the distance."""
    rows, targets = data
    odometer = PrivacyOdometer(1.0, 1e-5, 0.1, gamma=4.0, source=source)
    mode = Logistic(1, Lambda=12.0, tolerance=3.25e-5)
    model = MemoryPair(1, odometer, mode=mode)
    for row, target in zip(rows[:10], targets[:10], strict=True):
        model.calibrate_step(row, target)
    stats = model.finalize_calibration(1.0)
    for i in range(10, len(rows)):
        model.insert(rows[i], targets[i], record_id=f"r{i}")
    odometer.finalize_with(stats, T_estimate=100_000)
    mode.renew(rows, targets)
    model.delete(rows[-1], targets[-1], record_id=f"r{len(rows) - 1}")
    return {"published": mode.published()}


def _searched_logistic(size: Size, seed: int) -> AuditResult:
    """One direction and one label, at scores where the curvature changes fastest.

    There the certificate of the deletion's Newton step is nearly what the step misses.
    The promise is wider: twice the tolerance, and by the regulariser alone.
    """

    def worlds(norm: float) -> tuple[Data, Data]:
        norms = norm * (1.0 - 1e-9 * np.arange(_LEARNED, dtype=np.float64))
        rows: Values = norms[:, None]
        blank = rows.copy()
        blank[-1] = 0.0
        return (rows, np.ones(_LEARNED)), (blank, np.ones(_LEARNED))

    return search_sensitivity(
        _deleted_logistic,
        (0.9, 0.95, 1.0),
        worlds,
        unit=Erasure(),
        subject="unlearning: how far a deleted record moved logistic",
        least=0.26,
        random_state=seed,
    )


def _replayed(make: Callable[[], Mode | str], size: Size, seed: int) -> AuditResult:
    """The second dataset has a blank in the place of the deleted record."""
    return replay(
        _deleted(make),
        _with_blank(),
        unit=Erasure(),
        subject="unlearning: a live model",
        random_state=seed,
    ).audit_result()


def _loose_logistic() -> Logistic:
    """A tolerance that thirty records reach."""
    return Logistic(_DIM, Lambda=100.0, tolerance=0.05)


def _a_fiftieth(mode: Mode, records: int) -> float:
    return mode.shift_bound(records) / 50.0


def cases() -> tuple[Case, ...]:
    """Correct models, then twins."""
    correct: tuple[tuple[str, Level, Callable[[Size, int], AuditResult]], ...] = (
        (
            "ogd against a retrain",
            Level.DELETION,
            lambda s, i: _against_retrain(lambda: OGD(_DIM), s, i),
        ),
        (
            "ridge against a retrain",
            Level.DELETION,
            lambda s, i: _against_retrain(lambda: Ridge(_DIM), s, i),
        ),
        (
            "logistic against a retrain",
            Level.DELETION,
            lambda s, i: _against_retrain(_loose_logistic, s, i, scale=1.0),
        ),
        ("a live ogd model", Level.REPLAY, lambda s, i: _replayed(lambda: "ogd", s, i)),
        (
            "a live ridge model",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: "ridge", s, i),
        ),
        (
            "a live logistic model",
            Level.REPLAY,
            lambda s, i: _replayed(_loose_logistic, s, i),
        ),
        ("how far a record moves ogd", Level.SENSITIVITY, _searched),
        ("how far a record moves logistic", Level.SENSITIVITY, _searched_logistic),
    )
    twins: tuple[tuple[str, Level, Callable[[Size, int], AuditResult]], ...] = (
        (
            "a cache that deletions leave alone",
            Level.DELETION,
            lambda s, i: _against_retrain(lambda: _KeepsItsCache(_DIM), s, i),
        ),
        (
            "a deletion that is acknowledged and not done",
            Level.DELETION,
            lambda s, i: _against_retrain(lambda: _ForgetsNothing(_DIM), s, i),
        ),
        (
            "a fiftieth of the noise",
            Level.DELETION,
            lambda s, i: _against_retrain(
                lambda: OGD(_DIM), s, i, noise_scale=_a_fiftieth
            ),
        ),
        (
            "a deletion without noise",
            Level.REPLAY,
            lambda s, i: _replayed(lambda: _Silent(_DIM, lam=0.1), s, i),
        ),
    )
    return (
        *(Case(ENGINE, name, level, run) for name, level, run in correct),
        *(Case(ENGINE, "deletions", level, run, what) for what, level, run in twins),
    )
