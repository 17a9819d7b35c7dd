"""Padding: global batches filled up to physical sizes with the index -1."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.training.batches.subsets import LARGEST_SIZE

Indices = NDArray[Any]


def check_whole(least: int, **values: object) -> None:
    """Refuse anything but whole numbers from `least` to 2^31 - 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} must be a whole number; got {value!r:.80}")
        if not least <= int(value) <= LARGEST_SIZE:
            raise ValueError(f"{name} must be from {least} to 2^31 - 1; got {value}")


def pad_to_multiple_of(indices: ArrayLike, multiple: int) -> Indices:
    """The indices, filled up with -1 to a multiple; no indices fill one multiple.

    An index of -1 marks padding: it must be loaded as a public example (zeros), never
    as the last row, and its gradient must not count. An empty batch becomes a row of
    padding, so that an empty step is an ordinary one.

    >>> pad_to_multiple_of(np.arange(5), 4)
    array([ 0,  1,  2,  3,  4, -1, -1, -1])
    """
    indices = np.asarray(indices)
    if indices.ndim != 1:
        raise ValueError(f"indices must be 1-D; got shape {indices.shape}")
    check_whole(1, multiple=multiple)
    size = max(1, -(-len(indices) // multiple)) * multiple
    return _filled(indices, size)


def split_and_pad_global_batch(
    indices: ArrayLike, minibatch_size: int, microbatch_size: int | None = None
) -> list[Indices]:
    """The global batch as minibatches of one size, the last one padded with -1.

    Real examples come first, so that a gradient over microbatches can stop after the
    last real one: pass it the number of indices >= 0. `microbatch_size` must divide
    `minibatch_size`. No indices give one minibatch of padding. Rows of a 2-D batch
    (users) stay whole.

    >>> split_and_pad_global_batch(np.arange(5), 4)
    [array([0, 1, 2, 3]), array([ 4, -1, -1, -1])]
    """
    indices = np.asarray(indices)
    if indices.ndim not in (1, 2):
        raise ValueError(f"indices must be 1-D or 2-D; got shape {indices.shape}")
    check_whole(1, minibatch_size=minibatch_size)
    if microbatch_size is not None:
        check_whole(1, microbatch_size=microbatch_size)
        if minibatch_size % microbatch_size:
            raise ValueError(
                f"microbatch_size must divide minibatch_size; got {microbatch_size}"
                f" and {minibatch_size}"
            )
    count = max(1, -(-len(indices) // minibatch_size))
    whole = _filled(indices, count * minibatch_size)
    return [part.copy() for part in np.split(whole, count)]


def _filled(indices: Indices, size: int) -> Indices:
    if not np.issubdtype(indices.dtype, np.signedinteger) and len(indices):
        raise TypeError(f"indices must be signed integers; got {indices.dtype}")
    kind = indices.dtype if len(indices) else np.int64
    whole = np.full((size, *indices.shape[1:]), -1, dtype=kind)
    whole[: len(indices)] = indices
    return whole
