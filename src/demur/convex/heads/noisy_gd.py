r"""Noisy full-batch gradient descent: exact GDP, and no lam in the noise.

    v <- momentum v - eta (grad F(theta) + sigma N)
    theta <- project(theta + v),                        T steps from theta = v = 0

A step's mean gradient moves by at most G(r) / n at every theta of the projection ball
(`losses.grad_diff_bound` with that radius; the regulariser does not see the data). All
records take part in every step, so there is no sampling to account for: T adaptive
Gaussian steps of mu_t = G / (n sigma) are exactly sqrt(T) mu_t-GDP (Dong, Roth, Su
2022, Corollary 3.3). The last iterate is released; all noisy gradients are paid for, so
that momentum is free.

Each step adds integer noise on a grid like any other Gaussian release, from a stream of
its own under the entry's key. What rounding the gradient's sum can add is charged too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from demur.convex.errors import DataChanged
from demur.convex.sensitivity.curves import Breakdown, dominating_curve
from demur.convex.sensitivity.losses import (
    HUBER_WIDTH,
    full_replacement_bound,
    grad_diff_bound,
    minimiser_radius,
    smoothness,
)
from demur.convex.solving.objective import Objective
from demur.convex.solving.streamed_objective import StreamedObjective
from demur.core import validate
from demur.core.accounting import calibrate
from demur.core.accounting.events import Gaussian as GaussianEvent
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.bounds import Bound
from demur.core.cost import Cost, Fixed, GaussianOverBalls, Term
from demur.core.declaration import Declaration
from demur.core.digest import digest_of_array
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.release import Release
from demur.core.rounding import down
from demur.core.sensitivity import Sensitivity, Table
from demur.ledger import Ledger
from demur.mechanisms import Gaussian

Array = NDArray[np.float64]

MOMENTUM = 0.9
# Far beyond any useful head; keeps the rounding of a score small where lam is 0.
_LARGEST_THETA = 1e4


@dataclass(frozen=True)
class Descent:
    """A public plan: how many steps, how long, inside which ball, with what noise."""

    steps: int
    learning_rate: float
    momentum: float
    theta_radius: float
    step: Gaussian
    parts: Breakdown

    def declaration(self) -> Declaration:
        """All T steps as one charge: mu grows by sqrt(T), samplers' distances by T."""
        one = self.step.declaration()
        root = math.sqrt(self.steps) * (1.0 + 2.0**-50)
        terms: list[Term] = []
        for term in one.cost.terms:
            match term:
                case GaussianOverBalls(space, curve, sigma):
                    terms.append(GaussianOverBalls(space, curve, down(sigma / root)))
                case Fixed(unit, GaussianEvent(multiplier=z)):
                    terms.append(Fixed(unit, GaussianEvent(down(z / root))))
                case _:
                    raise AssertionError(f"not a Gaussian term: {term}")
        return replace(
            one,
            cost=Cost(tuple(terms)),
            sampler_distance=one.sampler_distance * self.steps * (1.0 + 2.0**-50),
            interactive=True,  # one draw for each step, on the gradient there
        )


