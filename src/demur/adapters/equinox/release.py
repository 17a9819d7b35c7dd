"""Releasing a linear head that was trained in Equinox.

    form = HeadForm("logistic", lam=1e-2, norm_bound=1.0)
    promise = Promise(Ball(0.4, space="records"), epsilon=1.0, delta=1e-6)
    private = release_equinox(model, X, y, form, promise)
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
from demur.adapters.linear import (
    TRAINED_ELSEWHERE_TAU,
    LinearHead,
    form_of,
    release_linear,
)
from demur.convex.sensitivity.form import TAU, HeadForm
from demur.convex.solving.objective import objective
from demur.convex.solving.solver import minimise
from demur.core.bounds import clip_rows, finite_matrix
from demur.core.entropy import Source
from demur.core.promise import Promise
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
    form: HeadForm,
    promise: Promise,
    *,
    tau: float = TRAINED_ELSEWHERE_TAU,
    ledger: Ledger | None = None,
    label: str = "a head trained in Equinox",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Release[Model]:
    """A new module with noisy parameters that meet the promise, and its entry.

    `X`, `y` are the data the model was trained on; rows are clipped to the norm bound
    of `form` here, as they must have been there. The gradient of

        mean loss + lam/2 (|W|^2 + |b|^2 / bias_scale^2)

    is measured on them in float64; above `tau` the model is not the minimiser, and is
    refused with nothing charged. `tau` is fixed in advance, and 2 tau / lam is part of
    the sensitivity: a float32 model reaches the default, a float64 one far less, which
    is worth it where there are many records.

    Labels are 0 .. K-1 for "softmax", 0/1 or -1/+1 for the other losses. The number of
    classes, and whether there is a bias, are the model's own.
    """
    released = release_linear(
        linear_head(model),
        np.asarray(X),
        np.asarray(y),
        form,
        promise,
        tau=tau,
        ledger=ledger,
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
    return Release(rebuild(model, released.value), released.entry)


def train_head_eqx(
    model: Model,
    X: ArrayLike,
    y: ArrayLike,
    form: HeadForm,
    *,
    tau: float = TAU,
) -> Model:
    """`model` at the minimiser of the form's objective; exact, **not private**.

    Solved in float64 to a gradient norm of `tau`, rows clipped to the norm bound, and
    stored in the dtype of the model: float32 unless jax runs with 64 bits, which
    leaves a gradient of about 1e-7, within the default of `release_equinox`.
    """
    head = linear_head(model)
    form = form_of(head, form)
    rows = clip_rows(np.asarray(X), form.norm_bound).data
    minimiser = minimise(objective(form, rows, np.asarray(y)), tau=tau)
    return rebuild(model, head.with_theta(minimiser.theta, form.bias_scale))


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
    rebuilt = layer
    parameters = (head.weight, head.bias)
    for name, values in zip(_FIELDS[type(layer)], parameters, strict=True):
        old = getattr(layer, name)
        if old is not None:
            array = np.asarray(values).reshape(old.shape)
            rebuilt = eqx.tree_at(_field(name), rebuilt, jnp.asarray(array, old.dtype))
    if layer is not model:
        sequence: Any = model
        layers = [rebuilt if m is layer else m for m in sequence.layers]
        rebuilt = eqx.nn.Sequential(layers)
    copy: Model = rebuilt
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
