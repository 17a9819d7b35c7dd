"""Memory of ghost clipping: what the fast form holds, and which form is taken.

The fast form holds the data operand and the cotangent of every layer, and the gradients
of tapped parameters, all at the moment when the clip factors are known. The size of
these arrays follows from their shapes, so it costs nothing to know. It is a lower
bound for what the program needs: a program that holds more than fits cannot run. XLA's
own figure is had by compiling, which takes as long as compiling the step itself, and
twice that for two forms: `explain(..., compiled=True)` shows it.

So the default is the fast form where what it holds is at most half of the device's
memory. The other half is for activations, parameters and optimiser.
"""

from __future__ import annotations

import math
import numbers
import os
from typing import Any, Literal, TypeAlias

import jax

from demur.core.validate import shorten
from demur.training.clipping.ghost.convolution import Convolution
from demur.training.clipping.ghost.found_routes import Site
from demur.training.clipping.ghost.gradients import Traced
from demur.training.clipping.ghost.inlining import kind_of

Memory: TypeAlias = Literal["ordinary", "fast"] | int | None
Form: TypeAlias = Literal["ordinary", "fast"]

_SHARE = 0.5


def checked_memory(memory: Any) -> Memory:
    """The option, or an error."""
    if memory is None or memory in ("ordinary", "fast"):
        return memory
    whole = isinstance(memory, numbers.Integral) and not isinstance(memory, bool)
    if not whole or int(memory) < 0:
        raise ValueError(
            "memory must be 'ordinary', 'fast' or a number of bytes;"
            f" got {shorten(memory)}"
        )
    return int(memory)


def default_budget(devices: int = 1) -> int | None:
    """How many bytes the fast form may hold on this machine; None if unknown."""
    try:
        limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    except RuntimeError:  # a backend that keeps no account
        limit = None
    if limit is None and jax.default_backend() == "cpu":
        try:
            limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            limit = None
    return None if not limit else int(limit * _SHARE) * devices


def _bytes(kind: Any) -> int:
    return math.prod(kind.shape) * kind.dtype.itemsize


def _held_at(site: Site) -> int:
    turns = math.prod(loop.length for loop in site.loops)
    data, cotangent = _bytes(site.layer.other), _bytes(site.layer.output)
    if isinstance(site.layer, Convolution):
        positions, left, right = site.layer.form
        each = positions * site.layer.params["feature_group_count"]
        data = each * left * site.layer.other.dtype.itemsize
        cotangent = each * right * site.layer.output.dtype.itemsize
    return turns * (data + cotangent)


def held_bytes(traced: Traced) -> int:
    """What the fast form holds for each example when the clip factors are known."""
    sites = sum(_held_at(site) for site in traced.routes.all_sites)
    tapped = sum(
        _bytes(kind_of(route.tapped))
        for route in traced.routes.of
        if route.tapped is not None
    )
    return sites + tapped


def form_for(memory: Memory, held: int) -> Form:
    """The form that is taken when the fast one would hold `held` bytes."""
    if memory in ("ordinary", "fast"):
        return memory
    budget = default_budget() if memory is None else memory
    return "fast" if budget is None or held <= int(budget) else "ordinary"
