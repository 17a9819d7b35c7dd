"""Torch layers that have no private gradient, refused by name with what to use instead.

A layer that looks across its batch has no gradient of one example. One that keeps what
it has seen (running statistics, rows that a look-up changes) would release it without
noise.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

_BATCH_NORM = (
    "normalises over the batch, so that every example's gradient depends on the others."
    " Use nn.GroupNorm or nn.LayerNorm, or call .eval() on it to keep its statistics as"
    " they are. Nothing was spent."
)

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_SPECTRAL = (
    torch.nn.utils.parametrizations._SpectralNorm,
    torch.nn.utils.spectral_norm.__globals__["SpectralNorm"],
)
# Draws for which torchax has no key, or that it writes into nothing.
_UNKEYED = frozenset("exponential_ cauchy_ trunc_normal_ gumbel_softmax".split())
_WEIGHTED = frozenset("cross_entropy nll_loss cross_entropy_loss".split())


def copied(module: nn.Module) -> nn.Module:
    """A copy of the module; refused by name where there cannot be one."""
    if isinstance(module, _WRAPPERS):
        raise TypeError(
            f"{type(module).__name__} splits a batch among devices, which `fit` does by"
            " itself: pass module.module. Nothing was spent."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "a torch.jit.ScriptModule does not run its own Python code: pass the module"
            " that it was made of. Nothing was spent."
        )
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in tensors:
        if tensor.is_meta:
            raise TypeError(
                f"{name} is on the device meta and has no numbers: load the weights"
                " first. Nothing was spent."
            )
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:
        raise TypeError(
            f"the module cannot be copied ({str(error).split('. ')[0]}). The older"
            " torch.nn.utils.weight_norm is a cause: use"
            " torch.nn.utils.parametrizations.weight_norm. Nothing was spent."
        ) from error


def refuse_mixing(module: nn.Module) -> None:
    """Refuse, by name, layers that look across a batch or keep what they have seen."""
    for name, layer in module.named_modules():
        shown = f"{name or 'the module'} ({type(layer).__name__})"
        normalises = isinstance(layer, nn.modules.batchnorm._NormBase)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.training:
            raise TypeError(f"{shown} {_BATCH_NORM}")
        if normalises and layer.training and layer.track_running_stats:
            raise TypeError(
                f"{shown} keeps running statistics of the examples, which nothing"
                " protects: give it track_running_stats=False, or call .eval() on it."
                " Nothing was spent."
            )
        before = layer._forward_pre_hooks.values()
        if layer.training and any(isinstance(o, _SPECTRAL) for o in (layer, *before)):
            raise TypeError(
                f"{shown} changes its buffers whenever it runs (spectral_norm): call"
                " .eval() on it. Nothing was spent."
            )
        if getattr(layer, "max_norm", None) is not None:
            raise TypeError(
                f"{shown} with max_norm changes its rows whenever an example looks them"
                " up, which nothing protects: leave max_norm out. Nothing was spent."
            )
        if getattr(layer, "scale_grad_by_freq", False):
            raise TypeError(
                f"{shown} with scale_grad_by_freq divides a gradient by how often its"
                " row occurs in the batch, so that examples depend on each other: leave"
                " it out. Nothing was spent."
            )
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            raise TypeError(
                f"{shown} has no parameters yet: run the module once on an example."
                " Nothing was spent."
            )


def refuse_wide(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse float64 where JAX would narrow it."""
    narrows = jax.dtypes.canonicalize_dtype(np.float64) != np.float64
    for name, tensor in state.items():
        if tensor.dtype == torch.float64 and narrows:
            raise TypeError(
                f"{name} is float64, which JAX computes only under jax_enable_x64: call"
                " module.float(). Nothing was spent."
            )


def only_here(ours: Callable[..., Any], real: Callable[..., Any]) -> Any:
    """`ours` in this thread, and `real` in any other, which may use torch meanwhile."""
    thread = threading.get_ident()

    @wraps(real)
    def either(*args: Any, **named: Any) -> Any:
        return (ours if threading.get_ident() == thread else real)(*args, **named)

    return either


