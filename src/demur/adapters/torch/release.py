"""Releasing a linear head that was trained in torch.

    form = HeadForm("softmax", lam=1e-2, norm_bound=1.0)
    promise = Promise(Ball(0.4, space="records"), epsilon=1.0, delta=1e-6)
    private = release_torch(model, X, y, form, promise)
    private.value          # a new module with noisy parameters; `model` is untouched

The adapter recognises an `nn.Linear` and any module around exactly one, whose forward
gives the scores of that layer. Everything else is refused, and the error names the way:
the proof is about a linear head and about all of its parameters. Parameters beside that
layer are refused even where they are frozen: `requires_grad=False` does not say what
they were trained on. Release `model.fc` on the features in front of it.

A module around the layer is built anew from its class with submodules alone. Attributes
of the instance may depend on the data and are left out; a forward that needs one is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.errors import NotALinearHead
from demur.adapters.frameworks import missing
from demur.adapters.linear import (
    TRAINED_ELSEWHERE_TAU,
    LinearHead,
    another_way,
    release_linear,
)
from demur.adapters.torch.heads import to_numpy
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

_KNOWN = "an nn.Linear or a module around exactly one"
_PROBES = 8


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
    copy = _around(model, linear, fresh)
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
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise NotALinearHead(
            "model was compiled (torch.compile). Release the module itself,"
            " model._orig_mod, and compile what is released. Nothing was spent."
        )
    _refuse_extras(model)
    # Exact types: a subclass, or a parametrised layer, may compute anything.
    if type(model) is nn.Linear:
        return model
    layers = {
        _attribute(name): module
        for name, module in model.named_modules()
        if module._parameters
    }
    linear = [name for name, module in layers.items() if type(module) is nn.Linear]
    if len(layers) != 1 or not linear:
        shown = [f"{name}: {type(module).__name__}" for name, module in layers.items()]
        raise NotALinearHead(
            f"model must be {_KNOWN}, without other parameters, frozen or not; got"
            f" {', '.join(shown[:6]) or 'no parameters'} in a {type(model).__name__}."
            f" {another_way(linear)} Nothing was spent."
        )
    layer = cast(nn.Linear, layers[linear[0]])
    if not layer.weight.is_floating_point():
        return layer
    _refuse_other_scores(model, layer, linear)
    return layer


def _attribute(name: str) -> str:
    """How the caller writes a submodule: model.fc, model[1]."""
    parts = [f"[{p}]" if p.isdigit() else f".{p}" for p in name.split(".") if p]
    return "model" + "".join(parts)


def _around(module: nn.Module, linear: nn.Linear, fresh: nn.Linear) -> nn.Module:
    """A new instance of the module's class: `fresh` for the layer, no attributes."""
    if module is linear:
        return fresh
    shell: nn.Module = object.__new__(type(module))
    nn.Module.__init__(shell)
    if type(module).__module__.startswith("torch.nn."):
        for name in getattr(type(module), "__constants__", ()):
            setattr(shell, name, getattr(module, name))
    for name, child in module.named_children():
        shell.add_module(name, _around(child, linear, fresh))
    return shell


def _refuse_other_scores(model: nn.Module, layer: nn.Linear, linear: list[str]) -> None:
    """Refuse a forward that is not the layer's scores: compared on random rows.

    The copy that would be released is tried, with random parameters, and not the
    trained model: what it computes must not need anything that is left out of it.
    """
    generator = torch.Generator().manual_seed(0)
    # `skip_init` leaves the caller's generator as it is.
    trial = nn.utils.skip_init(
        nn.Linear,
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        dtype=layer.weight.dtype,
    )
    with torch.no_grad():
        for parameter in trial.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn)
        rows = torch.randn((_PROBES, layer.in_features), generator=generator)
        rows = (rows * torch.logspace(-1, 1, _PROBES)[:, None]).to(layer.weight.dtype)
        wanted = trial(rows)
        copy = _around(model, layer, trial).eval()
        try:
            scores = copy(rows)
        except Exception as error:
            raise NotALinearHead(
                f"the forward of {type(model).__name__} does not run on a copy without"
                f" attributes of the instance ({type(error).__name__}): they may"
                " depend on the data, and no noise would cover them."
                f" {another_way(linear)} Nothing was spent."
            ) from error
    same = isinstance(scores, torch.Tensor) and scores.numel() == wanted.numel()
    if not same or not torch.allclose(
        scores.reshape(wanted.shape).double(), wanted.double(), rtol=1e-4, atol=1e-5
    ):
        raise NotALinearHead(
            f"the forward of {type(model).__name__} gives other numbers than the scores"
            f" of {linear[0]}, and the sensitivity is proved for a linear head"
            f" only. {another_way(linear)} Nothing was spent."
        )


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
