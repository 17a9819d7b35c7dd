"""Linear heads without their framework: certified on their data, then released.

Shared by the torch and Equinox adapters. No mathematics of its own: the objective, its
bounds and the release are those of `demur.convex`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.errors import NotALinearHead
from demur.convex.errors import NotAtMinimiser
from demur.convex.release import release_head
from demur.convex.sensitivity.form import Fit, HeadForm
from demur.convex.solving.objective import Objective, objective
from demur.core import validate
from demur.core.bounds import BoundSource, clip_rows
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Ledger

Array = NDArray[np.float64]

# What a float32 model reaches: rounding its parameters moves the gradient by about
# 1e-7. It costs 2 tau n / G of the noise: 1.6 % at n = 8000, more for more records.
TRAINED_ELSEWHERE_TAU = 1e-6

TRAINED_ELSEWHERE = (
    "the training outside demur reaches a gradient norm of at most tau on every dataset"
    " it might have met (it was measured on this one)"
)


@dataclass(frozen=True, eq=False)
class LinearHead:
    """Scores x W^T + b: W has a row for each output. The exact values are private."""

    weight: Array
    bias: Array | None
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))

    @property
    def outputs(self) -> int:
        """The number of scores."""
        return int(self.weight.shape[0])

    def theta(self, bias_scale: float) -> Array:
        """The parameters in `demur.convex`'s order: the bias last, over its scale.

        A matrix of one row for each class, or a vector where there is one score.
        """
        theta = self.weight
        if self.bias is not None:
            theta = np.column_stack([self.weight, self.bias / bias_scale])
        return theta if self.outputs > 1 else theta[0]

    def with_theta(self, theta: ArrayLike, bias_scale: float) -> LinearHead:
        """This head with the parameters of `theta`."""
        rows = np.asarray(theta, dtype=np.float64).reshape(self.outputs, -1)
        if self.bias is None:
            return LinearHead(rows, None, self.dtype)
        return LinearHead(rows[:, :-1], bias_scale * rows[:, -1], self.dtype)

    def flat(self) -> Array:
        """All parameters in one vector: W by rows, then b."""
        bias = np.empty(0) if self.bias is None else self.bias
        return np.concatenate([self.weight.reshape(-1), bias])

    def with_flat(self, flat: ArrayLike) -> LinearHead:
        """This head with the parameters of a vector as `flat` gives it."""
        vector = np.asarray(flat, dtype=np.float64).reshape(-1)
        if vector.size != self.flat().size:
            raise ValueError(
                f"the head has {self.flat().size} parameters; got {vector.size}"
            )
        weight = vector[: self.weight.size].reshape(self.weight.shape)
        bias = None if self.bias is None else vector[self.weight.size :]
        return LinearHead(weight, bias, self.dtype)


@dataclass(frozen=True, eq=False)
class MeasuredHead:
    """A head that was measured against its objective; private like the data."""

    theta: Array
    form: HeadForm
    fit: Fit


def certify(
    head: LinearHead,
    X: ArrayLike,
    y: ArrayLike,
    form: HeadForm,
    *,
    tau: float = TRAINED_ELSEWHERE_TAU,
) -> MeasuredHead:
    """The head, its form and the gradient norm that it reaches on the stated data.

    Rows are clipped to the norm bound first, and the gradient is computed in float64.
    Above `tau`, rounding errors included, the head is refused with `NotAtMinimiser`;
    nothing is charged here. The number of classes, and whether there is a bias, are
    those of the head.
    """
    validate.positive(
        lam=form.lam,
        tau=tau,
        bias_scale=form.bias_scale,
        norm_bound=form.norm_bound,
    )
    form = form_of(head, form)
    clipped = clip_rows(X, form.norm_bound).data
    if clipped.shape[1] != head.weight.shape[1]:
        raise ValueError(
            f"X must have {head.weight.shape[1]} columns, as the model; got"
            f" {clipped.shape[1]}. Nothing was spent."
        )
    if not np.isfinite(head.flat()).all():
        raise ValueError("the model holds NaN or infinity. Nothing was spent.")
    theta = head.theta(form.bias_scale)
    stated = objective(form, clipped, np.asarray(y))
    _, gradient = stated.value_and_gradient(theta)
    off = stated.rounding(float(np.linalg.norm(theta)))
    norm = float(np.linalg.norm(gradient)) + off
    if not norm <= tau:
        raise NotAtMinimiser(
            f"the gradient norm of the stated objective is {norm:.3g} at this model,"
            f" above tau={tau:g}: it is not the minimiser that the noise would be"
            f" calibrated for. {_diagnosis(stated, theta, gradient, tau)} Nothing was"
            " released, nothing was charged."
        )
    return MeasuredHead(theta, form, Fit(stated.n, tau=tau, gradient_norm=norm))


def another_way(layers: list[str]) -> str:
    """What to release instead of a model: its last linear layer, or a vector."""
    vector = (
        "the flat vector of a convex model's parameters (demur.convex.release_head with"
        " a DeclaredForm)"
    )
    if not layers:
        return f"Release {vector}."
    return f"Release {layers[-1]} on the features in front of it, or {vector}."


def form_of(head: LinearHead, form: HeadForm) -> HeadForm:
    """The form with the head's own classes and bias; rows are clipped to its bound."""
    softmax = form.loss == "softmax"
    if softmax and head.outputs < 2:
        raise NotALinearHead(
            "loss='softmax' needs a head with a score for each of at least 2 classes;"
            " this one has one score. Use loss='logistic'. Nothing was spent."
        )
    if not softmax and head.outputs != 1:
        raise NotALinearHead(
            f"loss={form.loss!r} needs a head with one score; this one has"
            f" {head.outputs}. Use loss='softmax'. Nothing was spent."
        )
    num_classes = head.outputs if softmax else 2
    # 2 is the default: the caller may have left it out.
    if form.num_classes not in (2, num_classes):
        raise ValueError(
            f"the form has num_classes={form.num_classes}, and the model has"
            f" {num_classes} scores. Nothing was spent."
        )
    return replace(
        form,
        num_classes=num_classes,
        bias_scale=0.0 if head.bias is None else form.bias_scale,
        norm_source=BoundSource.ENFORCED,
    )


