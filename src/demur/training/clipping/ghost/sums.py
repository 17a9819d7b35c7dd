"""Clipped sums by ghost clipping: in one pass, or in two at ordinary memory."""

from __future__ import annotations

from typing import Any

from demur.training.clipping.clip_factors import Clip, add_up
from demur.training.clipping.ghost.gradients import Traced, ghost_gradients
from demur.training.clipping.ghost.memory import Memory, form_for, held_bytes
from demur.training.clipping.ghost.two_passes import TwoPasses
from demur.training.clipping.microbatches import batch_size
from demur.training.clipping.per_example import (
    Loss,
    MeasuredGradients,
    vmap_gradients,
)


def ghost_sums(
    loss: Loss,
    params: Any,
    rows: Any,
    clip: Clip,
    real: Any,
    *,
    memory: Memory,
    spmd_axis_name: Any,
) -> tuple[list[Any], MeasuredGradients]:
    """The clipped sum, leaf by leaf, and what else the pass gives."""
    traced = Traced(loss, params, rows)
    if traced.uses_references or traced.mixes:
        gradients = vmap_gradients(
            loss, params, rows, None, spmd_axis_name, traced.mixes
        )
        return add_up(gradients, clip, real), gradients
    if form_for(memory, held_bytes(traced) * batch_size(rows)) == "ordinary":
        return TwoPasses(traced, spmd_axis_name, clip.accumulator).run(clip, real)
    gradients = ghost_gradients(traced, spmd_axis_name)
    return add_up(gradients, clip, real), gradients
