"""Metrics of a stream: theoretical and empirical numbers, side by side.

`avg_regret_theory` is the bound on the rounds and deletions so far, (R_ins + R_del) /
rounds, where there is a theorem (`ogd`); `pricing.regret` has the proof. Under
`formula="seed"` it is the seed's own expression, from the end of calibration on. That
one is *no* bound: sqrt(c C) has units, so that it falls below the measured regret where
features are small.

Empirical regret needs a comparator u: sum of loss(w_t) - loss(u) over the stream. The
best u in hindsight takes the records, which a model that forgets must not keep. So u
is given by the caller (default zero), and the number is a lower bound on the regret
against the best.

These numbers depend on deleted records too: they are diagnostics for the operator, not
part of the certified state, and are off by default.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from demur.unlearning.models.base import Array
from demur.unlearning.pricing import odometer_plan, stream_constants
from demur.unlearning.pricing.calibrator import FEWEST_POINTS
from demur.unlearning.stream.losses import Loss

if TYPE_CHECKING:
    from demur.unlearning.stream.memory_pair import MemoryPair


@dataclass(frozen=True)
class Metrics:
    """Theoretical and empirical numbers of one memory pair; None where unknown."""

    phase: str
    mode: str
    N_star_theory: int | None
    m_theory: int | None
    eps_step_theory: float | None
    delta_step_theory: float | None
    sigma_step_theory: float | None
    G_hat: float | None
    D_hat: float | None
    c_hat: float | None
    C_hat: float | None
    avg_regret_theory: float | None
    avg_regret_empirical: float | None
    avg_loss_empirical: float | None
    comparator: str
    eps_spent: float
    capacity_remaining: int
    gamma_learn: float | None
    gamma_priv: float
    quantile: float
    D_cap: float
    events_seen: int
    inserts_seen: int
    deletes_seen: int

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, for a log."""
        return asdict(self)


@dataclass
class LossTotals:
    """Running sums of losses: the model's, and the comparator's."""

    on: bool
    loss: Loss
    comparator: Array | None
    of_model: float = 0.0
    of_comparator: float = 0.0
    events: int = 0

    @classmethod
    def of(
        cls, loss: Loss, dimension: int, comparator: ArrayLike | None, *, on: bool
    ) -> Self:
        """Empty totals; a comparator must have `dimension` finite entries."""
        if comparator is None:
            return cls(on, loss, None)
        u = np.array(comparator, dtype=np.float64)
        if u.shape != (dimension,) or not np.isfinite(u).all():
            raise ValueError(f"comparator must be {dimension} finite numbers")
        return cls(True, loss, u)

    def add(self, prediction: float, penalty: float, x: Array, y: float) -> None:
        """One round: its loss is the data's and the regulariser's."""
        u = self.comparator
        other = self.loss.value(self.loss.of_parameters(u, x, y), y)
        self.of_model += self.loss.value(prediction, y) + penalty
        self.of_comparator += other + (0.0 if u is None else self.loss.penalty(u))
        self.events += 1

    @property
    def average_regret(self) -> float | None:
        """Against the comparator; None before the first round."""
        if not self.events:
            return None
        return (self.of_model - self.of_comparator) / self.events


def metrics_of(model: MemoryPair, totals: LossTotals) -> Metrics:
    """The numbers of a memory pair as they stand."""
    odometer = model.odometer
    # Estimates that were never made, or were deleted, are defaults: not shown.
    estimated = model.calibrator.observations >= FEWEST_POINTS
    stats = model.stats if estimated or model.recalibrations else None
    plan = odometer.plan
    return Metrics(
        phase=model.phase.name,
        mode=model.mode.name,
        N_star_theory=model.N_star,
        m_theory=plan.m if plan else None,
        eps_step_theory=odometer.epsilon_step,
        delta_step_theory=odometer.delta_step,
        sigma_step_theory=odometer.sigma_step,
        G_hat=stats.G if stats else None,
        D_hat=stats.D if stats else None,
        c_hat=stats.c if stats else None,
        C_hat=stats.C if stats else None,
        avg_regret_theory=_regret_in_theory(model),
        avg_regret_empirical=totals.average_regret,
        avg_loss_empirical=totals.of_model / totals.events if totals.events else None,
        comparator="zero" if totals.comparator is None else "given",
        eps_spent=odometer.epsilon_spent,
        capacity_remaining=odometer.capacity_remaining,
        gamma_learn=model.gamma_learn,
        gamma_priv=odometer.gamma,
        quantile=model.calibrator.quantile,
        D_cap=model.calibrator.D_cap,
        events_seen=model.events_seen,
        inserts_seen=model.inserts_seen,
        deletes_seen=model.deletes_seen,
    )


def _regret_in_theory(model: MemoryPair) -> float | None:
    """The average regret that a theorem, or the seed, allows so far."""
    odometer, rounds = model.odometer, model.inserts_seen
    sizes, plan = odometer.constants, odometer.plan
    if not rounds:
        return None
    if sizes is not None and plan is not None and sizes.descent is not None:
        return stream_constants.average_regret(
            sizes, odometer.capacity_used, plan.z, rounds, odometer.delta_B
        )
    if odometer.terms.formula != "seed" or model.stats is None:
        return None
    if sizes is None:
        sizes = stream_constants.constants_from_stats(model.stats, odometer.lam)
    terms = odometer.terms.over(rounds)
    return odometer_plan.seed_average_regret(terms, sizes, odometer.capacity_used)
