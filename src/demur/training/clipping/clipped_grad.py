"""Sums of clipped per-example gradients, for any JAX loss.

`clipped_grad(loss, l2_clip_norm=C)` gives a function of parameters and a batch. Each
example's gradient is scaled down to length C, and the scaled gradients are added. The
result is a `ClippedSum`: adding or removing one example moves it by at most C.

Two methods compute it. "vmap" differentiates example by example. "auto" works from each
layer's input and output cotangent: ghost clipping (also called book-keeping), at about
the cost of an ordinary gradient. Per-example gradients are formed only for parameters
that it has no rule for. It has a fast form and one at ordinary memory. All clip at the
same bound; `explain` says what "auto" does.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from demur.core import validate
from demur.training.clipping import microbatches
from demur.training.clipping.accumulation import (
    ROW_SHARE,
    Accumulator,
    check_accumulator,
    check_device,
)
from demur.training.clipping.clip_factors import Clip, add_up
from demur.training.clipping.collectives import check_no_collectives
from demur.training.clipping.ghost.explanation import (
    CompiledMemory,
    Explanation,
    explain,
    explain_vmap,
    only_shapes,
    temporary_bytes,
)
from demur.training.clipping.ghost.inlining import mixing_convolutions
from demur.training.clipping.ghost.memory import Form, Memory, checked_memory
from demur.training.clipping.ghost.sums import ghost_sums
from demur.training.clipping.per_example import Loss, one_example, vmap_gradients
from demur.training.clipping.rounding import wide
from demur.training.clipping.types import Aux, ClippedGrad, ClippedSum, PyTree
from demur.training.devices.varying_axes import as_varying, may_vary_over

Method = Literal["auto", "vmap"]


def clipped_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    l2_clip_norm: PyTree,
    rescale_to_unit_norm: bool = False,
    normalize_by: float = 1.0,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    return_values: bool = False,
    return_grad_norms: bool = False,
    pre_clipping_transform: Callable[[PyTree], PyTree] | None = None,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
    method: Method = "auto",
    memory: Memory = None,
    accumulator: Accumulator = "float32",
) -> ClippedGrad:
    """A function that sums the gradients of `fun`, each clipped to `l2_clip_norm`.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, batch: 0.5 * jnp.mean((batch - w) ** 2)
    >>> grad = clipped_grad(loss, l2_clip_norm=4.0, return_grad_norms=True)
    >>> total, aux = grad(jnp.float32(3.0), jnp.array([0.0, 7.0, -2.0]))
    >>> aux.grad_norms
    Array([3., 4., 5.], dtype=float32)
    >>> round(float(total.value), 4)
    3.0
    >>> grad.sensitivity("REPLACE_ONE")
    8.0

    `fun(params, batch)` is the loss of a batch of one; with `keep_batch_dim=False`
    it takes an example without batch axis, or one user's group when the batch is
    [users, k, ...]. With `has_aux` it returns `(loss, aux)`. `argnums` are
    differentiated, `batch_argnums` have the batch axis first, `prng_argnum` is a key
    that is split over the examples; keyword arguments of the call are per example, as
    in `jax.vmap`.

    `l2_clip_norm` may be a tree that is a prefix of the gradient: each part is clipped
    by itself, and the bound is the root of the sum of squares. `rescale_to_unit_norm`
    divides by the clip norm; `normalize_by` is a public divisor, never the size
    of a sampled batch. The result has `dtype`, float32 or wider.

    Called with `microbatch_size`, examples are processed that many at a time, and
    processing stops at the last real one. `memory` chooses between two forms of "auto":
    "fast" holds every layer's input and cotangent until the clip factors are known;
    "ordinary" computes them twice, holds none, and so needs about the memory of an
    ordinary gradient and up to twice its time. A number of bytes takes the fast form if
    what it holds is no more than that; None does so for half of the device's memory.

    With `accumulator="float64"` the contributions are added up in float64, so that the
    rounding of the sum has a bound (`ClippedSum.row_rounding`); plans with hardened
    noise ask for it and pay for the bound.

    `return_values`, `return_grad_norms` and `has_aux` return per-example outputs in an
    `Aux`; these are exact.
    """
    arguments = dict(locals())
    differentiated, batched = _positions(argnums), _positions(batch_argnums)
    _check(arguments, differentiated, batched)
    clip = Clip(
        norm_tree(l2_clip_norm, rescale_to_unit_norm),
        bool(rescale_to_unit_norm),
        float(normalize_by),
        None if dtype is None else jnp.dtype(dtype),
        accumulator,
    )
    check_accumulator(accumulator, clip.l2_norm_bound)
    by_vmap = method == "vmap" or pre_clipping_transform is not None
    keeps_aux = bool(has_aux or return_values or return_grad_norms)
    single = isinstance(argnums, numbers.Integral)

    def split(args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, Any, Loss]:
        """The parameters, the rows of the batch, and the loss of one row."""
        _check_call(args, differentiated + batched, prng_argnum)
        params = jax.tree.map(_parameter, tuple(args[i] for i in differentiated))
        if not jax.tree.leaves(params):
            raise ValueError("the differentiated arguments hold no arrays")
        batch = jax.tree.map(jnp.asarray, ([args[i] for i in batched], named))
        size = microbatches.batch_size(batch)
        keys = None
        if prng_argnum is not None:
            keys = jax.tree.map(
                lambda key: jax.random.split(key, size), args[prng_argnum]
            )

        def loss(params: Any, row: Any) -> tuple[Any, Any]:
            (example, more), key = row
            if keep_batch_dim:
                example = jax.tree.map(lambda leaf: leaf[None], example)
            call = dict(enumerate(args))
            params = (params,) if single else params
            call.update(zip(differentiated, params, strict=True))
            call.update(zip(batched, example, strict=True))
            if prng_argnum is not None:
                call[prng_argnum] = key
            result = fun(*call.values(), **more)
            value, aux = result if has_aux else (result, None)
            if isinstance(value, tuple | list | dict):
                raise TypeError(
                    f"the loss must be a scalar; got a {type(value).__name__}. If it"
                    " returns (loss, aux), make the gradient by clipped_grad(loss,"
                    " has_aux=True, ...)"
                )
            if jnp.shape(value) != ():
                raise TypeError(
                    f"the loss must be a scalar; got shape {jnp.shape(value)}"
                )
            if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
                raise TypeError(
                    "the loss must be a real floating number;"
                    f" got {jnp.result_type(value)}"
                )
            if keep_batch_dim:
                aux = jax.tree.map(_without_batch_axis, aux)
            return value, jax.tree.map(jnp.asarray, aux)

        rows = (batch, keys)
        params = as_varying(params, like=rows)
        return params[0] if single else params, rows, loss

    def chunk(params: Any, rows: Any, real: Any, loss: Loss) -> microbatches.ChunkSums:
        """The clipped sum over some rows."""
        if by_vmap:
            program = one_example(loss, params, rows)
            check_no_collectives(program)
            if pre_clipping_transform is not None:
                check_no_collectives(jax.make_jaxpr(pre_clipping_transform)(params))
            gradients = vmap_gradients(
                loss,
                params,
                rows,
                pre_clipping_transform,
                spmd_axis_name,
                any(mixing_convolutions(program)),
            )
            sums = add_up(gradients, clip, real)
        else:
            sums, gradients = ghost_sums(
                loss,
                params,
                rows,
                clip,
                real,
                memory=memory,
                spmd_axis_name=spmd_axis_name,
            )
        tree = gradients.tree
        if dtype is not None and accumulator != "float64":
            sums = [leaf.astype(dtype) for leaf in sums]
        per_example = Aux(
            gradients.values if return_values else None,
            gradients.norms if return_grad_norms else None,
            gradients.aux if has_aux else None,
        )
        return microbatches.ChunkSums(jax.tree.unflatten(tree, sums), per_example)

    def run(*args: Any, is_padding_example: Any, num_real: Any, **named: Any) -> Any:
        check_device(accumulator)
        params, rows, loss = split(args, named)
        result = microbatches.process(
            lambda some, flags: chunk(params, some, flags, loss),
            rows,
            microbatches.real_examples(rows, is_padding_example, num_real),
            microbatch_size,
        )
        total = ClippedSum(
            result.sums,
            clip.l2_norm_bound,
            sharded_over=may_vary_over(rows),
            row_rounding=ROW_SHARE if accumulator == "float64" else None,
        )
        return (total, result.rows) if keeps_aux else total

    def account(*args: Any, compiled: bool, **named: Any) -> Explanation:
        def look(args: Any, named: Any) -> Explanation:
            params, rows, loss = split(args, named)
            if by_vmap:
                return explain_vmap(loss, params, rows)
            count = microbatches.batch_size(rows)
            size = count if microbatch_size is None else min(count, microbatch_size)
            return explain(loss, params, rows, memory, size)

        def plain(args: Any, named: Any) -> Any:
            params, rows, loss = split(args, named)
            return jax.grad(lambda p: jnp.sum(jax.vmap(loss, (None, 0))(p, rows)[0]))(
                params
            )

        def clipped(form: Form) -> int:
            made = clipped_grad(**{**arguments, "memory": form})
            return temporary_bytes(lambda args, more: made(*args, **more), args, named)

        explanation: Explanation = only_shapes(look, args, named)
        if not compiled or explanation.memory is None:
            return explanation
        figures = CompiledMemory(
            temporary_bytes(plain, args, named), clipped("fast"), clipped("ordinary")
        )
        return replace(
            explanation, memory=replace(explanation.memory, compiled=figures)
        )

    return ClippedGrad(
        l2_norm_bound=clip.l2_norm_bound,
        has_aux=keeps_aux,
        arguments=arguments,
        run=run,
        make=clipped_grad,
        account=account,
    )


def _positions(argnums: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(argnums, int | numbers.Integral):
        return (int(argnums),)
    return tuple(int(number) for number in argnums)


def _check(
    arguments: dict[str, Any],
    differentiated: tuple[int, ...],
    batched: tuple[int, ...],
) -> None:
    if not callable(arguments["fun"]):
        raise TypeError("fun must be a function of parameters and a batch")
    if not differentiated or not batched:
        raise ValueError("argnums and batch_argnums must each name an argument")
    taken = [*differentiated, *batched]
    if arguments["prng_argnum"] is not None:
        taken.append(int(arguments["prng_argnum"]))
    if min(taken) < 0:
        raise ValueError(f"argument numbers must be at least 0; got {taken}")
    if len(set(taken)) < len(taken):
        raise ValueError(
            "an argument is differentiated, batched or a key, and only one of these;"
            f" got argnums={differentiated}, batch_argnums={batched},"
            f" prng_argnum={arguments['prng_argnum']}"
        )
    validate.positive(normalize_by=arguments["normalize_by"])
    if arguments["microbatch_size"] is not None:
        validate.count(microbatch_size=arguments["microbatch_size"])
    if arguments["method"] not in ("auto", "vmap"):
        raise ValueError(
            f"method must be 'auto' or 'vmap'; got {arguments['method']!r}"
        )
    if checked_memory(arguments["memory"]) == "ordinary" and (
        arguments["method"] == "vmap" or arguments["pre_clipping_transform"] is not None
    ):
        raise ValueError(
            "memory='ordinary' is a form of method='auto'; method='vmap' and a"
            " pre_clipping_transform hold every gradient. Use microbatch_size."
        )
    if not arguments["nan_safe"]:
        raise ValueError(
            "nan_safe=False would let one example make the sum infinite: the declared"
            " sensitivity holds only when such examples are left out"
        )
    dtype = arguments["dtype"]
    if dtype is not None and (
        not jnp.issubdtype(dtype, jnp.floating) or wide(dtype) != jnp.dtype(dtype)
    ):
        raise ValueError(f"dtype must be float32 or wider; got {jnp.dtype(dtype)}")


def _check_call(args: Sequence[Any], named: Sequence[int], key: int | None) -> None:
    needed = max([*named, -1 if key is None else key]) + 1
    if len(args) < needed:
        raise TypeError(f"expected at least {needed} arguments; got {len(args)}")


def norm_tree(norms: PyTree, rescale: bool) -> PyTree:
    """The clip norms as floats; anything but positive numbers is refused."""

    def checked(norm: Any) -> float:
        if isinstance(norm, str | bool | complex) or jnp.shape(norm) != ():
            raise TypeError("l2_clip_norm must be a number or a tree of numbers")
        value = float(norm)
        if not value > 0 or (rescale and math.isinf(value)):
            raise ValueError(f"l2_clip_norm must be positive; got {value}")
        return value

    if not jax.tree.leaves(norms):
        raise ValueError("l2_clip_norm must hold a number")
    return jax.tree.map(checked, norms)


def _parameter(leaf: Any) -> Any:
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(f"parameters must be real floating numbers; got {leaf.dtype}")
    return leaf


def _without_batch_axis(leaf: Any) -> Any:
    shape = jnp.shape(leaf)
    return jnp.squeeze(leaf, 0) if shape and shape[0] == 1 else leaf
