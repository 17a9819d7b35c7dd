"""The learning half of `MemoryPair`: calibration, inserts, predictions, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.bounds import real_array
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.calibrator import Calibrator, CalibStats
from demur.unlearning.records.commitments import id_list
from demur.unlearning.stream import phase as phases
from demur.unlearning.stream.drift import DriftDetector
from demur.unlearning.stream.hooks import Hooks
from demur.unlearning.stream.locking import one_at_a_time
from demur.unlearning.stream.losses import loss_of
from demur.unlearning.stream.metrics import LossTotals
from demur.unlearning.stream.odometer import PrivacyOdometer
from demur.unlearning.stream.phase import Phase
from demur.unlearning.stream.registry import Registry
from demur.unlearning.stream.state_machine import Prediction, StateMachine


class Learner(StateMachine):
    """A mode that learns one record at a time, with its calibration and drift."""

    def __init__(
        self,
        mode: Mode,
        odometer: PrivacyOdometer,
        calibrator: Calibrator | None,
        *,
        predictions: Literal["flag", "withhold"],
        hooks: Hooks | None,
        drift: DriftDetector | None,
        metrics: bool,
        comparator: ArrayLike | None,
    ) -> None:
        self.mode = mode
        self.odometer = odometer
        self.calibrator = calibrator or Calibrator(formula=odometer.terms.formula)
        self.drift = drift
        self.stats: CalibStats | None = None
        self.gamma_learn: float | None = None
        self.recalibrations = 0
        self.registry = Registry()
        self._loss = loss_of(mode)
        self._totals = LossTotals.of(self._loss, mode.size, comparator, on=metrics)
        self._named = 0  # inserts with an id
        self._learn = mode.insert
        super().__init__(predictions, hooks, self._totals.on or drift is not None)

    @property
    def theta(self) -> Array:
        """A copy of the published parameters."""
        with self._lock:
            return self.mode.published()

    def lbfgs_bounds(self) -> tuple[float, float]:
        """(c, C) from the stored curvature pairs; (1, 1) where the mode keeps none."""
        bounds = getattr(self.mode, "lbfgs_bounds", None)
        return (1.0, 1.0) if bounds is None else bounds()

    # -- calibration -----------------------------------------------------------

    @one_at_a_time
    def calibrate_step(
        self,
        x: ArrayLike,
        y: float,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> Prediction:
        """Learn a record and note its gradient and the parameters after it."""
        phases.require("calibrate_step", self.phase)
        self.registry.check_new(record_id, subject_id)
        row, target = self.mode.check(x, y)
        penalty = self._penalty()
        prediction = self._learn(row, target)
        if self._totals.on:
            self._totals.add(prediction, penalty, row, target)
        gradient = self._loss.gradient(prediction, row, target)
        index = self.calibrator.observations
        planned = self.mode.planned_gradient(gradient)
        self.calibrator.observe(planned, self.mode.planned_parameters())
        self.registry.add_calibration(record_id, index, row, target)
        self._inserted(record_id, subject_id, row, target)
        self._fire("calibrate", record_id=record_id)
        return self._shown(prediction)

    @one_at_a_time
    def finalize_calibration(
        self, gamma_learn: float, stats: CalibStats | None = None
    ) -> CalibStats:
        """Fix the constants and N*, begin LEARNING; returns what sizes the odometer.

        `stats` are those of an earlier `calibrator.finalize(gamma_learn, model)`. The
        odometer is finalised afterwards, when the warm-up is over:
        `odometer.finalize_with(stats, T_estimate=...)`.
        """
        phases.require("finalize_calibration", self.phase)
        validate.positive(gamma_learn=gamma_learn)
        self.stats = stats or self.calibrator.finalize(gamma_learn, self)
        self.gamma_learn = float(gamma_learn)
        self.N_star = self.stats.N_star
        if self.drift is not None:
            self.drift.start(self.calibrator.grad_norms)
        self._move_to(Phase.LEARNING)
        self._advance()
        return self.stats

    # -- learning --------------------------------------------------------------

    def insert(
        self,
        x: ArrayLike,
        y: float,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> Prediction:
        """Learn a record; the prediction for it from before."""
        if self.lean and record_id is None and subject_id is None:
            with self._lock:
                prediction = self._learn(x, y)
                self.inserts_seen += 1
            return prediction
        with self._lock:
            return self._insert(x, y, record_id, subject_id)

    def _insert(
        self, x: ArrayLike, y: float, record_id: str | None, subject_id: str | None
    ) -> Prediction:
        phases.require("insert", self.phase)
        self.registry.check_new(record_id, subject_id)
        penalty = 0.0
        if self._watched or (record_id is not None and self.mode.needs_record):
            x, y = self.mode.check(x, y)
            penalty = self._penalty()
        prediction = self._learn(x, y)
        shown = self._shown(prediction)
        self._inserted(record_id, subject_id, x, y)
        self._advance()
        if self._watched:
            self._watch(prediction, penalty, np.asarray(x), y)
        self._fire("insert", record_id=record_id)
        return shown

    @one_at_a_time
    def insert_many(
        self, X: ArrayLike, Y: ArrayLike, record_ids: Sequence[str] | None = None
    ) -> Array:
        """Learn rows in order, as `insert` would; NaN where a prediction is withheld.

        With hooks, metrics or drift detection every row is an event of its own;
        without them one compiled loop learns all, rows of bad input included: none is
        learned then.
        """
        phases.require("insert", self.phase)
        if record_ids is not None:
            record_ids = id_list("record_ids", record_ids, ordered=True)
            self._check_ids(record_ids, len(np.asarray(Y)))
        if self._watched or self._hooks is not None:
            rows, targets = np.atleast_2d(real_array("X", X)), real_array("Y", Y)
            ids: Sequence[str | None] = record_ids or [None] * len(targets)
            shown = [self.insert(*row) for row in zip(rows, targets, ids, strict=True)]
            return np.array([np.nan if p is None else p for p in shown])
        content: list[tuple[Array, float]] = []
        if record_ids is not None and self.mode.needs_record:
            pairs = zip(np.atleast_2d(real_array("X", X)), np.asarray(Y), strict=False)
            content = [self.mode.check(*pair) for pair in pairs]
        predictions = self.mode.insert_many(X, Y)
        if not self.ready_to_predict and self.predictions == "withhold":
            assert self.N_star is not None
            predictions[: max(0, self.N_star - self.inserts_seen)] = np.nan
        self.inserts_seen += len(predictions)
        for record_id in record_ids or ():
            self._named += 1
            self.registry.add(record_id, None)
        for record_id, record in zip(record_ids or (), content, strict=False):
            self.registry.add_content(record_id, *record)
        self._advance()
        return predictions

    def predict(self, x: ArrayLike) -> Prediction:
        """A prediction from the published parameters; before N*, as `predictions`."""
        with self._lock:  # some modes solve first, and no deletion may be half done
            prediction = self.mode.predict(x)
        return prediction if self.ready_to_predict else self._shown(prediction)

    def probabilities(self, x: ArrayLike) -> Array:
        """The probability of each class, of a mode with `classes=`."""
        with self._lock:
            return self.mode.probabilities(x)

    def _check_ids(self, record_ids: Sequence[str], rows: int) -> None:
        if len(record_ids) != rows or len(set(record_ids)) != rows:
            raise ValueError(
                f"record_ids must be {rows} different ids, one for each row; nothing"
                " was learned"
            )
        for record_id in record_ids:
            self.registry.check_new(record_id, None)

    def _inserted(
        self, record_id: str | None, subject_id: str | None, x: ArrayLike, y: float
    ) -> None:
        """Count a record; (x, y) as it was checked, where the mode needs it again."""
        self.inserts_seen += 1
        if record_id is not None:
            self._named += 1
            self.registry.add(record_id, subject_id)
            if self.mode.needs_record:
                self.registry.add_content(record_id, np.asarray(x), y)

    def _penalty(self) -> float:
        """The regulariser at the parameters that are about to predict."""
        if not self._totals.on or self._loss.lam == 0.0:
            return 0.0
        return self._loss.penalty(self.mode.published())

    def _watch(self, prediction: float, penalty: float, x: Array, y: float) -> None:
        if self._totals.on:
            self._totals.add(prediction, penalty, x, y)
        if self.drift is None:
            return
        gradient = self._loss.gradient(prediction, x, y)
        norm = float(np.linalg.norm(self.mode.planned_gradient(gradient)))
        if self.drift.update(norm):
            self._fire("drift")
            self.recalibrate()

    # -- drift -----------------------------------------------------------------

    @one_at_a_time
    def recalibrate(self) -> CalibStats:
        """Estimate G anew from the recent window; the capacity can only fall.

        Called when the detector flags a drift. Nothing is paid and nothing is won: the
        reservation does not change.
        """
        phases.require("recalibrate", self.phase)
        if self.drift is None or self.stats is None or self.gamma_learn is None:
            raise ValueError(
                "recalibrate needs a drift detector: drift=DriftDetector()"
            )
        recent = self.drift.recent()
        if len(recent) >= 2:
            calibrator = self.calibrator
            G = float(np.quantile(recent, calibrator.quantile))
            G = min(G, calibrator.G_cap)
            c, C = calibrator.estimate_bounds(self)
            N_star = calibrator.sample_complexity(
                G, self.stats.D, c, C, self.gamma_learn
            )
            self.stats = replace(self.stats, G=G, c=c, C=C, N_star=N_star)
            self.N_star = N_star
            self.drift.start(recent)
            if self.odometer.finalised:
                self.odometer.recalibrate_with(self.stats)
        self.recalibrations += 1
        self._fire("recalibrate")
        self._advance()
        return self.stats
