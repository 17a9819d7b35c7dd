"""Gradient checkpointing of torch modules, as `jax.checkpoint`.

`torch.utils.checkpoint.checkpoint` recomputes a part of a module in the backward pass
of torch's own autograd, which does not run here. While a module runs on JAX arrays, the
function of that name is the one below; so `gradient_checkpointing_enable()` of a
Hugging Face model, and any call in a module's own code, save memory as they would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils import _pytree as torch_tree

from demur.adapters.torch.refusals import only_here

# Arguments of torch's function that say how to recompute, and not what.
_OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check")
_OPTIONS = (*_OWN, "debug", "early_stop")


@contextmanager
def checkpoints_by_jax(env: Any) -> Iterator[None]:
    """`torch.utils.checkpoint.checkpoint` is `jax.checkpoint` meanwhile."""
    home: Any = torch.utils.checkpoint
    real = home.checkpoint
    home.checkpoint = only_here(partial(recomputed, env), real)
    try:
        yield
    finally:
        home.checkpoint = real


def use_in(module: nn.Module) -> None:
    """Let Hugging Face layers, which keep torch's function, look it up when called."""
    for layer in module.modules():
        if getattr(layer, "_gradient_checkpointing_func", None) is not None:
            layer._gradient_checkpointing_func = _look_up


def _look_up(*args: Any, **named: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(*args, **named)


def recomputed(env: Any, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """`function(*args, **named)`, computed again where its derivatives are needed.

    Random numbers are the same both times: the key goes in, and comes out rotated.
    """
    named = {name: value for name, value in named.items() if name not in _OPTIONS}
    flat, spec = torch_tree.tree_flatten((args, named))
    places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
    told: dict[str, Any] = {}

    def pure(key: Any, arrays: list[Any]) -> tuple[Any, list[Any]]:
        values = list(flat)
        for i, tensor in zip(places, env.j2t_iso(arrays), strict=True):
            values[i] = tensor
        inner_args, inner_named = torch_tree.tree_unflatten(values, spec)
        with env.override_property(prng=key):
            result = function(*inner_args, **inner_named)
            rotated = env.prng_key
        leaves, told["spec"] = torch_tree.tree_flatten(result)
        is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        told["others"] = [
            None if one else leaf for leaf, one in zip(leaves, is_tensor, strict=True)
        ]
        told["tensors"] = [i for i, one in enumerate(is_tensor) if one]
        # A module without dropout leaves the key alone, by which dropout that no
        # layer shows is found.
        told["draws"] = rotated is not key
        return rotated, env.t2j_iso([leaves[i] for i in told["tensors"]])

    given = env.t2j_iso([flat[i] for i in places])
    rotated, arrays = jax.checkpoint(pure)(env.prng_key, given)
    if told["draws"]:
        env.param.prng = rotated
    results = list(told["others"])
    for i, tensor in zip(told["tensors"], env.j2t_iso(arrays), strict=True):
        results[i] = tensor
    return torch_tree.tree_unflatten(results, told["spec"])
