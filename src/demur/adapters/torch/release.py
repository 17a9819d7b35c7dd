"""Releasing a linear head that was trained in torch.

    form = HeadForm("softmax", lam=1e-2, norm_bound=1.0)
    promise = Promise(Ball(0.4, space="records"), epsilon=1.0, delta=1e-6)
    private = release_torch(model, X, y, form, promise)
    private.value          # a new module with noisy parameters; `model` is untouched

The adapter recognises an `nn.Linear`, an `nn.Sequential` around one, `SoftmaxLogReg`
and `SquaredHingeSVM`, and refuses everything else: the proof is about a linear head and
about all of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.errors import NotALinearHead
from demur.adapters.frameworks import missing
from demur.adapters.linear import TRAINED_ELSEWHERE_TAU, LinearHead, release_linear
from demur.adapters.torch.heads import SoftmaxLogReg, SquaredHingeSVM, to_numpy
from demur.convex.sensitivity.form import HeadForm
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.ledger import Ledger

try:
    import torch
    from torch import nn
except ImportError as error:  # pragma: no cover - without torch
    raise missing("PyTorch", "torch", error) from error

Model = TypeVar("Model", bound=nn.Module)

_KNOWN = "an nn.Linear, an nn.Sequential around one, SoftmaxLogReg or SquaredHingeSVM"


def release_torch(
    model: Model,
    X: ArrayLike | torch.Tensor,
    y: ArrayLike | torch.Tensor,
    form: HeadForm,
    promise: Promise,
    *,
    tau: float = TRAINED_ELSEWHERE_TAU,
    ledger: Ledger | None = None,
    label: str = "a head trained in torch",
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
    head = linear_head(model)
    released = release_linear(
        head,
        _plain(X),
        _plain(y),
        form,
        promise,
        tau=tau,
        ledger=ledger,
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
    return Release(rebuild(model, released.value), released.entry)


def linear_head(model: nn.Module) -> LinearHead:
    """The parameters of a recognised linear head, exact; anything else is refused."""
    linear = _linear(model)
    if not linear.weight.is_floating_point():
        raise NotALinearHead(
            f"the parameters must be real floating-point numbers; got"
            f" {linear.weight.dtype}. Nothing was spent."
        )
    weight = _numbers(linear.weight)
    bias = None if linear.bias is None else _numbers(linear.bias)
    wide = linear.weight.dtype == torch.float64
    return LinearHead(weight, bias, np.dtype(np.float64 if wide else np.float32))


def rebuild(model: Model, head: LinearHead) -> Model:
    """A new module like `model` with the parameters of `head`.

    It is built, not copied: gradients, hooks and attributes of the trained model
    depend on the data and are left out.
    """
    linear = _linear(model)
    fresh = nn.Linear(
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        dtype=linear.weight.dtype,
    )
    with torch.no_grad():
        fresh.weight.copy_(torch.as_tensor(head.weight))
        if head.bias is not None:
            fresh.bias.copy_(torch.as_tensor(head.bias))
    copy: nn.Module
    if isinstance(model, SoftmaxLogReg):
        copy = SoftmaxLogReg(linear.in_features, linear.out_features)
        copy.linear = fresh
    elif isinstance(model, SquaredHingeSVM):
        copy = SquaredHingeSVM(linear.in_features)
        copy.linear = fresh
    elif isinstance(model, nn.Sequential):
        copy = nn.Sequential()
        for name, layer in model.named_children():
            copy.add_module(name, fresh if layer is linear else nn.Identity())
    else:
        copy = fresh
    return cast(Model, copy.to(linear.weight.device).eval())


def flatten(
    model: Model,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Model]]:
    """All parameters of a linear head as one vector, and the way back to a module."""
    head = linear_head(model)

    def unflatten(theta: ArrayLike) -> Model:
        return rebuild(model, head.with_flat(theta))

    return head.flat().astype(head.dtype), unflatten


def _numbers(values: torch.Tensor) -> NDArray[np.float64]:
    return to_numpy(values.double()).astype(np.float64)


def _plain(values: ArrayLike | torch.Tensor) -> ArrayLike:
    """Tensors, wherever they live, as arrays."""
    return to_numpy(values) if isinstance(values, torch.Tensor) else values


def _linear(model: nn.Module) -> nn.Linear:
    """The one linear layer of a recognised head."""
    if not isinstance(model, nn.Module):
        raise NotALinearHead(
            f"model must be {_KNOWN}; got {type(model).__name__}. Nothing was spent."
        )
    _refuse_extras(model)
    # Exact types: a subclass, or a parametrised layer, may compute anything.
    if type(model) is nn.Linear:
        return model
    if type(model) is SoftmaxLogReg or type(model) is SquaredHingeSVM:
        layers: list[nn.Module] = [model.linear]
    elif type(model) is nn.Sequential:
        layers = [m for m in model if type(m) is not nn.Identity]
    else:
        raise NotALinearHead(
            f"model must be {_KNOWN}; got {type(model).__name__}. The sensitivity is"
            " proved for a linear head only. Nothing was spent."
        )
    if len(layers) != 1 or type(layers[0]) is not nn.Linear:
        shown = [type(layer).__name__ for layer in layers]
        raise NotALinearHead(
            f"model must hold exactly one nn.Linear; got {shown}. Features before it"
            " belong to a public encoder: embed first, release the head. Nothing was"
            " spent."
        )
    return layers[0]


def _refuse_extras(model: nn.Module) -> None:
    """Refuse buffers, which noise would not cover, and hooks, which are not linear."""
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise NotALinearHead(
            f"model has buffers ({', '.join(buffers[:5])}), which no noise would"
            " cover. Nothing was spent."
        )
    for module in model.modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        if any(hooks):
            raise NotALinearHead(
                f"model has forward hooks on a {type(module).__name__}: what it"
                " computes is then not linear. Nothing was spent."
            )
