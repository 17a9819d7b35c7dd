"""Inlining: the program of one example's loss, with nothing hidden in nested calls.

`inlined` opens `jit` and similar calls, and rebuilds `scan` and `checkpoint` around
their opened bodies. Every variable of the result stands in one place: JAX shares the
body of a function that is called twice, and a rule about where a parameter is used
must not confuse the two calls.

What has derivative rules of its own (`custom_jvp`, `custom_vjp`) and what chooses at
run time (`cond`, `while`) stays one equation. A program with references (`jax.new_ref`)
is not opened: a value that is written to one and read again passes no equation that
leads from the first to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

_CALLS = {"jit", "pjit", "closed_call", "core_call"}
_REMAT = {"remat2", "remat", "checkpoint"}


def kind_of(atom: core.Var | core.Literal) -> Any:
    """The shape and dtype of a variable or constant of a program."""
    return atom.aval


def is_call(eqn: core.JaxprEqn) -> bool:
    """Whether the equation only groups others."""
    return eqn.primitive.name in _CALLS


def is_scan(eqn: core.JaxprEqn) -> bool:
    """Whether the equation is a `lax.scan`."""
    return eqn.primitive.name == "scan"


def is_remat(eqn: core.JaxprEqn) -> bool:
    """Whether the equation is a `jax.checkpoint` that was not differentiated yet."""
    return eqn.primitive.name in _REMAT and not eqn.params.get("differentiated", False)


def scan_layout(eqn: core.JaxprEqn) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()  # jax 0.11
    return len(consts), len(carry)


def body_of(eqn: core.JaxprEqn) -> core.ClosedJaxpr:
    """The program inside a call, a scan or a checkpoint."""
    jaxpr = eqn.params["call_jaxpr" if "call_jaxpr" in eqn.params else "jaxpr"]
    if isinstance(jaxpr, core.ClosedJaxpr):
        return jaxpr
    return core.ClosedJaxpr(jaxpr, ())


def bind(eqn: core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation on these operands."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


Step = Callable[[core.JaxprEqn, list[Any]], list[Any]]


def evaluate(
    closed: core.ClosedJaxpr,
    arguments: Sequence[Any],
    step: Step,
    mark: Callable[[core.Var, Any], Any] = lambda _, value: value,
) -> list[Any]:
    """Run a program: `step` does an equation, `mark` sees each value as it appears."""
    jaxpr = closed.jaxpr
    known: dict[core.Var, Any] = {}

    def read(atom: core.Var | core.Literal) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    def write(variables: Sequence[core.Var], values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            known[variable] = mark(variable, value)

    write(jaxpr.constvars, closed.consts)
    write(jaxpr.invars, arguments)
    for eqn in jaxpr.eqns:
        write(eqn.outvars, step(eqn, [read(atom) for atom in eqn.invars]))
    return [read(atom) for atom in jaxpr.outvars]


def rebuilt_scan(
    eqn: core.JaxprEqn,
    operands: Sequence[Any],
    body: Callable[[Sequence[Any], Any], tuple[list[Any], Any]],
    extra: Any = None,
) -> tuple[list[Any], Any]:
    """The scan again, with `body(operands, extra slice) -> (results, extra results)`.

    `extra` is a pytree scanned beside the operands; what the body gives in return is
    stacked.
    """
    consts, carry = scan_layout(eqn)
    fixed, rest = list(operands[:consts]), list(operands[consts:])

    def turn(state: list[Any], slices: tuple[list[Any], Any]) -> tuple[Any, Any]:
        scanned, more = slices
        results, given = body([*fixed, *state, *scanned], more)
        return results[:carry], (results[carry:], given)

    final, (stacked, given) = jax.lax.scan(
        turn,
        rest[:carry],
        (rest[carry:], extra),
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
        unroll=eqn.params["unroll"],
    )
    return [*final, *stacked], given


def rebuilt_remat(
    eqn: core.JaxprEqn,
    operands: Sequence[Any],
    body: Callable[[Sequence[Any], Any], tuple[list[Any], Any]],
    extra: Any = None,
) -> tuple[list[Any], Any]:
    """The checkpoint again, with the same signature of `body` as `rebuilt_scan`."""
    redo = jax.checkpoint(
        body, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"]
    )
    return redo(list(operands), extra)


def _open(eqn: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    if is_call(eqn):
        return evaluate(body_of(eqn), operands, _open)
    if eqn.primitive.name == "split":  # as slices, which have a rule
        axis, starts = eqn.params["axis"], [0, *accumulate(eqn.params["sizes"])]
        return [
            jax.lax.slice_in_dim(operands[0], start, end, axis=axis)
            for start, end in pairwise(starts)
        ]

    def body(inner: Sequence[Any], _: Any) -> tuple[list[Any], Any]:
        return evaluate(body_of(eqn), inner, _open), None

    if is_scan(eqn):
        return rebuilt_scan(eqn, operands, body)[0]
    if is_remat(eqn):
        return rebuilt_remat(eqn, operands, body)[0]
    return bind(eqn, operands)


def inlined(closed: core.ClosedJaxpr, *structs: Any) -> core.ClosedJaxpr:
    """The opened program, for arguments of these shapes."""
    return jax.make_jaxpr(lambda *flat: evaluate(closed, flat, _open))(*structs)


def every_equation(closed: core.ClosedJaxpr) -> Iterator[core.JaxprEqn]:
    """The equations of the program and of those inside it."""

    def inside(value: Any) -> Iterator[core.JaxprEqn]:
        if isinstance(value, core.ClosedJaxpr):
            value = value.jaxpr
        if isinstance(value, core.Jaxpr):
            for eqn in value.eqns:
                yield eqn
                yield from inside(tuple(eqn.params.values()))
        elif isinstance(value, tuple | list):
            for part in value:
                yield from inside(part)

    return inside(closed)


def every_kind(closed: core.ClosedJaxpr) -> Iterator[Any]:
    """Shape and dtype of every value that an equation takes or gives."""
    for eqn in every_equation(closed):
        yield from (kind_of(atom) for atom in (*eqn.invars, *eqn.outvars))


def mixing_convolutions(closed: core.ClosedJaxpr) -> Iterator[core.JaxprEqn]:
    """Convolutions whose kernels' gradients XLA does not keep apart.

    In float64 on a CPU it forms those of several examples as one convolution with zeros
    between them, so that one that is not a number reaches all others.
    """
    if jax.default_backend() == "cpu":
        for eqn in every_equation(closed):
            if eqn.primitive.name == "conv_general_dilated":
                if kind_of(eqn.outvars[0]).dtype == jnp.float64:
                    yield eqn


def uses_references(closed: core.ClosedJaxpr) -> bool:
    """Whether the program, or one inside it, reads or writes a `jax.Ref`."""
    return any(isinstance(kind, jax.ref.AbstractRef) for kind in every_kind(closed))
