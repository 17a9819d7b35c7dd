"""Admission of a sum to noise: what the noise was made for, and where it protects."""

from __future__ import annotations

from typing import Any

import jax

from demur.training.clipping.types import ClippedSum
from demur.training.devices.varying_axes import are_tracked, manual_axes, varying_axes


def check_sum(
    updates: object, allowed: float | None, row_rounding: float | None = None
) -> None:
    """Refuse anything but a clipped sum as it was made, clipped to `allowed`.

    With `row_rounding` the noise pays for so much rounding and no more.
    """
    if not isinstance(updates, ClippedSum):
        raise TypeError(
            "a privatizer takes a ClippedSum, whose sensitivity is known; got"
            f" {type(updates).__name__}. Nothing was drawn."
        )
    updates.check_intact()
    # Bounds are static numbers; a factor of rounding is not a different clip norm.
    if allowed is not None and updates.l2_norm_bound > allowed * (1 + 1e-9):
        raise ValueError(
            f"the noise was made for a bound of {allowed:g} and the sum is clipped to"
            f" {updates.l2_norm_bound:g}. Nothing was drawn."
        )
    if row_rounding is None:
        return
    if updates.row_rounding is None or updates.row_rounding > row_rounding:
        raise ValueError(
            "this plan's hardened noise pays for the rounding of the clipped sum, and"
            " the sum was added up in float32, where that has no bound: make the"
            " gradient by plan.gradient(loss), or by clipped_grad(...,"
            " accumulator='float64'). Nothing was drawn."
        )


def check_place(inputs: Any, *, has_keys: bool) -> None:
    """Refuse noise where every device of a mesh would draw it for itself.

    Inside `shard_map`, shards that differ would get equal noise, and keys that differ
    would release one sum several times. What is the same on all shards, as JAX can
    tell, stays the same; noise from the host would be drawn by each device.
    """
    axes = manual_axes()
    if not axes:
        return
    if varying_axes(inputs) or not are_tracked(axes) or not has_keys:
        raise TypeError(
            "noise is added outside shard_map and pmap: inside, shards that differ"
            " would get equal noise. Return the sum first (`total.psum(axis)`)."
            " Nothing was drawn."
        )


def check_step(step: Any, iterations: int) -> None:
    """Refuse a step past the last; inside `jit` its noise is NaN."""
    if not isinstance(step, jax.core.Tracer) and int(step) >= iterations:
        raise IndexError(
            f"the noise was made for {iterations} steps and all are used."
            " Nothing was drawn."
        )
