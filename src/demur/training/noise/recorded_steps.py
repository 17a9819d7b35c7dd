"""Recorded steps: threefry noise while an audit watches (`core.recording`).

The tape is looked up when a step is traced, in the thread that traces it, and is part
of the program from then on: a program without a tape has no callback in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from demur.core import recording

if TYPE_CHECKING:
    from demur.training.noise.privatizer import NoiseSpec


def recorded(
    tape: recording.Tape,
    spec: NoiseSpec,
    bound: float,
    step: Any,
    sums: list[Any],
    noisy: list[Any],
) -> list[Any]:
    """The release that the tape returns: `noisy`, or that of the run it replays."""

    def record(step: Any, sums: list[Any], noisy: list[Any]) -> list[Any]:
        declared = recording.Step(
            step=int(step),
            strategy=spec.strategy,
            stddev=spec.stddev,
            bound=bound,
            participation=spec.participation,
            mixed=False,
        )
        flat = [np.asarray(leaf, np.float64).reshape(-1) for leaf in sums]
        own = [np.asarray(leaf) for leaf in noisy]
        return tape.record_use(
            "a step with threefry noise",
            declared,
            (np.concatenate(flat),),
            lambda: own,
        )

    if not any(isinstance(x, jax.core.Tracer) for x in (step, *sums, *noisy)):
        return [jnp.asarray(leaf) for leaf in record(step, sums, noisy)]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in noisy]
    # Not ordered: steps follow each other by their data, and name their number.
    return io_callback(record, shapes, step, sums, noisy)
