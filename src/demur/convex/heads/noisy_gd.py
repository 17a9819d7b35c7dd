r"""Noisy full-batch gradient descent: exact GDP, and no lam in the noise.

    v <- momentum v - eta (grad F(theta) + sigma N)
    theta <- project(theta + v),                        T steps from theta = v = 0

A step's mean gradient moves by at most G(r) / n at every theta of the projection ball
(`losses.grad_diff_bound` with that radius; the regulariser does not see the data). All
records take part in every step, so there is no sampling to account for: T adaptive
Gaussian steps of mu_t = G / (n sigma) are exactly sqrt(T) mu_t-GDP (Dong, Roth, Su
2022, Corollary 3.3). The last iterate is released; all noisy gradients are paid for, so
that momentum costs nothing.

Each step adds integer noise on a grid like any other Gaussian release, from a stream of
its own under the entry's key. What rounding the gradient's sum can add is charged too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from demur.convex.errors import DataChanged
from demur.convex.release import UNPROTECTED
from demur.convex.sensitivity.curves import Breakdown, dominating_curve
from demur.convex.sensitivity.form import HeadForm, ball_of
from demur.convex.sensitivity.gradient_bounds import (
    full_replacement_bound,
    grad_diff_bound,
    minimiser_radius,
    smoothness,
)
from demur.convex.solving.objective import Objective
from demur.convex.solving.streamed_objective import StreamedObjective
from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import ReplaceOne
from demur.core.cost import Cost, Fixed, GaussianOverBalls, Term
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.digest import digest_of_array
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.core.release import Release
from demur.core.rounding import down
from demur.core.sensitivity import Sensitivity, Table
from demur.ledger import Ledger, ledger_for
from demur.mechanisms import Gaussian

Array = NDArray[np.float64]

MOMENTUM = 0.9
# Far beyond any useful head; keeps the rounding of a score small where lam is 0.
_LARGEST_THETA = 1e4


@dataclass(frozen=True)
class Descent:
    """A public plan: number and length of the steps, theta's ball, and the noise."""

    steps: int
    learning_rate: float
    momentum: float
    theta_radius: float
    step: Gaussian
    parts: Breakdown

    def declaration(self) -> Declaration:
        """All T steps as one charge: mu grows by sqrt(T), samplers' distances by T."""
        of_step = self.step.declaration()
        root = math.sqrt(self.steps) * (1.0 + 2.0**-50)
        terms: list[Term] = []
        for term in of_step.cost.terms:
            match term:
                case GaussianOverBalls(space, curve, sigma):
                    terms.append(GaussianOverBalls(space, curve, down(sigma / root)))
                case Fixed(unit, GaussianEvent(multiplier=z)):
                    terms.append(Fixed(unit, GaussianEvent(down(z / root))))
                case _:
                    raise AssertionError(f"not a Gaussian term: {term}")
        return replace(
            of_step,
            cost=Cost(tuple(terms)),
            sampler_distance=of_step.sampler_distance * self.steps * (1.0 + 2.0**-50),
            fingerprint=self.fingerprint,
            draws=self.steps,  # on the gradient at each step
        )

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw the steps of this plan."""
        numbers = (self.steps, self.learning_rate, self.momentum, self.theta_radius)
        return fingerprint_of("descent", self.step.fingerprint, *map(float, numbers))


def plan_descent(
    form: HeadForm,
    promise: Promise,
    *,
    n: int,
    dimension: int,
    steps: int,
    learning_rate: float | None = None,
    momentum: float = MOMENTUM,
    rounding: Callable[[float], float] = lambda theta_norm: 0.0,
    classes_public: bool = True,
    assumptions: tuple[str, ...] = (),
) -> Descent:
    """The least noise that makes `steps` steps meet the promise.

    `rounding(|theta|)` bounds the rounding error of a computed gradient. Without
    `classes_public` (they were read off the labels) nothing is said at `ReplaceOne`.
    """
    validate.count(n=n, steps=steps)
    unit = ball_of(promise)
    inside = _LARGEST_THETA
    if form.lam > 0:
        inside = min(inside, minimiser_radius(form))
    rounded = 2.0 * rounding(inside)

    def moved(difference: float) -> float:
        return difference / n * (1.0 + 1e-9) + rounded

    def gradient(r: float) -> float:
        return grad_diff_bound(form, r, theta_radius=inside)

    radius, largest = unit.radius, 2.0 * form.norm_bound
    curve = dominating_curve(
        lambda r: moved(gradient(r)), largest=largest, exact_at=radius
    )
    table: Table = {unit.space: curve}
    full = None
    if classes_public:
        full = moved(full_replacement_bound(form, theta_radius=inside))
        table = {unit.space: curve, ReplaceOne(): full}
    root = math.sqrt(steps)
    parts = Breakdown(
        loss=form.loss,
        n=n,
        lam=form.lam,
        norm_bound=form.norm_bound,
        minimiser_radius=inside,
        gradient_difference=gradient(radius),
        from_record=root * (curve(radius) - rounded),
        from_solver=root * rounded,
        total=root * curve(radius),
        same_label=root * curve(largest),
        full_replacement=None if full is None else root * full,
    )
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    sigma = curve(radius) * root / mu * (1.0 + 1e-12)
    rate = learning_rate
    if rate is None:
        rate = 1.0 / (smoothness(form) + form.lam)
    validate.positive(learning_rate=rate)
    validate.probability(momentum=momentum)
    if momentum >= 1.0:
        raise ValueError(f"momentum must be below 1; got {momentum}")
    for _ in range(8):
        step = Gaussian(
            sigma,
            Sensitivity.of(table),
            dimension,
            f"noisy gradient descent on a {form.loss} head, {steps} steps",
            (form.bound,),
            UNPROTECTED,
            assumptions,
        )
        plan = Descent(steps, rate, momentum, inside, step, parts)
        event = plan.declaration().cost.at(unit)
        assert isinstance(event, GaussianEvent)
        # A margin far above rounding: the ledger compares exact squares.
        if 1.0 / event.multiplier <= mu * (1.0 - 1e-13):
            return plan
        # The grid of a step costs a little as well.
        sigma *= (1.0 / event.multiplier) / mu * (1.0 + 1e-12)
    raise ValueError(f"no noise found for {promise}. Nothing was spent.")


def descend(
    plan: Descent,
    objective: Objective | StreamedObjective,
    *,
    ledger: Ledger | None = None,
    label: str = "noisy gradient descent",
    source: Source | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Release[Array]:
    """The last of the plan's noisy steps and the entry that paid for all of them."""
    # The data decide the noisy gradients, so the entry is bound to the data.
    digest = objective.digest()
    with ledger_for(ledger, plan.declaration()).paid(
        plan, label=label, digest=digest, source=source
    ) as payment:
        theta, velocity = np.zeros(objective.shape), np.zeros(objective.shape)
        for index in range(plan.steps):
            gradient = _gradient(objective, theta, payment.entry)
            noisy = plan.step.apply(
                gradient, payment.key, draw=index, paid_as=plan.fingerprint
            )
            velocity = plan.momentum * velocity - plan.learning_rate * noisy
            theta = theta + velocity
            norm = float(np.linalg.norm(theta))
            if norm > plan.theta_radius:
                theta *= plan.theta_radius / norm
            if progress is not None:
                progress(index + 1, float(index + 1) / plan.steps)
        if isinstance(objective, Objective) and objective.digest() != digest:
            raise _changed(payment.entry)  # a streamed one compares at each pass
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
        raise _changed(entry) from error


def _changed(entry: Entry) -> DataChanged:
    return DataChanged(
        f"the rows changed, or could not be read any more, after entry {entry.id} was"
        " charged for them. It stays spent, and nothing was released. Fit again on rows"
        " that nobody changes: that is another entry."
    )
