"""Private copies of trained heads, from their parameters or from a model.

Every release takes these keywords beside the original's:

- `ledger`, `space`, `label`: the ledger to charge, and what to call the record metric
  and the release there. Without a ledger one in memory is charged.
- `loss`, `B`: the head's loss and the norm bound of its rows. With them the sensitivity
  is that of `demur.convex` (10 to 100 times below Lz r / (lam n)), whatever `lz` says.
- `X`, `y`: the data the head was trained on. With them the gradient is measured, a head
  that is not at its minimiser is refused, and 2 tau / lam is charged. Without them the
  release is conditional on the minimiser, and says so.
- `tau`: the gradient norm that the training promises to reach, fixed in advance.

Results have `private`, `conditional` and `statement` beside the original's keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters import equinox, torch
from demur.adapters.linear import (
    TRAINED_ELSEWHERE,
    TRAINED_ELSEWHERE_TAU,
    LinearHead,
    certify,
)
from demur.compat.ball_dp.releases import (
    ON_ROUNDING,
    ReleaseOptions,
    Rng,
    SigmaMethod,
    release_vector,
    source_of,
)
from demur.compat.ball_dp.sensitivity import erm_sensitivity_l2
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.convex.sensitivity.form import Fit, HeadForm
from demur.core.bounds import Bound, BoundSource
from demur.core.curve import PiecewiseLinear
from demur.core.rounding import up
from demur.core.sensitivity import Sensitivity
from demur.ledger import Ledger

Model = TypeVar("Model")

_ON_THE_MINIMISER = (
    "the parameters are the minimiser of the stated objective (conditional: they came"
    " without their data, so the gradient was not measured)"
)


def dp_release_erm_params_gaussian(
    params: ArrayLike,
    *,
    lz: float,
    r: float,
    lam: float,
    n: int,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "classic",
    rng: Rng = None,
    loss: str | None = None,
    num_classes: int = 2,
    B: float | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    tau: float | None = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "a convex head",
) -> dict[str, Any]:
    """Noisy parameters of a trained head, W by rows and then b, and what was done.

    Keys: params_noisy (float32), Delta, sigma, eps, delta, sigma_method, lz, r, lam, n,
    and private, conditional, statement.
    """
    given = np.asarray(params)
    vector = given.astype(np.float64).reshape(-1)
    declared = erm_sensitivity_l2(lz=lz, r=r, lam=lam, n=n)
    source = source_of(rng)
    options = ReleaseOptions(r, eps, delta, sigma_method, source, ledger, space, label)
    _check_together(loss, B, X, y)
    assumptions: tuple[str, ...] = ()
    conditional: tuple[str, ...] = ()
    if X is None:
        fit = Fit(n, tau=0.0 if tau is None else tau)
        conditional = (_ON_THE_MINIMISER,)
        if given.dtype.itemsize < 8:
            conditional = (*conditional, ON_ROUNDING)
    else:
        fit = Fit(n, tau=TRAINED_ELSEWHERE_TAU if tau is None else tau)
        assumptions = (TRAINED_ELSEWHERE,)
    if loss is None:
        # Ball(r) as a unit of its own: there the number is exact.
        sensitivity = Sensitivity.of(
            {
                space: PiecewiseLinear.linear(up(float(lz) / (float(lam) * n), 2)),
                options.unit: up(declared.delta_l2, 4),
            }
        ).plus(up(2.0 * fit.tau / lam))
        bound = Bound(float(lz), BoundSource.DECLARED, "Lz of the loss")
    else:
        assert B is not None
        form = HeadForm(loss, lam=lam, norm_bound=B, num_classes=num_classes)
        if X is not None and y is not None:
            form = _certified(vector, X, y, form, fit)
        sensitivity = erm_sensitivity(form, options.unit, fit).table
        bound = form.bound
    recorded = release_vector(
        vector,
        sensitivity,
        options,
        name=f"a {loss or 'declared'} head with Gaussian noise",
        bounds=(bound,),
        conditional=conditional,
        assumptions=assumptions,
    )
    report = recorded.report(options, lz=float(lz), lam=float(lam), n=int(n))
    return {"params_noisy": recorded.values.astype(np.float32)} | report


def dp_release_from_flat_params(
    theta_hat: ArrayLike,
    unflatten: Callable[[NDArray[np.float32]], Model],
    *,
    lz: float,
    r: float,
    lam: float,
    n: int,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "analytic",
    rng: Rng = None,
    loss: str | None = None,
    num_classes: int = 2,
    B: float | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    tau: float | None = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "a convex head",
) -> dict[str, Any]:
    """The same, put back into a model: theta_private, model_private, dp_report."""
    report = dp_release_erm_params_gaussian(
        theta_hat,
        lz=lz,
        r=r,
        lam=lam,
        n=n,
        eps=eps,
        delta=delta,
        sigma_method=sigma_method,
        rng=rng,
        loss=loss,
        num_classes=num_classes,
        B=B,
        X=X,
        y=y,
        tau=tau,
        ledger=ledger,
        space=space,
        label=label,
    )
    private = report["params_noisy"]
    return {
        "theta_private": private,
        "model_private": unflatten(private),
        "dp_report": report,
    }


def dp_release_torch_model_gaussian(
    model: Any,
    *,
    lz: float,
    r: float,
    lam: float,
    n: int,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "analytic",
    rng: Rng = None,
    loss: str | None = None,
    B: float | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    tau: float | None = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "a head trained in torch",
) -> dict[str, Any]:
    """A private copy of a linear torch head: theta_private, model_private, dp_report.

    The copy is in float32, like the original's: it takes float32 rows and gives float32
    scores. Anything but a linear layer, or a module around exactly one, is refused
    (`demur.adapters.torch`); the model itself is not touched.
    """
    theta, unflatten = torch.flatten(model)
    return dp_release_from_flat_params(
        theta,
        lambda private: unflatten(private).float(),
        lz=lz,
        r=r,
        lam=lam,
        n=n,
        eps=eps,
        delta=delta,
        sigma_method=sigma_method,
        rng=rng,
        loss=loss,
        num_classes=max(2, torch.linear_head(model).outputs),
        B=B,
        X=X,
        y=y,
        tau=tau,
        ledger=ledger,
        space=space,
        label=label,
    )


def dp_release_eqx_model_gaussian(
    model: Any,
    *,
    lz: float,
    r: float,
    lam: float,
    n: int,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "analytic",
    rng: Rng = None,
    loss: str | None = None,
    B: float | None = None,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    tau: float | None = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "a head trained in Equinox",
) -> dict[str, Any]:
    """A private copy of a linear Equinox head, with the same keys as for torch.

    Anything but a linear head, a module around exactly one, or `RidgePrototypesEqx` is
    refused; the model itself is not touched.
    """
    theta, unflatten = equinox.flatten(model)
    num_classes = 2
    if loss is not None:
        num_classes = max(2, equinox.linear_head(model).outputs)
    return dp_release_from_flat_params(
        theta,
        unflatten,
        lz=lz,
        r=r,
        lam=lam,
        n=n,
        eps=eps,
        delta=delta,
        sigma_method=sigma_method,
        rng=rng,
        loss=loss,
        num_classes=num_classes,
        B=B,
        X=X,
        y=y,
        tau=tau,
        ledger=ledger,
        space=space,
        label=label,
    )


def _check_together(
    loss: str | None, B: float | None, X: ArrayLike | None, y: ArrayLike | None
) -> None:
    if (loss is None) != (B is None):
        raise TypeError(
            "give loss and B together: a bound on the gradients needs both. Nothing"
            " was spent."
        )
    if (X is None) != (y is None) or (X is not None and loss is None):
        raise TypeError(
            "give X, y, loss and B together: the gradient of the stated objective is"
            " measured on them. Nothing was spent."
        )


def _certified(
    vector: NDArray[np.float64], X: ArrayLike, y: ArrayLike, form: HeadForm, fit: Fit
) -> HeadForm:
    """The form of rows that were clipped; refuses what does not minimise it there."""
    rows, labels = np.asarray(X), np.asarray(y)
    if rows.ndim != 2 or rows.shape[0] != fit.n:
        raise ValueError(
            f"X must be a matrix of n={fit.n} rows; got shape {rows.shape}. Nothing was"
            " spent."
        )
    outputs = form.num_classes if form.multinomial else 1
    size = outputs * rows.shape[1]
    if vector.size not in (size, size + outputs):
        raise ValueError(
            f"a {form.loss} head on {rows.shape[1]} columns has {size + outputs}"
            f" parameters ({size} without a bias); got {vector.size}. Nothing was"
            " spent."
        )
    bias = vector[size:] if vector.size > size else None
    head = LinearHead(vector[:size].reshape(outputs, -1), bias)
    certify(head, rows, labels, form, tau=fit.tau)
    return replace(form, norm_source=BoundSource.ENFORCED)