@contextmanager
def batch_norm_refused() -> Iterator[None]:
    """Refuse `torch.nn.functional.batch_norm` over a batch, which no layer shows."""
    functional: Any = nn.functional
    real = functional.batch_norm

    def guarded(
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if training:
            raise TypeError(f"torch.nn.functional.batch_norm {_BATCH_NORM}")
        return real(
            input, running_mean, running_var, weight, bias, training, *rest, **named
        )

    functional.batch_norm = only_here(guarded, real)
    try:
        yield
    finally:
        functional.batch_norm = real


def refuse_call(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuse, by name, calls that mean something else for one example at a time.

    A loss with weights of classes is divided by the weights of the batch: of one
    example it is the loss without weights, which made-up labels need not show.
    """
    if named.get("generator") is not None:
        raise TypeError(
            f"{name} draws from a generator of its own, which would give every example"
            " and step the same numbers: leave generator= out. Nothing was spent."
        )
    if name in _UNKEYED:
        raise TypeError(
            f"{name} has no key of its own for each example: draw by torch.rand_like or"
            " torch.randn_like. Nothing was spent."
        )
    if name == "register_hook":
        raise TypeError(
            "the module has a hook on a gradient (Tensor.register_hook), which a"
            " private run does not call: remove it. Nothing was spent."
        )
    if name == "embedding" and (
        named.get("scale_grad_by_freq") or named.get("max_norm") is not None
    ):
        raise TypeError(
            "torch.nn.functional.embedding with max_norm or scale_grad_by_freq makes"
            " examples depend on each other: leave it out. Nothing was spent."
        )
    if name in _WEIGHTED:
        weight = named.get("weight", args[2] if len(args) > 2 else None)
        if weight is not None and named.get("reduction", "mean") == "mean":
            raise TypeError(
                f"{name} with weight= divides by the weights of the whole batch, so"
                " that one example by itself has none: use"
                " (F.cross_entropy(scores, y, reduction='none') * weight[y]).mean()."
                " Nothing was spent."
            )


@contextmanager
def unkeyed_draws_refused() -> Iterator[None]:
    """Refuse numbers out of Python's, NumPy's or torch's own generator.

    They would be drawn once, when the program is made, and be the same for every
    example and step.
    """
    before = _generators()
    yield
    for name, state in _generators().items():
        if state != before[name]:
            raise TypeError(
                f"the module draws from {name}, which would give every example and step"
                " the same numbers: use torch.rand_like or nn.Dropout, whose keys"
                " follow the example. Nothing was spent."
            )


def _generators() -> dict[str, Any]:
    kind, keys, place, *rest = np.random.get_state(legacy=True)
    return {
        "Python's random": random.getstate(),
        "numpy.random": (kind, np.asarray(keys).tobytes(), place, *rest),
        "torch's generator of the CPU": torch.get_rng_state().numpy().tobytes(),
    }


@contextmanager
def changed_buffers_refused(module: nn.Module) -> Iterator[None]:
    """Refuse a module that changes a buffer: nothing protects what is kept there."""
    before = {name: (b, _numbers(b)) for name, b in module.named_buffers()}
    yield
    for name, buffer in module.named_buffers():
        was, numbers = before.get(name, (None, None))
        if buffer is not was or _numbers(buffer) is not numbers:
            raise TypeError(
                f"the module changes its buffer {name.removeprefix('module.')} when it"
                " runs (a running statistic), which nothing protects: leave it as it"
                " is, or call .eval(). Nothing was spent."
            )


@contextmanager
def counters_refused(module: nn.Module, changed: set[str]) -> Iterator[None]:
    """Refuse a module that counts its calls: a program runs its Python code once.

    `changed` are the numbers that the last run changed. What a run finds out about its
    shapes, and keeps, is not changed by the next one.
    """
    before = _counts(module)
    yield
    now = {name for name, n in _counts(module).items() if before.get(name, n) != n}
    again = sorted(now & changed)
    changed.clear()
    changed.update(now)
    if again:
        raise TypeError(
            f"the module changes {again[0].removeprefix('module.')} whenever it runs,"
            " which a compiled program would not do: set such a number outside, or make"
            " it a column of the data. Nothing was spent."
        )


def _counts(module: nn.Module) -> dict[str, float]:
    return {
        f"{name}.{key}": value
        for name, layer in module.named_modules()
        for key, value in vars(layer).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _numbers(tensor: Any) -> Any:
    return getattr(tensor, "_elem", tensor)  # what torchax replaces when it writes
