"""Release a linear head that was trained in Equinox.

    private = release_equinox(model, X, y, loss="logistic", lam=1e-2, radius=0.4,
                              norm_bound=1.0, epsilon=1.0, delta=1e-6)
    private.value          # a new module with noisy parameters; `model` is untouched

The adapter recognises `eqx.nn.Linear`, an `eqx.nn.Sequential` around one of the heads,
`SquaredHingeSVMEqx`, `LogisticRegressorEqx` and `SoftmaxLinearEqx`, and refuses
everything else: the proof is about a linear head and about all of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.equinox.heads import (
    LogisticRegressorEqx,
    RidgePrototypesEqx,
    SoftmaxLinearEqx,
    SquaredHingeSVMEqx,
)
from demur.adapters.errors import NotALinearHead
from demur.adapters.frameworks import missing
from demur.adapters.linear import TAU, LinearHead, release_linear
from demur.convex.sensitivity.curves import TAU as SOLVER_TAU
from demur.convex.sensitivity.losses import HUBER_WIDTH
from demur.convex.solving.objective import objective
from demur.convex.solving.solver import minimise
from demur.core.bounds import clip_rows, finite_matrix
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Ledger

try:
    import equinox as eqx
    import jax
    import jax.numpy as jnp
except ImportError as error:  # pragma: no cover - without equinox
    raise missing("JAX and Equinox", "jax", error) from error

Model = TypeVar("Model", bound=eqx.Module)

_KNOWN = (
    "an eqx.nn.Linear, an eqx.nn.Sequential around one, SquaredHingeSVMEqx,"
    " LogisticRegressorEqx or SoftmaxLinearEqx"
)


class _Fields(NamedTuple):
    weight: str
    bias: str


# Exact types: a subclass may compute anything.
_FIELDS: dict[type, _Fields] = {
    eqx.nn.Linear: _Fields("weight", "bias"),
    SquaredHingeSVMEqx: _Fields("w", "b"),
    LogisticRegressorEqx: _Fields("w", "b"),
    SoftmaxLinearEqx: _Fields("W", "b"),
}


def release_equinox(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str,
    lam: float,
    radius: float,
    norm_bound: float,
    epsilon: float,
    delta: float,
    ledger: Ledger | None = None,
    space: str = "records",
    tau: float = TAU,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
    label: str = "a head trained in Equinox",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Release[Model]:
    """A new module with noisy parameters, (epsilon, delta)-private at Ball(radius).

    `X`, `y` are the data the model was trained on; rows are clipped to `norm_bound`
    here, as they must have been there. The gradient of

        mean loss + lam/2 (|W|^2 + |b|^2 / bias_scale^2)

    is measured on them in float64; above `tau` the model is not the minimiser, and is
    refused with nothing charged. `tau` is fixed in advance, and 2 tau / lam is part of
    the sensitivity: a float32 model reaches the default, a float64 one far less, which
    pays where there are many records.

    Labels are 0 .. K-1 for "softmax", 0/1 or -1/+1 for the other losses.
    """
    released = release_linear(
        linear_head(model),
        np.asarray(X),
        np.asarray(y),
        loss=loss,
        lam=lam,
        radius=radius,
        norm_bound=norm_bound,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        space=space,
        tau=tau,
        bias_scale=bias_scale,
        huber_width=huber_width,
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
    return Release(rebuild(model, released.value), released.entry)


def train_head_eqx(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    *,
    loss: str,
    lam: float,
    norm_bound: float,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
    tau: float = SOLVER_TAU,
) -> Model:
    """`model` at the minimiser of the stated objective; exact, **not private**.

    Solved in float64 to a gradient norm of `tau`, rows clipped to `norm_bound`, and
    stored in the dtype of the model: float32 unless jax runs with 64 bits, which
    leaves a gradient of about 1e-7, within the default of `release_equinox`.
    """
    head = linear_head(model)
    rows = clip_rows(np.asarray(X), norm_bound).data
    scale = bias_scale if head.bias is not None else 0.0
    stated = objective(
        loss,
        rows,
        np.asarray(y),
        lam,
        scale,
        head.outputs if loss == "softmax" else 2,
        huber_width=huber_width,
    )
    found = minimise(stated, tau=tau, norm_bound=norm_bound)
    return rebuild(model, head.with_theta(found.theta, bias_scale))


def predict_eqx_svm(model: eqx.Module, X: ArrayLike) -> NDArray[np.int64]:
    """+1 where the score of a row is at least 0, else -1.

    For `SquaredHingeSVMEqx` and every other linear head with one score.
    """
    head = linear_head(model)
    if head.outputs != 1:
        raise NotALinearHead(
            f"predict_eqx_svm is for a head with one score; this has {head.outputs}"
        )
    bias = 0.0 if head.bias is None else head.bias[0]
    scores = finite_matrix("X", np.asarray(X)) @ head.weight[0] + bias
    return np.where(scores >= 0, 1, -1).astype(np.int64)


def linear_head(model: Any) -> LinearHead:
    """The parameters of a recognised linear head, exact; anything else is refused."""
    layer = _layer(model)
    fields = _FIELDS[type(layer)]
    weight, bias = getattr(layer, fields.weight), getattr(layer, fields.bias)
    rows = np.asarray(weight, dtype=np.float64)
    return LinearHead(
        np.atleast_2d(rows),
        None if bias is None else np.asarray(bias, dtype=np.float64).reshape(-1),
        np.dtype(np.float64 if weight.dtype == np.float64 else np.float32),
    )


def rebuild(model: Model, head: LinearHead) -> Model:
    """A new module like `model` with the parameters of `head`, in the model's dtype."""
    layer: Any = _layer(model)
    fresh = layer
    new = (head.weight, head.bias)
    for name, values in zip(_FIELDS[type(layer)], new, strict=True):
        old = getattr(layer, name)
        if old is not None:
            array = np.asarray(values).reshape(old.shape)
            fresh = eqx.tree_at(_field(name), fresh, jnp.asarray(array, old.dtype))
    if layer is not model:
        around: Any = model
        fresh = eqx.nn.Sequential([fresh if m is layer else m for m in around.layers])
    copy: Model = fresh
    return copy


