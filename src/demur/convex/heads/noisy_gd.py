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
from demur.convex.sensitivity.curves import Breakdown, at_unit, row_space, unit_table
from demur.convex.sensitivity.form import HeadForm, unit_of
from demur.convex.sensitivity.gradient_bounds import (
    full_replacement_bound,
    grad_diff_bound,
    gradient_norm_bound,
    minimiser_radius,
    smoothness,
)
from demur.convex.solving.objective import Objective
from demur.convex.solving.streamed_objective import StreamedObjective
from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.cost import Cost, Fixed, GaussianOverBalls, Term
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.digest import digest_of_array
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.core.release import Release
from demur.core.rounding import down
from demur.ledger import Ledger, ledger_for
from demur.mechanisms import Gaussian
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

MOMENTUM = 0.9
# Far beyond any useful head; keeps the rounding of a score small where lam is 0.
LARGEST_THETA = 1e4


@dataclass(frozen=True)
class Schedule:
    """The steps of a descent, all public.

    `learning_rate` is by default 1 / the largest curvature. `theta_radius` bounds
    |theta|: every step is projected onto that ball, and the smaller it is, the less a
    record can move a gradient.
    """

    steps: int
    learning_rate: float | None = None
    momentum: float = MOMENTUM
    theta_radius: float | None = None

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        validate.probability(momentum=self.momentum)
        if self.momentum >= 1.0:
            raise ValueError(f"momentum must be below 1; got {self.momentum}")
        for name in ("learning_rate", "theta_radius"):
            if getattr(self, name) is not None:
                validate.positive(**{name: getattr(self, name)})

    def inside(self, form: HeadForm) -> float:
        """The radius of the ball that theta is kept in."""
        inside = min(LARGEST_THETA, self.theta_radius or LARGEST_THETA)
        return min(inside, minimiser_radius(form)) if form.lam > 0 else float(inside)

    def rate(self, form: HeadForm) -> float:
        """The length of a step."""
        return self.learning_rate or 1.0 / (smoothness(form) + form.lam)


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
    schedule: Schedule,
    *,
    n: int,
    dimension: int,
    rounding: Callable[[float], float] = lambda theta_norm: 0.0,
    classes_public: bool = True,
    space: RowSpace | None = None,
    assumptions: tuple[str, ...] = (),
) -> Descent:
    """The least noise that makes the steps of a schedule meet the promise.

    `rounding(|theta|)` bounds the rounding error of a computed gradient. Without
    `classes_public` (they were read off the labels) nothing is said at `ReplaceOne`.
    `space` is the space of the rows, by default the ball's own.
    """
    validate.count(n=n)
    steps = schedule.steps
    unit = unit_of(promise)
    inside = schedule.inside(form)
    rounded = 2.0 * rounding(inside)

    def moved(difference: float) -> float:
        return difference / n * (1.0 + 1e-9) + rounded

    def gradient(r: float) -> float:
        return grad_diff_bound(form, r, theta_radius=inside)

    full = None
    if classes_public:
        full = full_replacement_bound(form, theta_radius=inside)
    table, at = unit_table(
        unit, moved, gradient, full, norm_bound=form.norm_bound, space=space
    )
    root = math.sqrt(steps)
    parts = Breakdown(
        loss=form.loss,
        n=n,
        lam=form.lam,
        norm_bound=form.norm_bound,
        minimiser_radius=inside,
        gradient_difference=at_unit(unit, gradient, full, row_space(unit, space)),
        from_record=root * (at - rounded),
        from_solver=root * rounded,
        total=root * at,
        same_label=root * moved(gradient(2.0 * form.norm_bound)),
        full_replacement=None if full is None else root * moved(full),
    )
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    sigma = at * root / mu * (1.0 + 1e-12)
    rate = schedule.rate(form)
    for _ in range(8):
        step = Gaussian(
            sigma,
            table,
            dimension,
            f"noisy gradient descent on a {form.loss} head, {steps} steps",
            (form.bound,),
            UNPROTECTED,
            assumptions,
        )
        plan = Descent(steps, rate, schedule.momentum, inside, step, parts)
        event = plan.declaration().cost.at(unit)
        assert isinstance(event, GaussianEvent)
        # A margin far above rounding: the ledger compares exact squares.
        if 1.0 / event.multiplier <= mu * (1.0 - 1e-13):
            largest = gradient_norm_bound(form, theta_radius=inside)
            step.check_bound(largest + form.lam * inside)
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
            # The data were paid for, and each gradient is computed from them.
            key = payment.key.part(plan.step.digest(gradient))
            noisy = plan.step.apply(gradient, key, draw=index, paid_as=plan.fingerprint)
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
