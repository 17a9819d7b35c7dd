"""Widened programs: what a loss computes in narrow floats, computed in float32.

A loss that casts to bfloat16 by itself rounds by 0.4% in every operation, however wide
its parameters are, and a small term between examples is lost in that. Its program is
known, though, with its gradient in it. So the program is run again with every number
that is narrower than float32 held in float32: casts to narrow types change nothing, and
products, sums and look-ups are those of wide operands. Rules of derivatives that a loss
brings along have become part of the program by then.

What is not widened: operations on the bits of a number, callbacks, kernels and other
operations that hold a program of their own (`shard_map`, `reduce`). They get what they
were written for, and round; `roundoff` is the largest unit roundoff among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from demur.training.clipping.ghost import inlining
from demur.training.clipping.rounding import unit_roundoff

# Calls that group equations, and functions with derivative rules that nobody asked for.
_BODIES = {"call_jaxpr", "jaxpr", "fun_jaxpr"}
_GROUPS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "remat2",
    "checkpoint",
}
_FLOAT32 = jnp.dtype(jnp.float32)
_DTYPES = {"new_dtype", "preferred_element_type", "dtype"}
_SCATTERS = {
    "scatter": jax.lax.scatter,
    "scatter_add": jax.lax.scatter_add,
    "scatter_sub": jax.lax.scatter_sub,
    "scatter_mul": jax.lax.scatter_mul,
    "scatter_min": jax.lax.scatter_min,
    "scatter_max": jax.lax.scatter_max,
}
_BITS = {"bitcast_convert_type", "nextafter"}


def is_narrow(dtype: Any) -> bool:
    """Whether it is a floating dtype with fewer digits than float32."""
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        return False
    return unit_roundoff(dtype) > unit_roundoff(jnp.float32)


def narrow_roundoff(closed: core.ClosedJaxpr) -> float:
    """The largest unit roundoff of what is narrower than float32; 0 if nothing is."""
    kinds = filter(_is_narrow_kind, inlining.every_kind(closed))
    return max((unit_roundoff(kind.dtype) for kind in kinds), default=0.0)


def _is_narrow_kind(kind: Any) -> bool:
    return is_narrow(getattr(kind, "dtype", None))


def _wide(value: Any) -> Any:
    narrow = is_narrow(getattr(value, "dtype", None))
    return jnp.asarray(value, jnp.float32) if narrow else value


class WidenedProgram:
    """The program, as a function of the same arguments."""

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self._closed = closed
        self.roundoff = 0.0  # of what was left narrow; known once it was traced

    def __call__(self, *arguments: Any) -> list[Any]:
        """The results, narrow ones in float32."""
        return self._run(self._closed, arguments)

    def _run(self, closed: core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        return inlining.evaluate(
            closed, arguments, self._step, lambda _, value: _wide(value)
        )

    def _step(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        name = eqn.primitive.name.replace("-", "_")  # "scatter-add"
        operands = [_wide(operand) for operand in operands]
        if name in _GROUPS:
            if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
                # Rematerialised: not to be taken for what the forward pass computed.
                operands = list(jax.lax.optimization_barrier(operands))
            return self._run(_body(eqn), operands)
        if name == "scan":
            return inlining.rebuilt_scan(
                eqn, operands, lambda inner, _: (self._run(_body(eqn), inner), None)
            )[0]
        if name == "while":
            return self._loop(eqn, operands)
        if name == "cond":
            return self._branch(eqn, operands)
        kinds = [inlining.kind_of(atom) for atom in (*eqn.invars, *eqn.outvars)]
        if not any(map(_is_narrow_kind, kinds)) and not _held(eqn):
            return inlining.bind(eqn, operands)
        if name == "reduce_precision":
            return operands
        if name in _SCATTERS:
            return [_SCATTERS[name](*operands, **_scatter_options(eqn))]
        if name in _BITS or "call" in name or _held(eqn):
            return self._as_given(eqn, operands)
        params = {
            key: _FLOAT32 if key in _DTYPES and is_narrow(value) else value
            for key, value in eqn.params.items()
        }
        return inlining.bind(eqn.replace(params=params), operands)

    def _as_given(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        given = [inlining.kind_of(atom) for atom in eqn.invars]
        rounds = [unit_roundoff(k.dtype) for k in given if _is_narrow_kind(k)]
        rounds += [narrow_roundoff(program) for program in _held(eqn)]
        self.roundoff = max([self.roundoff, *rounds])
        cast = [
            jnp.asarray(operand, kind.dtype) if _is_narrow_kind(kind) else operand
            for operand, kind in zip(operands, given, strict=True)
        ]
        return inlining.bind(eqn, cast)

    def _loop(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        of_test, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        tested, fixed = operands[:of_test], operands[of_test : of_test + of_body]

        def goes_on(state: Sequence[Any]) -> Any:
            return self._run(test, [*tested, *state])[0]

        def turn(state: Sequence[Any]) -> list[Any]:
            # A loop under `vmap`: who is done stays as they are.
            going = goes_on(state)
            made = self._run(body, [*fixed, *state])
            if not going.shape:
                return made
            return [
                jnp.where(
                    going.reshape(going.shape + (1,) * (m.ndim - going.ndim)), m, s
                )
                for m, s in zip(made, state, strict=True)
            ]

        return jax.lax.while_loop(
            lambda state: jnp.any(goes_on(state)),
            turn,
            operands[of_test + of_body :],
        )

    def _branch(self, eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
        branches = [
            lambda *inner, branch=branch: self._run(branch, inner)
            for branch in eqn.params["branches"]
        ]
        index = jnp.asarray(operands[0], jnp.int32)
        return list(jax.lax.switch(index, branches, *operands[1:]))


def _body(eqn: core.JaxprEqn) -> core.ClosedJaxpr:
    (body,) = (eqn.params[name] for name in _BODIES if name in eqn.params)
    return body if isinstance(body, core.ClosedJaxpr) else core.ClosedJaxpr(body, ())


def _held(eqn: core.JaxprEqn) -> list[core.ClosedJaxpr]:
    """Programs among the parameters of an equation."""
    held = []
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.Jaxpr):
                held.append(core.ClosedJaxpr(part, ()))
            elif isinstance(part, core.ClosedJaxpr):
                held.append(part)
    return held


def _scatter_options(eqn: core.JaxprEqn) -> dict[str, Any]:
    """What a scatter of wide numbers takes over; its own program adds narrow ones."""
    taken = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    return {name: eqn.params[name] for name in taken}
