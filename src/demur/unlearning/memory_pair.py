"""The state machine: calibrate, learn until N*, then learn and forget in any order.

    CALIBRATION   calibrate_step(x, y) ... finalize_calibration(gamma_learn)
    LEARNING      insert(x, y) until inserts_seen >= N_star
    INTERLEAVING  insert and delete; predictions count

A deletion goes in this order: everything that can be refused is (phase, id, capacity,
record, certificate); one draw of the odometer's reservation, durable; the noise of that
draw; the mode's state. Whatever fails after the draw leaves it spent.

The model is in memory. For one that survives its process, knows repeated and late
requests and hands out certificates, see `UnlearningService`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from demur.core import validate
from demur.unlearning import phase as phases
from demur.unlearning.calibrator import Calibrator, CalibStats
from demur.unlearning.drift import DriftDetector
from demur.unlearning.forgetting import Forgetting, statement_of
from demur.unlearning.hooks import Happened, Hook, Hooks, Kind
from demur.unlearning.losses import loss_of
from demur.unlearning.metrics import Metrics, Tally, metrics_of
from demur.unlearning.modes import make_mode
from demur.unlearning.modes.base import Array, Mode
from demur.unlearning.odometer import PrivacyOdometer
from demur.unlearning.phase import Phase
from demur.unlearning.registry import Registry
from demur.unlearning.turns import one_at_a_time

Prediction = float | None


class EarlyPrediction(float):
    """A prediction from before N*: a number like any other, flagged by its type."""


class MemoryPair:
    """A model that learns one record at a time and forgets on request.

    `mode` names a way to learn and forget (or is a `Mode`), and its options follow.
    `predictions="withhold"` returns None before N*, `"flag"` an `EarlyPrediction`.

    >>> odometer = PrivacyOdometer(1.0, 1e-5, lambda_=0.5, gamma=1.0)
    >>> model = MemoryPair(2, odometer, radius=1.0)
    >>> for t in range(50):
    ...     _ = model.calibrate_step([0.6, 0.8], 0.5)
    >>> stats = model.finalize_calibration(gamma_learn=0.1)
    >>> odometer.finalize_with(stats, T_estimate=10_000)
    >>> model.phase.name, odometer.ready_to_delete
    ('INTERLEAVING', True)
    >>> prediction = model.insert([0.6, 0.8], 0.5, record_id="r1")
    >>> model.delete(record_id="r1")
    >>> model.deletes_seen, odometer.deletions_made
    (1, 1)
    """

    def __init__(
        self,
        dim: int,
        odometer: PrivacyOdometer,
        calibrator: Calibrator | None = None,
        mode: str | Mode = "ogd",
        *,
        predictions: Literal["flag", "withhold"] = "flag",
        calibration_records: Literal["forget", "keep"] = "forget",
        hooks: Hooks | None = None,
        drift: DriftDetector | None = None,
        metrics: bool = False,
        comparator: ArrayLike | None = None,
        **mode_config: Any,
    ) -> None:
        """`metrics` and `comparator` are for empirical regret (`metrics()`).

        `calibration_records="keep"` lets a record that sized the noise be deleted all
        the same, as the seed does; no promise covers that.
        """
        validate.count(dim=dim)
        if predictions not in ("flag", "withhold"):
            raise ValueError(
                f"predictions must be 'flag' or 'withhold'; got {predictions!r}"
            )
        if calibration_records not in ("forget", "keep"):
            raise ValueError(
                "calibration_records must be 'forget' or 'keep'; got"
                f" {calibration_records!r}"
            )
        self.mode = _mode(mode, int(dim), odometer, mode_config)
        odometer.bind(self.mode)
        self.odometer = odometer
        self.calibrator = calibrator or Calibrator(formula=odometer.terms.formula)
        self.phase = Phase.CALIBRATION
        self.predictions = predictions
        self._hooks = hooks
        self.drift = drift
        self.stats: CalibStats | None = None
        self.gamma_learn: float | None = None
        self.N_star: int | None = None
        self.ready_to_predict = False
        self.inserts_seen = 0
        self.deletes_seen = 0
        self.recalibrations = 0
        self.registry = Registry()
        self._loss = loss_of(self.mode)
        self._forgetting = Forgetting(
            self.mode, odometer, self.registry, calibration_records == "keep"
        )
        self._tally = Tally.of(self._loss, self.mode.dim, comparator, on=metrics)
        self._named = 0  # inserts with an id
        self._unnamed_gone = 0  # records deleted by content
        self._watched = self._tally.on or drift is not None
        self._learn = self.mode.insert
        # Nothing to do beside learning: the short way through insert.
        self._lean = False
        # One act at a time; a hook may act in turn, in the thread that called it.
        self._lock = threading.RLock()

    # -- counters --------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.mode.dim

    @property
    def theta(self) -> Array:
        """A copy of the published parameters."""
        return self.mode.published()

    @property
    def events_seen(self) -> int:
        """Inserts and deletes so far."""
        return self.inserts_seen + self.deletes_seen

    @property
    def can_predict(self) -> bool:
        """Whether N* inserts were seen."""
        return self.ready_to_predict

    def lbfgs_bounds(self) -> tuple[float, float]:
        """(c, C) from the stored curvature pairs; (1, 1) where the mode keeps none."""
        ask = getattr(self.mode, "lbfgs_bounds", None)
        return (1.0, 1.0) if ask is None else ask()

    def metrics(self) -> Metrics:
        """Theory and practice so far."""
        return metrics_of(self, self._tally)

    def statement(self) -> str:
        """What a deletion is worth here, for the person who signs."""
        return statement_of(self.mode, self.odometer)

    def on(self, kind: str, hook: Hook) -> None:
        """Call `hook` after every event of this kind ("*": of any)."""
        if self._hooks is None:
            self._hooks = Hooks()
        self._hooks.on(kind, hook)
        self._lean = False

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
        if self._tally.on:
            self._tally.add(prediction, penalty, row, target)
        gradient = self._loss.gradient(prediction, row, target)
        index = self.calibrator.observations
        self.calibrator.observe(gradient, self.mode.published())
        self.registry.add_calibration(record_id, index, row, target)
        self._inserted(record_id, subject_id)
        self._fire("calibrate", record_id=record_id)
        return self._shown(prediction)

    @one_at_a_time
    def finalize_calibration(self, gamma_learn: float) -> CalibStats:
        """Fix the constants and N*, begin LEARNING; returns what sizes the odometer.

        The odometer is finalised afterwards, when the warm-up is over:
        `odometer.finalize_with(stats, T_estimate=...)`.
        """
        phases.require("finalize_calibration", self.phase)
        validate.positive(gamma_learn=gamma_learn)
        self.stats = self.calibrator.finalize(gamma_learn, self)
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
        if self._lean and record_id is None and subject_id is None:
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
        if self._watched:
            x, y = self.mode.check(x, y)
            penalty = self._penalty()
        prediction = self._learn(x, y)
        shown = self._shown(prediction)
        self._inserted(record_id, subject_id)
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
            self._check_ids(record_ids, len(np.asarray(Y)))
        if self._watched or self._hooks is not None:
            rows, targets = np.atleast_2d(np.asarray(X)), np.asarray(Y)
            ids: Sequence[str | None] = record_ids or [None] * len(targets)
            made = [self.insert(*row) for row in zip(rows, targets, ids, strict=True)]
            return np.array([np.nan if p is None else p for p in made])
        predictions = self.mode.insert_many(X, Y)
        if not self.ready_to_predict and self.predictions == "withhold":
            assert self.N_star is not None
            predictions[: max(0, self.N_star - self.inserts_seen)] = np.nan
        self.inserts_seen += len(predictions)
        for record_id in record_ids or ():
            self._named += 1
            self.registry.add(record_id, None)
        self._advance()
        return predictions

    def predict(self, x: ArrayLike) -> Prediction:
        """A prediction from the published parameters; before N*, as `predictions`."""
        if self.predictions == "withhold" and not self.ready_to_predict:
            return None
        return self._shown(self.mode.predict(x))

    def _check_ids(self, record_ids: Sequence[str], rows: int) -> None:
        if len(record_ids) != rows or len(set(record_ids)) != rows:
            raise ValueError(
                f"record_ids must be {rows} different ids, one for each row; nothing"
                " was learned"
            )
        for record_id in record_ids:
            self.registry.check_new(record_id, None)

    def _inserted(self, record_id: str | None, subject_id: str | None) -> None:
        self.inserts_seen += 1
        if record_id is not None:
            self._named += 1
            self.registry.add(record_id, subject_id)

    def _shown(self, prediction: float) -> Prediction:
        if self.ready_to_predict:
            return prediction
        return None if self.predictions == "withhold" else EarlyPrediction(prediction)

    def _penalty(self) -> float:
        """The regulariser at the parameters that are about to predict."""
        if not self._tally.on or self._loss.lambda_ == 0.0:
            return 0.0
        return self._loss.penalty(self.mode.published())

    def _watch(self, prediction: float, penalty: float, x: Array, y: float) -> None:
        if self._tally.on:
            self._tally.add(prediction, penalty, x, y)
        if self.drift is None:
            return
        norm = abs(self._loss.slope(prediction, y)) * float(np.linalg.norm(x))
        if self.drift.update(norm):
            self._fire("drift")
            self.recalibrate()

    # -- phases ----------------------------------------------------------------

    def _advance(self) -> None:
        if self.phase is not Phase.LEARNING:
            return
        assert self.N_star is not None
        if self.inserts_seen >= self.N_star:
            self.ready_to_predict = True
            self._move_to(Phase.INTERLEAVING)

    def _move_to(self, after: Phase) -> None:
        before, self.phase = self.phase, after
        self._lean = after is Phase.INTERLEAVING and not (
            self._watched or self._hooks is not None
        )
        self._fire("phase", before=before)

    def _fire(
        self, kind: Kind, *, before: Phase | None = None, record_id: str | None = None
    ) -> None:
        if self._hooks is not None:
            self._hooks.fire(
                Happened(
                    kind,
                    self.phase,
                    before or self.phase,
                    self.events_seen,
                    self.inserts_seen,
                    self.deletes_seen,
                    record_id,
                )
            )

    @one_at_a_time
    def recalibrate(self) -> CalibStats:
        """Estimate G anew from the recent window; the capacity can only fall.

        Called when the detector flags a drift. Nothing is paid and nothing is won:
        the reservation stays what it is.
        """
        phases.require("recalibrate", self.phase)
        if self.drift is None or self.stats is None or self.gamma_learn is None:
            raise ValueError(
                "recalibrate needs a drift detector: drift=DriftDetector()"
            )
        recent = self.drift.recent()
        if len(recent) >= 2:
            made = self.calibrator
            G = min(float(np.quantile(recent, made.quantile)), made.G_cap)
            c, C = made.estimate_bounds(self)
            N_star = made.sample_complexity(G, self.stats.D, c, C, self.gamma_learn)
            self.stats = replace(self.stats, G=G, c=c, C=C, N_star=N_star)
            self.N_star = N_star
            self.drift.start(recent)
            if self.odometer.finalised:
                self.odometer.recalibrate_with(self.stats)
        self.recalibrations += 1
        self._fire("recalibrate")
        self._advance()
        return self.stats

    # -- forgetting ------------------------------------------------------------

    @one_at_a_time
    def delete(
        self,
        x: ArrayLike | None = None,
        y: ArrayLike | None = None,
        *,
        record_id: str | None = None,
        subject_id: str | None = None,
    ) -> None:
        """Forget a record, or all records of a subject, at the price of one draw.

        `record_id` or `subject_id` say which; modes that need the record take it as
        x, y (rows and targets, in the order of insertion, for a subject). Without an
        id the record itself says which, and stands for a person of its own.
        """
        phases.require("delete", self.phase)
        order = self._forgetting.prepare(x, y, record_id, subject_id, self._unnamed())
        self._forgetting.execute(order)
        self.deletes_seen += 1
        if not order.request.record_ids:
            self._unnamed_gone += order.request.records
        if order.observation is not None:
            self._recalibrate_without(order.observation)
        if self.drift is not None:
            self.drift.forget()
        self._fire("delete", record_id=record_id)

    @one_at_a_time
    def delete_many(
        self,
        record_ids: Sequence[str],
        X: ArrayLike | None = None,
        Y: ArrayLike | None = None,
    ) -> None:
        """Forget several records, one draw each; all ids and the capacity are first
        checked, so that a refusal forgets none.
        """
        phases.require("delete", self.phase)
        ids = list(record_ids)
        if len(set(ids)) != len(ids):
            raise ValueError("record_ids must differ; nothing was spent")
        self.odometer.require_ready(len(ids))
        for record_id in ids:
            self.registry.request(record_id, None, None, self._unnamed())
        rows, targets = self._forgetting.content(X, Y)
        if rows is not None and len(rows) != len(ids):
            raise ValueError(
                f"X must have one row for each of {len(ids)} ids; got {len(rows)}."
                " Nothing was spent."
            )
        for at, record_id in enumerate(ids):
            if rows is None or targets is None:
                self.delete(record_id=record_id)
            else:
                self.delete(rows[at], targets[at], record_id=record_id)

    @one_at_a_time
    def publish(self) -> None:
        """Renew the published copy of a mode that noises it; costs one draw."""
        if self.mode.publishes != "output":
            return
        self._forgetting.publish()
        self._fire("publish")

    @one_at_a_time
    def renew(self, X: ArrayLike, Y: ArrayLike) -> None:
        """Renew a mode's certificate from its live records; nothing is published."""
        ask = getattr(self.mode, "renew", None)
        if ask is None:
            raise TypeError(f"mode {self.mode.name!r} has no certificate to renew")
        ask(X, Y)

    def _unnamed(self) -> int:
        """How many live records were learned without an id."""
        return self.inserts_seen - self._named - self._unnamed_gone

    def _recalibrate_without(self, observation: int) -> None:
        """Re-finalise from what does not depend on the deleted record."""
        assert self.gamma_learn is not None
        self.calibrator.forget_from(observation)
        self.registry.forget_calibration_from(observation)
        self.stats = self.calibrator.finalize(self.gamma_learn, self)
        self.N_star = self.stats.N_star


def _mode(
    mode: str | Mode, dim: int, odometer: PrivacyOdometer, config: dict[str, Any]
) -> Mode:
    """The mode by name, with the odometer's lambda_ where it takes one."""
    if isinstance(mode, Mode):
        if config:
            raise TypeError(f"a Mode has its options: {sorted(config)} are too many")
        if mode.dim != dim:
            raise ValueError(f"dim is {dim}, but the mode has {mode.dim} features")
        return mode
    if mode in ("ogd", "seed"):
        lambda_ = config.setdefault("lambda_", odometer.lambda_)
        if lambda_ != odometer.lambda_:
            raise ValueError(
                f"lambda_ is {lambda_} here and {odometer.lambda_} in the odometer:"
                " give one, or the same"
            )
    return make_mode(mode, dim, **config)