def plan_descent(
    loss: str,
    *,
    n: int,
    dimension: int,
    lam: float,
    norm_bound: float,
    radius: float,
    epsilon: float,
    delta: float,
    space: str,
    steps: int,
    learning_rate: float | None = None,
    momentum: float = MOMENTUM,
    num_classes: int = 2,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
    rounding: Callable[[float], float] = lambda theta_radius: 0.0,
    replace_one: bool = True,
    bounds: tuple[Bound, ...] = (),
    unprotected: tuple[str, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> Descent:
    """The least noise that makes `steps` steps (epsilon, delta)-private."""
    validate.count(n=n, steps=steps)
    validate.non_negative(lam=lam)
    inside = _LARGEST_THETA
    if lam > 0:
        least = minimiser_radius(
            loss,
            lam=lam,
            num_classes=num_classes,
            norm_bound=norm_bound,
            bias_scale=bias_scale,
            huber_width=huber_width,
        )
        inside = min(inside, least)
    rounded = 2.0 * rounding(inside)

    def moved(difference: float) -> float:
        return difference / n * (1.0 + 1e-9) + rounded

    def gradient(r: float) -> float:
        return grad_diff_bound(
            loss,
            r,
            norm_bound=norm_bound,
            lam=None,
            num_classes=num_classes,
            bias_scale=bias_scale,
            huber_width=huber_width,
            theta_radius=inside,
        )

    curve = dominating_curve(
        lambda r: moved(gradient(r)), largest=2.0 * norm_bound, exact_at=radius
    )
    table: Table = {space: curve}
    full = None
    if replace_one:
        full = moved(
            full_replacement_bound(
                loss,
                norm_bound=norm_bound,
                lam=None,
                num_classes=num_classes,
                bias_scale=bias_scale,
                huber_width=huber_width,
                theta_radius=inside,
            )
        )
        table = {space: curve, ReplaceOne(): full}
    root = math.sqrt(steps)
    parts = Breakdown(
        loss=loss,
        n=n,
        lam=lam,
        norm_bound=norm_bound,
        minimiser_radius=inside,
        gradient_difference=gradient(radius),
        from_record=root * (curve(radius) - rounded),
        from_solver=root * rounded,
        total=root * curve(radius),
        same_label=root * curve(2.0 * norm_bound),
        full_replacement=None if full is None else root * full,
    )
    mu = calibrate.gaussian_mu(epsilon, calibrate.ideal_delta(delta))
    sigma = curve(radius) * root / mu * (1.0 + 1e-12)
    rate = learning_rate
    if rate is None:
        rate = 1.0 / (
            smoothness(
                loss,
                norm_bound=norm_bound,
                bias_scale=bias_scale,
                huber_width=huber_width,
            )
            + lam
        )
    validate.positive(learning_rate=rate)
    validate.probability(momentum=momentum)
    if momentum >= 1.0:
        raise ValueError(f"momentum must be below 1; got {momentum}")
    for _ in range(8):
        step = Gaussian(
            sigma,
            Sensitivity.of(table),
            dimension,
            f"noisy gradient descent on a {loss} head, {steps} steps",
            bounds,
            unprotected,
            assumptions,
        )
        plan = Descent(steps, rate, momentum, inside, step, parts)
        event = plan.declaration().cost.at(Ball(radius, space=space))
        assert isinstance(event, GaussianEvent)
        # A margin far above rounding: the ledger compares exact squares.
        if 1.0 / event.multiplier <= mu * (1.0 - 1e-13):
            return plan
        # The grid of a step costs a little as well.
        sigma *= (1.0 / event.multiplier) / mu * (1.0 + 1e-12)
    raise ValueError(
        f"no noise found for epsilon={epsilon}, delta={delta}, radius={radius}"
    )


def descend(
    plan: Descent,
    objective: Objective | StreamedObjective,
    ledger: Ledger,
    *,
    label: str,
    source: Source | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Release[Array]:
    """Charge for all steps, then take them; the last iterate and its entry."""
    # The data decide the noisy gradients, so they are what the entry is bound to.
    with ledger.paid(
        plan, label=label, digest=objective.digest(), source=source
    ) as payment:
        theta, velocity = np.zeros(objective.shape), np.zeros(objective.shape)
        for index in range(plan.steps):
            gradient = _gradient(objective, theta, payment.entry)
            noisy = plan.step.apply(gradient, payment.key, draw=index)
            velocity = plan.momentum * velocity - plan.learning_rate * noisy
            theta = theta + velocity
            norm = float(np.linalg.norm(theta))
            if norm > plan.theta_radius:
                theta *= plan.theta_radius / norm
            if progress is not None:
                progress(index + 1, float(index + 1) / plan.steps)
        payment.released(digest_of_array(theta))
    return Release(theta, payment.entry)


def _gradient(
    objective: Objective | StreamedObjective, theta: Array, entry: Entry
) -> Array:
    try:
        return objective.value_and_gradient(theta)[1]
    except (DataChanged, ValueError) as error:
        if isinstance(objective, Objective):
            raise
        raise DataChanged(
            f"the rows changed, or could not be read any more, after entry {entry.id}"
            " was charged for them. It stays spent, and nothing was released. Fit again"
            " on rows that nobody changes: that is another entry."
        ) from error
