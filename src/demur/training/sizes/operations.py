"""How many operations a program takes, from its equations: a public number.

XLA counts them too, but on an accelerator only after compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def loss_flops(loss: Callable[..., Any], *structs: Any) -> float:
    """Operations of one call: two for each term of a product, one for other entries.

    >>> loss_flops(lambda w, x: (x @ w).sum(), jax.ShapeDtypeStruct((5, 3), float),
    ...            jax.ShapeDtypeStruct((2, 5), float))
    66.0
    """
    return _operations(jax.make_jaxpr(loss)(*structs).jaxpr)


def _operations(jaxpr: core.Jaxpr) -> float:
    return float(sum(map(_of_equation, jaxpr.eqns)))


def _of_equation(eqn: core.JaxprEqn) -> float:
    name, inner = eqn.primitive.name, [_operations(body) for body in _bodies(eqn)]
    if name == "scan":
        return float(eqn.params["length"]) * sum(inner)
    if inner:  # of a loop of unknown length one turn; of branches the longest
        return max(inner) if name == "cond" else sum(inner)
    entries = sum(math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars)
    if name == "dot_general":
        ((contracted, _), _) = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape  # type: ignore[attr-defined]
        return 2.0 * entries * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape  # type: ignore[attr-defined]
        outputs = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * entries * math.prod(kernel) / max(outputs, 1)
    if name.startswith("reduce_") or name in ("argmax", "argmin"):
        entries = math.prod(eqn.invars[0].aval.shape)  # type: ignore[attr-defined]
    return float(entries)


def _bodies(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in eqn.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            body = getattr(part, "jaxpr", part)
            if isinstance(body, core.Jaxpr):
                yield body
