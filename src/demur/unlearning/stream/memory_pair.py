"""`MemoryPair`: calibrate, learn until N*, then learn and forget in any order.

    CALIBRATION   calibrate_step(x, y) ... finalize_calibration(gamma_learn)
    LEARNING      insert(x, y) until inserts_seen >= N_star
    INTERLEAVING  insert and delete; predictions count

A deletion goes in this order: everything that can be refused is (phase, id, capacity,
record, certificate); one draw of the odometer's reservation, durable; the noise of that
draw; the mode's state. Whatever fails after the draw leaves it spent.

The model is in memory. For one that survives its process, handles repeated and late
requests and issues certificates, see `UnlearningService`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn

from numpy.typing import ArrayLike

from demur.core import validate
from demur.core.bounds import real_array
from demur.core.entry import Entry
from demur.unlearning.errors import DuplicateStaysLive
from demur.unlearning.models import MODES, make_mode
from demur.unlearning.models.base import Mode
from demur.unlearning.pricing.calibrator import Calibrator
from demur.unlearning.records.commitments import id_list
from demur.unlearning.stream import phase as phases
from demur.unlearning.stream.deletion import StreamDeletions, statement_of
from demur.unlearning.stream.drift import DriftDetector
from demur.unlearning.stream.hooks import Hooks
from demur.unlearning.stream.learner import Learner
from demur.unlearning.stream.locking import one_at_a_time
from demur.unlearning.stream.metrics import Metrics, metrics_of
from demur.unlearning.stream.odometer import PrivacyOdometer
from demur.unlearning.stream.registry import Request


class MemoryPair(Learner):
    """A model that learns one record at a time and forgets on request.

    `mode` names a way to learn and forget (or is a `Mode`), and its options follow.
    `predictions="withhold"` returns None before N*, `"flag"` an `EarlyPrediction`.

    >>> odometer = PrivacyOdometer(1.0, 1e-5, lam=0.5, gamma=1.0)
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
        dimension: int,
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
        the same, as the seed does; no theorem covers that.
        """
        validate.count(dimension=dimension)
        for name, given, wanted in (
            ("odometer", odometer, PrivacyOdometer),
            ("calibrator", calibrator or Calibrator(), Calibrator),
        ):
            if not isinstance(given, wanted):
                raise TypeError(
                    f"{name} must be a {wanted.__name__} of demur.unlearning; got"
                    f" {type(given).__module__}.{type(given).__qualname__}"
                )
        if calibration_records not in ("forget", "keep"):
            raise ValueError(
                "calibration_records must be 'forget' or 'keep'; got"
                f" {calibration_records!r}"
            )
        super().__init__(
            _mode(mode, int(dimension), odometer, mode_config),
            odometer,
            calibrator,
            predictions=predictions,
            hooks=hooks,
            drift=drift,
            metrics=metrics,
            comparator=comparator,
        )
        odometer.bind(self.mode)
        self._deletions = StreamDeletions(
            self.mode, odometer, self.registry, calibration_records == "keep"
        )
        self._unnamed_gone = 0  # records deleted by content

    @property
    def dimension(self) -> int:
        """The number of features."""
        return self.mode.dimension

    def metrics(self) -> Metrics:
        """Theoretical and empirical numbers so far."""
        return metrics_of(self, self._totals)

    def statement(self) -> str:
        """What a deletion from this model guarantees, for the person who signs."""
        return statement_of(self.mode, self.odometer)

    @property
    def entry(self) -> Entry | None:
        """The entry that pays for the deletions; None before the odometer is final."""
        return self.odometer.entry

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
        """Forget a record, or all records of a subject, as one request.

        `record_id` or `subject_id` say which; modes that need the record take it as
        x, y (rows and targets, in the order of insertion, for a subject). Without an
        id the record itself says which, and stands for a person of its own. Where the
        mode needs records, live copies of a deleted one under other ids are pointed out
        by a `DuplicateStaysLive` warning.
        """
        self._warn_of(self._delete(x, y, record_id, subject_id))

    def _delete(
        self,
        x: ArrayLike | None,
        y: ArrayLike | None,
        record_id: str | None,
        subject_id: str | None,
    ) -> tuple[str, ...]:
        """The deletion; the live records that equal a deleted one."""
        phases.require("delete", self.phase)
        checked = self._deletions.prepare(x, y, record_id, subject_id, self._unnamed())
        copies = self.registry.live_copies(
            checked.request, checked.rows, checked.targets
        )
        self._deletions.execute(checked)
        self.deletes_seen += 1
        if not checked.request.record_ids:
            self._unnamed_gone += checked.request.records
        if checked.observation is not None:
            self._recalibrate_without(checked.observation)
        if self.drift is not None:
            self.drift.forget()
        self._fire("delete", record_id=record_id)
        return copies

    def _warn_of(self, copies: Iterable[str]) -> None:
        """Tell the owner of live records that equal a deleted one."""
        live = tuple(i for i in dict.fromkeys(copies) if i in self.registry)
        if live:
            message = (
                f"Deletion {self.deletes_seen}: {len(live)} live record(s) have the"
                " same x and y as a record that was deleted, under other ids, and are"
                " still learned. Delete them too if they are the same person's; their"
                " ids are in `record_ids` of this warning."
            )
            warnings.warn(DuplicateStaysLive(message, live), stacklevel=4)

    @one_at_a_time
    def delete_many(
        self,
        record_ids: Sequence[str],
        X: ArrayLike | None = None,
        Y: ArrayLike | None = None,
    ) -> None:
        """Forget several records, each a request of its own.

        Ids, contents, capacity and the requests of each subject are checked first: if
        any of them is refused, none is forgotten.
        """
        phases.require("delete", self.phase)
        ids = id_list("record_ids", record_ids, ordered=X is not None)
        if len(set(ids)) != len(ids):
            raise ValueError("record_ids must differ; nothing was spent")
        self.odometer.require_ready(len(ids))
        rows, targets = self._deletions.content(X, Y)
        if rows is not None and len(rows) != len(ids):
            raise ValueError(
                f"X must have one row for each of {len(ids)} ids; got {len(rows)}."
                " Nothing was spent."
            )
        given = [
            (None, None) if rows is None or targets is None else (rows[at], targets[at])
            for at in range(len(ids))
        ]
        earlier: list[Request] = []
        deletions = 0
        for (x, y), record_id in zip(given, ids, strict=True):
            checked = self._deletions.prepare(x, y, record_id, None, 0, earlier)
            earlier.append(checked.request)
            deletions += self.odometer.price(checked.number).used
        self.odometer.require_ready(deletions)
        copies: list[str] = []
        try:
            for (x, y), record_id in zip(given, ids, strict=True):
                copies += self._delete(x, y, record_id, None)
        finally:
            self._warn_of(copies)

    @one_at_a_time
    def delete_rows(self, X: ArrayLike, Y: ArrayLike) -> None:
        """Forget several records by content, each a request and a person of its own.

        All of them are deleted from a copy first: if one is refused, none is forgotten.
        """
        phases.require("delete", self.phase)
        rows, targets = self._deletions.content(X, Y)
        if rows is None or targets is None:
            raise ValueError("X and Y must be given; nothing was spent")
        records, unnamed = len(rows), self._unnamed()
        self.odometer.require_ready(records)
        self.registry.request(None, None, records, unnamed)  # so many are live
        for x, y in zip(rows, targets, strict=True):
            self._deletions.prepare(x, y, None, None, unnamed)
        self.odometer.require_ready(records * self.odometer.price().used)
        self._deletions.rehearse(rows, targets)
        copies: list[str] = []
        try:
            for x, y in zip(rows, targets, strict=True):
                copies += self._delete(x, y, None, None)
        finally:
            self._warn_of(copies)

    @one_at_a_time
    def publish(self) -> None:
        """Renew the published copy of a mode that noises it; costs one draw."""
        if self.mode.publishes != "output":
            return
        self._deletions.publish()
        self._fire("publish")

    @one_at_a_time
    def renew(
        self,
        X: ArrayLike,
        Y: ArrayLike,
        record_ids: Sequence[str | None] | None = None,
    ) -> None:
        """Renew a mode's certificate from its live records; nothing is published.

        The records must be the live ones, all of them and no others, in any order. Ids
        (None for a record learned without one) let a wrong one be named; without them
        the contents of the records that have ids are compared. Records that were
        learned without an id are only counted.
        """
        renew = getattr(self.mode, "renew", None)
        if renew is None:
            raise TypeError(f"mode {self.mode.name!r} has no certificate to renew")
        rows, targets = real_array("X", X, "a matrix"), real_array("Y", Y)
        if rows.ndim != 2 or targets.shape != (len(rows),):
            raise ValueError(
                f"X must have shape (n, {self.dimension}) and Y shape (n,); got"
                f" {rows.shape} and {targets.shape}. Nothing has changed."
            )
        live = [self.mode.check(*record) for record in zip(rows, targets, strict=True)]
        ids = None
        if record_ids is not None:
            ids = id_list("record_ids", record_ids, ordered=True)
        self.registry.check_live(live, ids, self._unnamed())
        renew(X, Y)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a MemoryPair cannot be copied or pickled: a copy would share its budget"
            " and lose count. Use an UnlearningService to keep one."
        )

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
        if self.drift is not None:
            self.drift.start(self.calibrator.grad_norms)


def _mode(
    mode: str | Mode, dimension: int, odometer: PrivacyOdometer, config: dict[str, Any]
) -> Mode:
    """The mode by name, with the odometer's lam where it takes one."""
    if isinstance(mode, Mode):
        if config:
            raise TypeError(f"a Mode has its options: {sorted(config)} are too many")
        if mode.dimension != dimension:
            raise ValueError(
                f"dimension is {dimension}, but the mode has {mode.dimension} features"
            )
        return mode
    named = MODES.get(mode)
    if named is not None and named.regulariser == "lam":
        lam = config.setdefault("lam", odometer.lam)
        if lam != odometer.lam:
            raise ValueError(
                f"lam is {lam} here and {odometer.lam} in the odometer:"
                " give one, or the same"
            )
    return make_mode(mode, dimension, **config)
