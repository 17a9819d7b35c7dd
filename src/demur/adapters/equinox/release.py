"""Releasing a linear head that was trained in Equinox.

    form = HeadForm("logistic", lam=1e-2, norm_bound=1.0)
    promise = Promise(Ball(0.4, space="records"), epsilon=1.0, delta=1e-6)
    private = release_equinox(model, X, y, form, promise)
    private.value          # a new module with noisy parameters; `model` is untouched

The adapter recognises `eqx.nn.Linear`, `SquaredHingeSVMEqx`, `LogisticRegressorEqx`,
`SoftmaxLinearEqx`, and any module around exactly one of them whose call gives its
scores. Everything else is refused, and the error names the way: the proof is about a
linear head and about all of its parameters. Arrays and numbers beside the head are
refused, frozen or not: nothing says what they were computed from. Release `model.fc` on
the features in front of it.

A module around the head is built anew from its class with submodules alone; a call that
needs another field is refused.
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
    another_way,
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
    "a linear layer (eqx.nn.Linear, SquaredHingeSVMEqx, LogisticRegressorEqx,"
    " SoftmaxLinearEqx) or a module around exactly one"
)
_PROBES = 8


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
    copy: Model = _around(model, layer, _with_parameters(layer, head))
    return copy


def _with_parameters(layer: Any, head: LinearHead) -> Any:
    """The layer with other parameters, in its own dtype."""
    rebuilt = layer
    parameters = (head.weight, head.bias)
    for name, values in zip(_FIELDS[type(layer)], parameters, strict=True):
        old = getattr(layer, name)
        if old is not None:
            array = np.asarray(values).reshape(old.shape)
            rebuilt = eqx.tree_at(_field(name), rebuilt, jnp.asarray(array, old.dtype))
    return rebuilt


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
    if type(model) in _FIELDS:
        return model
    parts = jax.tree_util.tree_leaves_with_path(
        model, is_leaf=lambda part: type(part) in _FIELDS
    )
    layers = {
        "model" + jax.tree_util.keystr(path): part
        for path, part in parts
        if type(part) in _FIELDS
    }
    others = [
        f"model{jax.tree_util.keystr(path)}: {type(part).__name__}"
        for path, part in parts
        if type(part) not in _FIELDS and not callable(part)
    ]
    if not isinstance(model, eqx.Module) or len(layers) != 1 or others:
        shown = [f"{name}: {type(part).__name__}" for name, part in layers.items()]
        listed = ", ".join([*shown, *others][:6]) or "no parameters"
        raise NotALinearHead(
            f"model must be {_KNOWN}, without other parameters, frozen or not; got"
            f" {listed} in a {type(model).__name__}. {another_way(list(layers))}"
            " Nothing was spent."
        )
    ((name, layer),) = layers.items()
    _refuse_other_scores(model, layer, name)
    return layer


def _around(part: Any, layer: Any, fresh: Any) -> Any:
    """A new instance of the module's class: `fresh` for the layer, submodules alone."""
    if part is layer:
        return fresh
    shell = object.__new__(type(part))
    for name, value in vars(part).items():
        copy = None
        if isinstance(value, eqx.Module):
            copy = _around(value, layer, fresh)
        elif type(value) in (list, tuple):
            if value and all(isinstance(one, eqx.Module) for one in value):
                copy = type(value)(_around(one, layer, fresh) for one in value)
        if copy is not None:
            object.__setattr__(shell, name, copy)
    return shell


def _refuse_other_scores(model: Any, layer: Any, name: str) -> None:
    """Refuse a call that is not the layer's scores: compared on random rows.

    The copy that would be released is tried, with random parameters, and not the
    trained model: what it computes must not need anything that is left out of it.
    """
    rng = np.random.default_rng(0)
    shapes = [getattr(layer, field) for field in _FIELDS[type(layer)]]
    weight = np.atleast_2d(rng.normal(size=shapes[0].shape))
    bias = None if shapes[1] is None else rng.normal(size=weight.shape[:1])
    trial = _with_parameters(layer, LinearHead(weight, bias))
    drawn = rng.normal(size=(_PROBES, weight.shape[1]))
    rows = jnp.asarray(drawn * np.logspace(-1, 1, _PROBES)[:, None], shapes[0].dtype)
    wanted = np.asarray(jax.vmap(trial)(rows), dtype=np.float64)
    try:
        scores = jax.vmap(_around(model, layer, trial))(rows)
        found = np.asarray(scores, dtype=np.float64)
    except Exception as error:
        raise NotALinearHead(
            f"the call of {type(model).__name__} does not run on a copy of its linear"
            f" layers alone ({type(error).__name__}): other fields may depend on the"
            f" data, and no noise would cover them. {another_way([name])}"
            " Nothing was spent."
        ) from error
    if found.size != wanted.size or not np.allclose(
        found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5
    ):
        raise NotALinearHead(
            f"the call of {type(model).__name__} gives other numbers than the scores of"
            f" {name}, and the sensitivity is proved for a linear head only."
            f" {another_way([name])} Nothing was spent."
        )
