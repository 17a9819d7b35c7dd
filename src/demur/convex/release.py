"""Release of a convex head: the noise it needs, the charge, the noisy parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.errors import NotAtMinimiser
from demur.convex.sensitivity import radius_origin
from demur.convex.sensitivity.curves import (
    HeadSensitivity,
    declared_sensitivity,
    erm_sensitivity,
)
from demur.convex.sensitivity.form import DeclaredForm, Fit, HeadForm, unit_of
from demur.convex.sensitivity.gradient_bounds import minimiser_radius
from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, real_array
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Budget, Ledger, LedgerLeftBehind, ledger_or_in_memory
from demur.mechanisms import Gaussian
from demur.preprocessing.spaces import RowSpace

Array = NDArray[np.float64]

UNPROTECTED = (
    "labels, the number of records of each class and n (at a ball)",
    "hyper-parameters and the norm bound, which are public",
)
FIXED_IN_ADVANCE = (
    "lam, tau, the radius, the norm bound and every other hyper-parameter were fixed"
    " without looking at the data, or charged to the ledger"
)
UNCERTIFIED = (
    "the released parameters minimise the stated objective to a gradient norm of at"
    " most tau (conditional: the data were not given, so this was not checked)"
)
DECLARED_LOSS = (
    "the declared Lipschitz constant holds for the caller's own loss, which is convex"
    " with every coordinate regularised"
)


def head_ledger(ledger: Ledger | LedgerLeftBehind | None, promise: Promise) -> Ledger:
    """The ledger given, or one in memory for this release alone ("not recorded")."""
    budget = Budget(promise.epsilon, promise.delta)
    return ledger_or_in_memory(ledger, budget, unit=promise.unit)


@dataclass(frozen=True)
class HeadPlan:
    """The noise of one head, fixed before the head is trained, and its sensitivity."""

    promise: Promise
    sensitivity: HeadSensitivity
    mechanism: Gaussian

    def release(
        self,
        theta: Array,
        *,
        ledger: Ledger | LedgerLeftBehind | None,
        label: str,
        idempotency_key: str | None = None,
        source: Source | None = None,
    ) -> Release[Array]:
        """A noisy copy of the flat `theta`, and the entry that paid for it."""
        return self.mechanism.release(
            theta,
            ledger=head_ledger(ledger, self.promise),
            label=label,
            idempotency_key=idempotency_key,
            source=source,
        )


def plan_head(
    form: HeadForm | DeclaredForm,
    promise: Promise,
    fit: Fit,
    *,
    dimension: int,
    space: RowSpace | None = None,
    bounds: tuple[Bound, ...] = (),
    assumptions: tuple[str, ...] = (),
) -> HeadPlan:
    """The least Gaussian noise with which a head of this form meets the promise.

    `space` is the space of the rows, by default the ball's own.
    """
    unit = unit_of(promise)
    if isinstance(form, DeclaredForm):
        sensitivity = declared_sensitivity(form, unit, fit, space=space)
        constant = Bound(form.lz, BoundSource.DECLARED, what="Lz of the loss")
        bounds = (*bounds, constant)
        assumptions = (*assumptions, DECLARED_LOSS)
    else:
        sensitivity = erm_sensitivity(form, unit, fit, space=space)
    mechanism = Gaussian.calibrated(
        epsilon=promise.epsilon,
        delta=promise.delta,
        sensitivity=sensitivity.table,
        unit=unit,
        dimension=dimension,
        name=f"a {form.loss} head with Gaussian noise",
        bounds=(form.bound, *bounds),
        unprotected=UNPROTECTED,
        assumptions=assumptions,
    )
    if isinstance(form, HeadForm):
        # No minimiser is refused for its size: that would tell something about it.
        mechanism.check_bound(minimiser_radius(form) + fit.tau / form.lam)
    return HeadPlan(promise, sensitivity, mechanism)


def release_head(
    theta: ArrayLike,
    form: HeadForm | DeclaredForm,
    promise: Promise,
    fit: Fit,
    *,
    ledger: Ledger | None = None,
    label: str = "a convex head",
    bounds: tuple[Bound, ...] = (),
    assumptions: tuple[str, ...] = (),
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Release[Array]:
    """A noisy copy of `theta`, the minimiser of the form's objective, and its entry.

    - `form` is what was minimised: a `HeadForm`, or a `DeclaredForm` for a convex loss
      of your own. With a bias the last coordinate of theta multiplies `bias_scale`.
    - `promise` is met at its unit, a ball or ReplaceOne(); the entry also has the cost
      at every other radius and at a full replacement.
    - `fit` says on how many records, and how near to the minimiser: above `fit.tau` the
      head is refused, and without a measured `fit.gradient_norm` the statement is
      conditional on it.
    - `bounds` and `assumptions` are what else the statement rests on, such as a radius
      that was estimated.

    Without a ledger the charge goes to one in memory, and the statement says "not
    recorded".

    >>> from demur import Ball, Promise
    >>> form = HeadForm("logistic", lam=0.01, norm_bound=1.0)
    >>> promise = Promise(Ball(0.3, space="records"), epsilon=1.0, delta=1e-6)
    >>> fit = Fit(n=5000, gradient_norm=2e-10)
    >>> private = release_head([0.5, -0.2, 0.1], form, promise, fit)
    >>> private.value.shape
    (3,)
    >>> "Not recorded" in private.statement()
    True
    """
    values = real_array("theta", theta)
    if not values.size:
        raise ValueError("theta must not be empty. Nothing was spent.")
    unit = unit_of(promise)
    radius = unit.radius if isinstance(unit, Ball) else None
    validate.positive(tau=fit.tau)
    if fit.gradient_norm is not None and fit.gradient_norm > fit.tau:
        raise NotAtMinimiser(
            f"the gradient norm of the stated objective is {fit.gradient_norm:.3g} at"
            f" this head, above tau={fit.tau:g}: it is not the minimiser that the noise"
            " is calibrated for. Train longer in float64 with the bias regularised,"
            " check lam, or declare a larger tau in advance. Nothing was released,"
            " nothing was charged."
        )
    conditional = () if fit.gradient_norm is not None else (UNCERTIFIED,)
    plan = plan_head(
        form,
        promise,
        fit,
        dimension=values.size,
        bounds=bounds,
        assumptions=(
            FIXED_IN_ADVANCE,
            *radius_origin.conditions(radius),
            *conditional,
            *assumptions,
        ),
    )
    return plan.release(
        values,
        ledger=ledger,
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
