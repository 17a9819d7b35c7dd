"""Radius policies and releases, with the original's signatures and result keys.

Every release takes these keywords beside the original's:

- `ledger`, `space`, `label`: the ledger to charge, and what to call the record metric
  and the release there. Without a ledger one in memory is charged.
- `loss`, `B`: the head's loss and the norm bound of its rows. With them the sensitivity
  is that of `demur.convex` (10 to 100 times below Lz r / (lam n)), whatever `lz` says.
- `X`, `y`: the data the head was trained on. With them the gradient is measured, a head
  that is not at its minimiser is refused, and 2 tau / lam is charged. Without them the
  release is conditional on the minimiser, and says so.
- `tau`: the gradient norm that the training promises to reach, fixed in advance.

Results carry `private`, `conditional` and `statement` beside the original's keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters import equinox, torch
from demur.adapters.linear import TAU, TRAINED_ELSEWHERE, LinearHead, certify
from demur.compat.ball_dp.embeddings import EmbeddingBundle as EmbeddingBundle
from demur.compat.ball_dp.embeddings import (
    embed_torch_dataloaders as embed_torch_dataloaders,
)
from demur.compat.ball_dp.embeddings import embed_torch_loader as embed_torch_loader
from demur.compat.ball_dp.embeddings import (
    embed_torch_loader_aug_pairs as embed_torch_loader_aug_pairs,
)
from demur.compat.ball_dp.embeddings import load_embeddings_npz as load_embeddings_npz
from demur.compat.ball_dp.embeddings import save_embeddings_npz as save_embeddings_npz
from demur.compat.ball_dp.heads.prototypes import prototypes_sensitivity_l2
from demur.compat.ball_dp.radius import RadiusPolicy as RadiusPolicy
from demur.compat.ball_dp.radius import compute_radius_policy as compute_radius_policy
from demur.compat.ball_dp.releases import Rng, SigmaMethod, release_vector
from demur.compat.ball_dp.sensitivity import erm_sensitivity_l2
from demur.convex.release import FIXED_IN_ADVANCE, UNCERTIFIED
from demur.convex.sensitivity.curves import erm_sensitivity
from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, finite_matrix
from demur.core.curve import PiecewiseLinear
from demur.core.rounding import up
from demur.core.sensitivity import Sensitivity
from demur.ledger import Ledger

Model = TypeVar("Model")

_ON_THE_MINIMISER = (
    "the minimiser: the parameters came without their data, so the gradient was not"
    " measured"
)
# For the rounding of float64 sums over many rows.
_RESERVE = 1.0 + 1e-9
_ON_ROUNDING = (
    "the rounding of the parameters to less than float64, which the sensitivity does"
    " not include"
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
    validate.positive(r=r)
    conditional: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()
    assumptions: tuple[str, ...] = (FIXED_IN_ADVANCE,)
    _check_together(loss, B, X, y)
    if X is None:
        tau = 0.0 if tau is None else tau
        conditional = (_ON_THE_MINIMISER,)
        assumptions = (*assumptions, UNCERTIFIED)
        if given.dtype.itemsize < 8:
            conditional = (*conditional, _ON_ROUNDING)
    else:
        assert loss is not None and B is not None and y is not None
        tau = TAU if tau is None else tau
        assumptions = (*assumptions, TRAINED_ELSEWHERE)
        _certify(vector, X, y, n, loss, num_classes, lam=lam, B=B, tau=tau)
    validate.non_negative(tau=tau)
    if loss is None:
        # Ball(r) as a unit of its own: there the number is exact.
        sensitivity = Sensitivity.of(
            {
                space: PiecewiseLinear.linear(up(float(lz) / (float(lam) * n), 2)),
                Ball(r, space=space): up(declared.delta_l2, 4),
            }
        ).plus(up(2.0 * tau / lam))
        bounds = (Bound(float(lz), BoundSource.DECLARED, "Lz of the loss"),)
    else:
        assert B is not None
        sensitivity = erm_sensitivity(
            loss,
            n=n,
            lam=lam,
            norm_bound=B,
            radius=r,
            space=space,
            tau=tau,
            num_classes=num_classes,
        ).table
        source = BoundSource.DECLARED if X is None else BoundSource.ENFORCED
        bounds = (Bound(float(B), source),)
    recorded = release_vector(
        vector,
        sensitivity,
        r=r,
        eps=eps,
        delta=delta,
        sigma_method=sigma_method,
        rng=rng,
        ledger=ledger,
        space=space,
        label=label,
        name=f"a {loss or 'declared'} head with Gaussian noise",
        bounds=bounds,
        conditional=conditional,
        assumptions=assumptions,
    )
    return {
        "params_noisy": recorded.values.astype(np.float32),
        "Delta": recorded.moved,
        "sigma": recorded.sigma,
        "eps": float(eps),
        "delta": float(delta),
        "sigma_method": str(sigma_method),
        "lz": float(lz),
        "r": float(r),
        "lam": float(lam),
        "n": int(n),
    } | recorded.marks()


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


def dp_release_ridge_prototypes_gaussian(
    mus: ArrayLike,
    counts: ArrayLike,
    *,
    r: float,
    lam: float,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "classic",
    rng: Rng = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "ridge prototypes",
) -> dict[str, Any]:
    """Noisy prototypes, with one sigma for all classes, as in the original.

    Keys: mus_noisy (float32), Delta, sigma, eps, delta, sigma_method, r, lam, n_total,
    n_min, and private, conditional, statement. n_min is the smallest class that has a
    record: an empty one has a constant prototype. `demur.convex` gives each class the
    noise of its own size, which is less.
    """
    given = np.asarray(mus)
    means = finite_matrix("mus", given)
    sizes = np.asarray(counts)
    if sizes.shape != (means.shape[0],) or not np.array_equal(
        sizes, sizes.astype(np.int64)
    ):
        raise ValueError(
            f"counts must hold a whole number for each of {means.shape[0]} prototypes;"
            f" got {sizes!r:.80}. Nothing was spent."
        )
    if (sizes < 0).any() or not (sizes > 0).any():
        raise ValueError(
            f"counts must be at least 0, and one above 0; got {sizes!r:.80}. Nothing"
            " was spent."
        )
    n_total, n_min = int(sizes.sum()), int(sizes[sizes > 0].min())
    validate.positive(r=r)
    shape: dict[str, Any] = {"n_min": n_min, "n_total": n_total, "lam": lam}
    conditional = [
        "the closed form: mus and counts came without their data, and are taken to be"
        " what fit_ridge_prototypes returned"
    ]
    if given.dtype.itemsize < 8:
        conditional.append(_ON_ROUNDING)
    recorded = release_vector(
        means,
        Sensitivity.of(
            {
                space: PiecewiseLinear.linear(
                    prototypes_sensitivity_l2(r=1.0, **shape) * _RESERVE
                ),
                Ball(r, space=space): (
                    prototypes_sensitivity_l2(r=r, **shape) * _RESERVE
                ),
            }
        ),
        r=r,
        eps=eps,
        delta=delta,
        sigma_method=sigma_method,
        rng=rng,
        ledger=ledger,
        space=space,
        label=label,
        name="ridge prototypes with Gaussian noise",
        conditional=tuple(conditional),
        assumptions=(
            FIXED_IN_ADVANCE,
            "the prototypes are 2 S_c / (2 n_c + lam n) of the data (conditional: the"
            " data were not given, so this was not checked)",
        ),
    )
    return {
        "mus_noisy": recorded.values.reshape(means.shape).astype(np.float32),
        "Delta": recorded.moved,
        "sigma": recorded.sigma,
        "eps": float(eps),
        "delta": float(delta),
        "sigma_method": str(sigma_method),
        "r": float(r),
        "lam": float(lam),
        "n_total": n_total,
        "n_min": n_min,
    } | recorded.marks()


def torch_flatten_adapter(
    model: Any,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Any]]:
    """The parameters of a linear torch head as one vector, and the way back.

    In the dtype of the model; the vector is exact, not private.
    """
    return torch.flatten(model)


def eqx_flatten_adapter(
    model: Any,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Any]]:
    """The parameters of a linear Equinox head as one vector, and the way back.

    In the dtype of the model; the vector is exact, not private.
    """
    return equinox.flatten(model)


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

    Anything but a linear head is refused (`demur.adapters.torch`); the model itself is
    not touched.
    """
    theta, unflatten = torch.flatten(model)
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

    Anything but a linear head (or `RidgePrototypesEqx`) is refused; the model itself is
    not touched.
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


def _certify(
    vector: NDArray[np.float64],
    X: ArrayLike,
    y: ArrayLike,
    n: int,
    loss: str,
    num_classes: int,
    *,
    lam: float,
    B: float,
    tau: float,
) -> None:
    """Refuse parameters that do not minimise the stated objective on the data."""
    rows, labels = np.asarray(X), np.asarray(y)
    if rows.ndim != 2 or rows.shape[0] != n:
        raise ValueError(
            f"X must be a matrix of n={n} rows; got shape {rows.shape}. Nothing was"
            " spent."
        )
    outputs = num_classes if loss == "softmax" else 1
    size = outputs * rows.shape[1]
    if vector.size not in (size, size + outputs):
        raise ValueError(
            f"a {loss} head on {rows.shape[1]} columns has {size + outputs} parameters"
            f" ({size} without a bias); got {vector.size}. Nothing was spent."
        )
    bias = vector[size:] if vector.size > size else None
    head = LinearHead(vector[:size].reshape(outputs, -1), bias)
    certify(head, rows, labels, loss=loss, lam=lam, norm_bound=B, tau=tau)
