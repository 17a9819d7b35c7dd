"""`memory_pair.src.memory_pair`: the state machine around the original's learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from demur.compat.memory_pair.src.calibrator import Calibrator, as_dict
from demur.unlearning.models.base import Array
from demur.unlearning.models.lbfgs import LimitedMemoryBFGS
from demur.unlearning.models.seed import Seed
from demur.unlearning.pricing.calibrator import CalibStats
from demur.unlearning.stream import memory_pair
from demur.unlearning.stream.metrics import Metrics
from demur.unlearning.stream.odometer import PrivacyOdometer
from demur.unlearning.stream.phase import Phase as Phase


class MemoryPair:
    """Online L-BFGS with the original's deletion step. No guarantee."""

    def __init__(
        self,
        dim: int,
        odometer: PrivacyOdometer,
        calibrator: Calibrator | None = None,
        *,
        step: float = 1.0,
        pairs: int | None = None,
        safeguard: bool = True,
        comparator: ArrayLike | None = None,
    ) -> None:
        """`step` and `pairs` (as many as features) are the original's.

        The safeguard shrinks a step that would overshoot, and keeps the weights within
        `calibrator.D_cap`; `unlearning.models.seed` has the reasons. Without it inserts
        are the original's, and diverge. Regret is measured against `comparator`
        (default: predicting 0).
        """
        self.calibrator = calibrator or Calibrator()
        if not isinstance(self.calibrator, Calibrator):
            raise TypeError(
                "calibrator must be a Calibrator of demur.compat.memory_pair; got"
                f" {type(calibrator).__module__}.{type(calibrator).__qualname__}"
            )
        self.odometer = odometer
        self._seed = Seed(
            dim,
            step=step,
            m_max=pairs,
            lam=odometer.lam,
            safeguard=safeguard,
            radius=self.calibrator.D_cap,
        )
        self._inner = memory_pair.MemoryPair(
            dim,
            odometer,
            self.calibrator._inner,
            mode=self._seed,
            calibration_records="keep",
            metrics=True,
            comparator=comparator,
        )

    @property
    def theta(self) -> Array:
        """The parameters."""
        return self._seed.theta

    @property
    def lbfgs(self) -> LimitedMemoryBFGS:
        """The stored pairs."""
        return self._seed.lbfgs

    @property
    def phase(self) -> Phase:
        """CALIBRATION, LEARNING or INTERLEAVING."""
        return self._inner.phase

    @property
    def N_star(self) -> int | None:
        """The sample complexity, after finalize_calibration."""
        return self._inner.N_star

    @property
    def ready_to_predict(self) -> bool:
        """inserts_seen >= N_star."""
        return self._inner.ready_to_predict

    @property
    def can_predict(self) -> bool:
        """The same."""
        return self._inner.can_predict

    @property
    def events_seen(self) -> int:
        """Inserts and deletes."""
        return self._inner.events_seen

    @property
    def inserts_seen(self) -> int:
        """Inserts, those of calibration included."""
        return self._inner.inserts_seen

    @property
    def deletes_seen(self) -> int:
        """Deletes."""
        return self._inner.deletes_seen

    def lbfgs_bounds(self) -> tuple[float, float]:
        """(c, C) of the stored curvature."""
        return self._inner.lbfgs_bounds()

    def calibrate_step(self, x: ArrayLike, y: float) -> float:
        """Learn, and log gradient and parameters to the calibrator."""
        return _number(self._inner.calibrate_step(x, y))

    def finalize_calibration(
        self,
        gamma: float | Mapping[str, Any] | None = None,
        *,
        gamma_learn: float | None = None,
    ) -> dict[str, Any]:
        """Begin LEARNING; the stats, for `odometer.finalize_with(stats, ...)`.

        Takes gamma_learn (also by that name), or the stats of `calibrator.finalize`.
        """
        stats = None
        if isinstance(gamma, Mapping):
            stats = CalibStats.of(gamma)
            gamma = self.calibrator._gamma if gamma_learn is None else None
        targets = [g for g in (gamma, gamma_learn) if g is not None]
        if len(targets) != 1:
            raise TypeError(
                "gamma_learn must be given once: as a number, or by its name beside"
                " stats that this model's calibrator did not make. Nothing has changed."
            )
        return as_dict(self._inner.finalize_calibration(targets[0], stats))

    def insert(self, x: ArrayLike, y: float) -> float:
        """Learn; the prediction from before."""
        return _number(self._inner.insert(x, y))

    def delete(self, x: ArrayLike, y: float) -> None:
        """The original's deletion step, with noise, if the odometer has one left."""
        self._inner.delete(x, y)

    def metrics(self) -> Metrics:
        """The metrics of the original's section 8."""
        return self._inner.metrics()


def _number(prediction: float | None) -> float:
    assert prediction is not None  # predictions are flagged, never withheld
    return prediction
