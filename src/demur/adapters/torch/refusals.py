"""Torch layers that have no private gradient, refused by name with what to use instead.

A layer that looks across its batch has no gradient of one example. One that keeps what
it has seen (running statistics, rows that a look-up changes) would release it without
noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
        if getattr(layer, "max_norm", None) is not None:
            raise TypeError(
                f"{shown} with max_norm changes its rows whenever an example looks them"
                " up, which nothing protects: leave max_norm out. Nothing was spent."
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

    functional.batch_norm = guarded
    try:
        yield
    finally:
        functional.batch_norm = real
