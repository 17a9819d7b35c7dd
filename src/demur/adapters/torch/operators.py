"""Operators of torch that torchax computes, or JAX differentiates, in another way.

While a module runs on JAX arrays, they have torch's own meaning:

- Transposed convolutions in groups: torchax 0.0.13 takes their filters in another
  order.
- Norms, standard deviations and distances have the gradient 0 where they are 0. JAX
  divides by 0 there, and an example whose gradient is not finite does not count: one
  row of zeros would leave its whole example out of the training, without a word.
- Attention of a word whose keys are all masked (padding on the left, or outside of a
  window) is 0, as in torch. -inf everywhere is no number after a softmax.
- `clamp` and what is made of it pass on no gradient where they cut. JAX multiplies by
  0, which leaves infinity times 0 behind `x.clamp(min=0).sqrt()`.
- At a kink, and where several entries are the largest, the side that torch takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import torch

Function = Callable[..., Any]
_TORCHAX = ("torchax.ops.op_base", "torchax.ops.ops_registry")
_NEAR = 25  # points; torch takes products for more


@contextmanager
def operators_of_torch(env: Any) -> Iterator[None]:
    """The operators below in place of torchax's, as long as a module runs."""
    op_base, ops_registry = map(import_module, _TORCHAX)
    table = env._ops
    real = {key: table.get(key) for key in (*_OWN, *_IN_PLACE, *_ATTENTION)}
    convolve = real[_aten.convolution].func
    own = _OWN | {_aten.convolution: _grouped(convolve)}
    for key, function in own.items():
        table[key] = ops_registry.Operator(key, function, True, True, False, False)
    for key in _ATTENTION:
        table[key] = ops_registry.Operator(key, _attention, False, True, False, False)
    for key, functional in _IN_PLACE.items():
        write = op_base.InplaceOp(functional)
        table[key] = ops_registry.Operator(key, write, False, True, False, True)
    try:
        yield
    finally:
        for key, operator in real.items():
            if operator is None:
                del table[key]
            else:
                table[key] = operator