def _diagnosis(stated: Objective, theta: Array, gradient: Array, tau: float) -> str:
    """The usual mistakes, by name: what else the model may be the minimiser of."""
    close = max(10.0 * tau, 1e-3 * float(np.linalg.norm(gradient)))
    if stated.bias_scale > 0:
        free = gradient.copy()
        free[..., -1] -= stated.lam * theta[..., -1]
        if np.linalg.norm(free) <= close:
            return (
                "It was trained without a penalty on the bias, and then no bound holds"
                " for the bias: penalise it like the weights."
            )
    of_data = gradient - stated.lam * theta
    squared = float(np.vdot(theta, theta))
    if squared > 0:
        other = -float(np.vdot(of_data, theta)) / squared
        if other > 0 and np.linalg.norm(of_data + other * theta) <= close:
            return (
                f"It is at the minimiser for lam={other:.6g}, not {stated.lam:g}: see"
                " demur.convex.lam_from for other conventions."
            )
    return (
        "Train longer, with the full batch and in float64, on rows clipped to"
        " norm_bound, or declare a larger tau in advance (it adds 2 tau / lam to the"
        " sensitivity)."
    )


def release_linear(
    head: LinearHead,
    X: ArrayLike,
    y: ArrayLike,
    form: HeadForm,
    promise: Promise,
    *,
    tau: float,
    ledger: Ledger | None,
    label: str,
    idempotency_key: str | None,
    source: Source | None,
) -> Release[LinearHead]:
    """A certified head with noisy parameters, and the entry that paid."""
    certified = certify(head, X, y, form, tau=tau)
    released = release_head(
        certified.theta,
        certified.form,
        promise,
        certified.fit,
        ledger=ledger,
        label=label,
        assumptions=(TRAINED_ELSEWHERE,),
        idempotency_key=idempotency_key,
        source=source,
    )
    noisy = head.with_theta(released.value, certified.form.bias_scale)
    return Release(noisy, released.entry)
