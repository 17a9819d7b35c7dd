"""`memory_pair.src.odometer`: the original's capacity and noise, with charges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from demur.compat.memory_pair.errors import CapacityDepleted
from demur.ledger import Draw, Ledger
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.pricing import capacity, odometer_plan
from demur.unlearning.stream import odometer

_GAMMA = 0.05


class PrivacyOdometer(odometer.PrivacyOdometer):
    """m, eps_step, delta_step and sigma_step by the original's formulas."""

    def __init__(
        self,
        eps_total: float,
        delta_total: float,
        lambda_: float,
        delta_B: float = 0.05,
        T: int = 100000,
        gamma: float = _GAMMA,
        *,
        gamma_priv: float | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`gamma_priv` is `gamma` by the name that section 5 gives it."""
        if gamma_priv is not None:
            if gamma not in (_GAMMA, gamma_priv):
                raise ValueError(
                    f"gamma is {gamma} and gamma_priv {gamma_priv}: they are one"
                    " target, give one of them"
                )
            gamma = gamma_priv
        super().__init__(
            eps_total,
            delta_total,
            lambda_,
            delta_B,
            T,
            gamma,
            accounting="basic",
            formula="seed",
            scope="joint",
            ledger=ledger,
        )

    def finalize_with(
        self,
        stats: Mapping[str, Any],
        T_estimate: int,
        *,
        gamma_priv: float | None = None,
    ) -> None:
        """Solve for m over T_estimate events; once."""
        super().finalize_with(stats, T_estimate, gamma_priv=gamma_priv)

    def spend(self, request: int = 1, records: int = 1) -> Draw:
        """Count one deletion, or raise at m + 1."""
        self.require_ready()
        return super().spend(request, records)

    def require_ready(self, deletions: int = 1) -> None:
        """The original's message, and a RuntimeError."""
        try:
            super().require_ready(deletions)
        except CapacityExhausted as error:
            raise CapacityDepleted(
                f"Odometer not finalized or capacity depleted. ({error})",
                reason=error.reason,
                retrain_required=error.retrain_required,
            ) from error

    def _solve_capacity(self) -> int:
        """The largest m within gamma; 0 where not even one is."""
        constants = self.constants
        if constants is None:
            raise RuntimeError("Odometer not finalized.")
        return capacity.largest_count(
            lambda m: odometer_plan.within_regret(self.terms, constants, m, 0.0), self.T
        )

    @property
    def eps_total(self) -> float:
        """The budget's epsilon."""
        return self.epsilon

    @property
    def delta_total(self) -> float:
        """The budget's delta."""
        return self.delta

    @property
    def gamma_priv(self) -> float:
        """The average regret that deletions may lead to."""
        return self.gamma

    @property
    def lambda_(self) -> float:
        """Strong convexity."""
        return self.lam

    @property
    def eps_step(self) -> float | None:
        """eps_total / m, after finalize_with."""
        return self.epsilon_step

    @property
    def eps_spent(self) -> float:
        """The epsilon of the deletions so far."""
        return self.epsilon_spent

    @property
    def L(self) -> float:
        """stats["G"]"""
        return self._stat("G")

    @property
    def D(self) -> float:
        """stats["D"]"""
        return self._stat("D")

    @property
    def c(self) -> float:
        """stats["c"]"""
        return self._stat("c")

    @property
    def C(self) -> float:
        """stats["C"]"""
        return self._stat("C")

    def _stat(self, name: str) -> float:
        if self.constants is None:
            raise AttributeError(f"{name} is known after finalize_with")
        return float(getattr(self.constants, name))
