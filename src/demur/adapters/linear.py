"""A linear head without its framework: certify it, then release it.

Shared by the torch and Equinox adapters. No mathematics of its own: the objective, its
bounds and the release are those of `demur.convex`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.errors import NotALinearHead
from demur.convex.errors import NotAtMinimiser
from demur.convex.release import release_head
from demur.convex.sensitivity.losses import HUBER_WIDTH, check_loss
from demur.convex.solving.objective import Objective, objective
from demur.core import validate
from demur.core.bounds import BoundSource, clip_rows
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Ledger

Array = NDArray[np.float64]

# What a float32 model reaches: rounding its parameters moves the gradient by about
# 1e-7. It costs 2 tau n / G of the noise: 1.6 % at n = 8000, so pass less for more.
TAU = 1e-6

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
        """The parameters as `demur.convex` orders them: the bias last, over its scale.

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
class Certificate:
    """A head that was measured against its objective; private like the data."""

    theta: Array
    gradient_norm: float
    n: int
    num_classes: int
    bias_scale: float


def certify(
    head: LinearHead,
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str,
    lam: float,
    norm_bound: float,
    tau: float = TAU,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
) -> Certificate:
    """Measure the gradient of the stated objective on the stated data, in float64.

    Rows are clipped to `norm_bound` first. Above `tau`, rounding errors included, the
    head is refused with `NotAtMinimiser`; nothing is charged here.
    """
    validate.positive(lam=lam, tau=tau, bias_scale=bias_scale, norm_bound=norm_bound)
    num_classes = _classes(head, loss)
    clipped = clip_rows(X, norm_bound).data
    if clipped.shape[1] != head.weight.shape[1]:
        raise ValueError(
            f"X must have {head.weight.shape[1]} columns, as the model; got"
            f" {clipped.shape[1]}. Nothing was spent."
        )
    if not np.isfinite(head.flat()).all():
        raise ValueError("the model holds NaN or infinity. Nothing was spent.")
    scale = bias_scale if head.bias is not None else 0.0
    theta = head.theta(bias_scale)
    stated = objective(
        loss, clipped, np.asarray(y), lam, scale, num_classes, huber_width=huber_width
    )
    _, gradient = stated.value_and_gradient(theta)
    off = stated.rounding(norm_bound, float(np.linalg.norm(theta)))
    norm = float(np.linalg.norm(gradient)) + off
    if not norm <= tau:
        raise NotAtMinimiser(
            f"the gradient norm of the stated objective is {norm:.3g} at this model,"
            f" above tau={tau:g}: it is not the minimiser that the noise would be"
            f" calibrated for. {_diagnosis(stated, theta, gradient, tau)} Nothing was"
            " released, nothing was charged."
        )
    return Certificate(theta, norm, stated.n, num_classes, scale)


def _classes(head: LinearHead, loss: str) -> int:
    """The number of classes, where the head's outputs fit the loss."""
    num_classes = head.outputs if loss == "softmax" else 2
    if loss == "softmax" and head.outputs < 2:
        raise NotALinearHead(
            "loss='softmax' needs a head with a score for each of at least 2 classes;"
            " this one has one score. Use loss='logistic'. Nothing was spent."
        )
    check_loss(loss, num_classes)
    if loss != "softmax" and head.outputs != 1:
        raise NotALinearHead(
            f"loss={loss!r} needs a head with one score; this one has {head.outputs}."
            " Use loss='softmax'. Nothing was spent."
        )
    return num_classes


def _diagnosis(stated: Objective, theta: Array, gradient: Array, tau: float) -> str:
    """What else the model may be the minimiser of: the usual mistakes by name."""
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
    *,
    loss: str,
    lam: float,
    radius: float,
    norm_bound: float,
    epsilon: float,
    delta: float,
    ledger: Ledger | None,
    space: str,
    tau: float,
    bias_scale: float,
    huber_width: float,
    label: str,
    idempotency_key: str | None,
    source: Source | None,
) -> Release[LinearHead]:
    """Certify, then release: a head with noisy parameters and the entry that paid."""
    certified = certify(
        head,
        X,
        y,
        loss=loss,
        lam=lam,
        norm_bound=norm_bound,
        tau=tau,
        bias_scale=bias_scale,
        huber_width=huber_width,
    )
    released = release_head(
        certified.theta,
        loss=loss,
        n=certified.n,
        lam=lam,
        norm_bound=norm_bound,
        radius=radius,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        space=space,
        num_classes=certified.num_classes,
        bias_scale=certified.bias_scale,
        huber_width=huber_width,
        tau=tau,
        gradient_norm=certified.gradient_norm,
        norm_source=BoundSource.ENFORCED,
        assumptions=(TRAINED_ELSEWHERE,),
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
    return Release(head.with_theta(released.value, bias_scale), released.entry)