def flatten(
    model: Model,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Model]]:
    """All parameters of a head as one vector, and the way back to a module.

    Linear heads, and `RidgePrototypesEqx`.
    """
    if type(model) is RidgePrototypesEqx:
        mus: jax.Array = _field("mus")(model)

        def with_mus(theta: ArrayLike) -> Model:
            array = np.asarray(theta).reshape(mus.shape)
            return eqx.tree_at(_field("mus"), model, jnp.asarray(array, mus.dtype))

        return np.asarray(mus).reshape(-1), with_mus
    head = linear_head(model)

    def unflatten(theta: ArrayLike) -> Model:
        return rebuild(model, head.with_flat(theta))

    return head.flat().astype(head.dtype), unflatten


def _field(name: str) -> Callable[[Any], jax.Array]:
    return lambda module: getattr(module, name)


def _layer(model: Any) -> Any:
    """The one recognised layer of the model."""
    layers = [model]
    if type(model) is eqx.nn.Sequential:
        layers = [m for m in model.layers if type(m) is not eqx.nn.Identity]
    if len(layers) != 1:
        shown = [type(layer).__name__ for layer in layers]
        raise NotALinearHead(
            f"model must hold exactly one linear layer; got {shown}. Features before"
            " it belong to a public encoder: embed first, release the head. Nothing"
            " was spent."
        )
    if type(layers[0]) not in _FIELDS:
        raise NotALinearHead(
            f"model must be {_KNOWN}; got {type(layers[0]).__name__}. The sensitivity"
            " is proved for a linear head only. Nothing was spent."
        )
    return layers[0]
