"""Resources of a run: rows on the device at once, sizes to compile, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jax.sharding import Mesh

from demur.training.sizes.shapes import ShapePlan
from demur.training.sizes.step_costs import CostModel


@dataclass(frozen=True, eq=False)
class Resources:
    """What a run may use. It changes no cost, and results only by rounding.

    - `minibatch_size` is the most rows on the device at once; a global batch that
      exceeds it is processed in several parts and gets one draw of noise.
    - `microbatch_size` splits further, inside the program. On an accelerator, where
      padding would cost more than a few milliseconds a step, it is chosen by default:
      a loop over microbatches stops behind the last real example.
    - `memory` is that of `clipped_grad`: "fast", "ordinary", or the bytes that the fast
      form may hold; by default half of the memory of the devices.
    - `shapes` is a `ShapePlan`, or the costs of this machine; by default the sizes
      follow from the law of the batch size and usual costs.
    - `mesh` spreads batches and noise over its devices. If it spans several processes
      (`distributed.start`), all of them call `fit` alike, and process 0 alone is given
      the `ledger`.
    - `shard_parameters=True` cuts parameters, frozen ones too, the optimiser's state
      and sums over all devices of the mesh, where a dimension divides (fully sharded).
      Parameters that come with a `NamedSharding` over the mesh keep it without this.
    - `batch_axes` are the axes of the mesh that cut a batch, by default all. Leave out
      those along which parameters alone are cut (tensor parallelism).
    - `check_loss=False` skips the check that the loss is separable, which compiles a
      small program.
    - `store_programs=False` keeps compiled programs off the disk; by default they are
      read again by the next process, unless they hold an array or JAX has a cache of
      its own.

    >>> Resources(minibatch_size=256, microbatch_size=32).mesh is None
    True
    """

    minibatch_size: int | None = None
    microbatch_size: int | None = None
    shapes: ShapePlan | CostModel | None = None
    mesh: Mesh | None = None
    check_loss: bool = True
    memory: Literal["ordinary", "fast"] | int | None = None
    store_programs: bool = True
    shard_parameters: bool = False
    batch_axes: tuple[str, ...] | None = None
