"""Batches of users: a strategy draws them, and each brings some of their examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core.entropy import NoiseKey
from demur.training.batches import subsets
from demur.training.batches.padding import Indices, check_whole
from demur.training.batches.selection import (
    Batches,
    BatchSelectionStrategy,
    KeyedSelection,
)
from demur.training.batches.selection_key import Randomness, selection_key


@dataclass(frozen=True)
class UserSelectionStrategy:
    """A strategy over users; each selected user brings some of their own examples.

    A batch is a 2-D array, one row for each user, `examples_per_user_per_batch` wide:
    the next ones of the user's examples, which are gone through in a circle (in a
    uniform order with `shuffle_per_user`, else as they come).

    >>> from demur.training import CyclicPoissonSampling
    >>> everyone = CyclicPoissonSampling(sampling_prob=1, iterations=2)
    >>> two_each = UserSelectionStrategy(everyone, examples_per_user_per_batch=2)
    >>> for batch in two_each.batch_iterator([7, 7, 7, 9, 9]):
    ...     print(batch.tolist())
    [[0, 1], [3, 4]]
    [[2, 0], [3, 4]]
    """

    base_strategy: BatchSelectionStrategy
    examples_per_user_per_batch: int = 1
    shuffle_per_user: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.base_strategy, BatchSelectionStrategy):
            raise TypeError(
                "base_strategy must be a BatchSelectionStrategy; got"
                f" {type(self.base_strategy).__name__}"
            )
        check_whole(1, examples_per_user_per_batch=self.examples_per_user_per_batch)

    @property
    def iterations(self) -> int:
        """The number of steps."""
        return self.base_strategy.iterations

    def batch_iterator(
        self, user_ids: ArrayLike, rng: Randomness = None, *, start: int = 0
    ) -> Batches:
        """2-D batches; `user_ids[i]` is the owner of example i."""
        owners = _whole(np.asarray(user_ids))
        if owners.ndim != 1:
            raise ValueError(f"user_ids must be 1-D; got shape {owners.shape}")
        if len(owners) and owners.dtype.kind not in "iuSU":
            # A missing owner (None, NaN) would be taken for a person.
            raise TypeError(
                f"user_ids must be whole numbers or strings; got {owners.dtype}"
            )
        check_whole(0, num_examples=len(owners), start=start)
        key = selection_key(rng)
        users, who = np.unique(owners, return_inverse=True)
        order = subsets.identity(len(owners))
        if self.shuffle_per_user:
            # The order that a uniform permutation gives to a user's own examples is
            # uniform, and independent between users.
            subsets.shuffle(order, key.stream("user shuffle"))
        order = order[np.argsort(who[order], kind="stable")]
        owned = np.bincount(who, minlength=len(users))  # examples of each user
        # Made here, in the caller's thread; drawn where the batches are asked for.
        chosen = self._selected(len(owned), key)
        steps = self._rows(order, owned, chosen, int(start))
        dtype = np.min_scalar_type(-len(owners))
        return Batches(key, (batch.astype(dtype, copy=False) for batch in steps))

    def _selected(self, users: int, key: NoiseKey) -> Iterator[Indices]:
        """Batches of users, by the base strategy."""
        base = self.base_strategy
        if isinstance(base, KeyedSelection):
            return base.batch_iterator(users, key)
        # A strategy of somebody's own draws from a numpy generator.
        seed = int.from_bytes(key.stream("user batches").read(32), "little")
        return iter(base.batch_iterator(users, np.random.default_rng(seed)))

    def _rows(
        self, order: Indices, owned: Indices, chosen: Iterator[Indices], start: int
    ) -> Iterator[Indices]:
        first = np.cumsum(owned) - owned
        cursor = np.zeros(len(owned), dtype=np.int64)
        offsets = np.arange(self.examples_per_user_per_batch)
        for step, users in enumerate(chosen):
            within = (cursor[users][:, None] + offsets) % owned[users][:, None]
            batch = order[first[users][:, None] + within]
            cursor[users] = (cursor[users] + len(offsets)) % owned[users]
            if step >= start:
                yield batch


def base_of(
    strategy: BatchSelectionStrategy | UserSelectionStrategy,
) -> BatchSelectionStrategy:
    """The strategy that draws units: for batches of users, the one that draws users."""
    if isinstance(strategy, UserSelectionStrategy):
        return strategy.base_strategy
    return strategy


def _whole(owners: NDArray[Any]) -> NDArray[Any]:
    """Owners that are whole numbers in floating point, as whole numbers."""
    if owners.dtype.kind != "f" or not owners.size:
        return owners
    # NaN is no owner, and stays what it is.
    same = np.isfinite(owners) & (np.abs(owners) <= 2.0**53)
    exact = same.all() and (np.floor(owners) == owners).all()
    return owners.astype(np.int64) if exact else owners
