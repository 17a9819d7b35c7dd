"""`jax_privacy.experimental.compilation_utils`: every batch counted as it occurs."""

from __future__ import annotations

from numpy.typing import ArrayLike

from demur.training.sizes.shapes import best_physical_sizes


def optimal_physical_batch_sizes(
    batch_sizes: ArrayLike, num_compilations: int
) -> set[int]:
    """At most so many sizes that waste least padding over the given batches."""
    return set(best_physical_sizes(batch_sizes, num_compilations))


__all__ = ["optimal_physical_batch_sizes"]