def _grouped(convolve: Function) -> Function:
    def convolution(
        x: Any,
        weight: Any,
        bias: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
    ) -> Any:
        if transposed and groups > 1:
            # From (groups x inputs, outputs) to (inputs, groups x outputs), which
            # torchax reads out of the shape that it is given.
            inputs, outputs, *sizes = weight.shape
            parts = weight.reshape(groups, inputs // groups, outputs, *sizes)
            weight = jnp.moveaxis(parts, 0, 1).reshape(weight.shape)
        return convolve(
            x,
            weight,
            bias,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
        )

    return convolution


def _abs(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.abs(x)
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.abs(x))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None:
        x = jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def _clamp_max(x: Any, max: Any) -> Any:
    return _clamp(x, max=max)


def _hardtanh(x: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        min_val, max_val = int(min_val), int(max_val)
    return jnp.where(x <= min_val, min_val, jnp.where(x >= max_val, max_val, x))


def _hardsigmoid(x: Any) -> Any:
    return jnp.where(x <= -3, 0.0, jnp.where(x >= 3, 1.0, x / 6 + 0.5))


def _hardswish(x: Any) -> Any:
    return jnp.where(x <= -3, 0.0, jnp.where(x >= 3, x, x * (x / 6 + 0.5)))


def _leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    return jnp.where(x > 0, x, negative_slope * x)


def _root(x: Any, power: float = 0.5) -> Any:
    """A power of what is not negative, with the derivative 0 at 0."""
    inside = jnp.where(x == 0, 1.0, x)
    root = jnp.sqrt(inside) if power == 0.5 else inside**power
    return jnp.where(x == 0, 0.0, root).astype(x.dtype)


def _vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    if dtype is not None:
        x = x.astype(str(dtype).removeprefix("torch."))
    size, axis = _abs(x), _axis(x, dim)
    if ord == 0:
        return (x != 0).sum(axis, keepdims=keepdim).astype(size.dtype)
    if ord == float("inf"):
        return size.max(axis, keepdims=keepdim)
    if ord == -float("inf"):
        return size.min(axis, keepdims=keepdim)
    if ord == 1:
        return size.sum(axis, keepdims=keepdim)
    powers = size**2 if ord == 2 else _root(size, ord)
    return _root(powers.sum(axis, keepdims=keepdim), 1.0 / ord)


def _std(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    axis, free = _axis(x, dim), 1 if correction is None else correction
    return _root(x.var(axis, ddof=free, keepdims=keepdim))


def _std_mean(
    x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False
) -> tuple[Any, Any]:
    spread = _std(x, dim, correction=correction, keepdim=keepdim)
    return spread, x.mean(_axis(x, dim), keepdims=keepdim)


def _cdist(x: Any, y: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    named = {0: None, 1: "use_mm_for_euclid_dist", 2: "donot_use_mm_for_euclid_dist"}
    mode = named.get(compute_mode, compute_mode)
    many = max(x.shape[-2], y.shape[-2]) > _NEAR
    if p == 2 and mode != named[2] and (many or mode == named[1]):
        squares = (x**2).sum(-1)[..., :, None] + (y**2).sum(-1)[..., None, :]
        apart = squares - 2 * (x @ jnp.swapaxes(y, -1, -2))
        return _root(jnp.where(apart < 0, 0.0, apart))
    return _vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


def _largest(place: Function) -> Function:
    """The first of the largest, or smallest, of an axis, and its place."""

    def pick(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        if x.ndim == 0:
            return x, jnp.zeros((), int)
        indices = jnp.expand_dims(place(x, dim), dim)
        values = jnp.take_along_axis(x, indices, dim)
        if not keepdim:
            values, indices = values.squeeze(dim), indices.squeeze(dim)
        return values, indices

    return pick


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Of torch's own operations, whose dropout has its key from torchax."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
        scores = scores.masked_fill(ones.tril().logical_not(), -torch.inf)
    alone = None
    if attn_mask is not None:
        hidden = attn_mask == (0 if attn_mask.dtype == torch.bool else -torch.inf)
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(hidden, -torch.inf)
        else:
            scores = scores + attn_mask
        alone = hidden.all(-1, keepdim=True)
        scores = scores.masked_fill(alone, 0.0)
    weights = torch.softmax(scores, -1)
    if alone is not None:
        weights = weights.masked_fill(alone, 0.0)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    return weights @ value


def _axis(x: Any, dim: Any) -> Any:
    """An empty list of axes is all of them."""
    if dim is None or x.ndim == 0:
        return None
    if isinstance(dim, Sequence):
        return tuple(dim) or None
    return dim


_aten = torch.ops.aten
_OWN: dict[Any, Function] = {
    _aten.convolution: _grouped,  # which needs torchax's own
    _aten.abs: _abs,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp,
    _aten.clamp_min: _clamp,
    _aten.clamp_max: _clamp_max,
    _aten.hardtanh: _hardtanh,
    _aten.hardsigmoid: _hardsigmoid,
    _aten.hardswish: _hardswish,
    _aten.leaky_relu: _leaky_relu,
    _aten.linalg_vector_norm: _vector_norm,
    _aten.std.correction: _std,
    _aten.std_mean.correction: _std_mean,
    _aten.cdist: _cdist,
    _aten._cdist_forward: _cdist,
    torch.cdist: _cdist,
    _aten.max.dim: _largest(jnp.argmax),
    _aten.min.dim: _largest(jnp.argmin),
}
_ATTENTION = (
    torch.nn.functional.scaled_dot_product_attention,
    _aten.scaled_dot_product_attention,
)
_IN_PLACE = {
    _aten.abs_: _aten.abs,
    _aten.floor_: _aten.floor,
    _aten.hardtanh_: _aten.hardtanh,
    _aten.leaky_relu_: _aten.leaky_relu,
    _aten.hardsigmoid_: _aten.hardsigmoid,
    _aten.hardswish_: _aten.hardswish,
}
