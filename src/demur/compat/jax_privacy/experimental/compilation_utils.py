"""`jax_privacy.experimental.compilation_utils`: physical sizes for known batches."""

from __future__ import annotations

from numpy.typing import ArrayLike

from demur.training import best_physical_sizes


def optimal_physical_batch_sizes(
    batch_sizes: ArrayLike, num_compilations: int
) -> set[int]:
    """At most `num_compilations` sizes, with the least padding over these batches."""
    return set(best_physical_sizes(batch_sizes, num_compilations))


__all__ = ["optimal_physical_batch_sizes"]
