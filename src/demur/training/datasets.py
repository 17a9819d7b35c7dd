"""Datasets of other libraries as arrays: Hugging Face, torch, batches of any loader.

A plan draws its batches itself, so it needs rows that can be read by number. Nothing
here imports another library: a dataset is known by what it can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from demur.core.validate import shorten

_SAMPLERS = {
    "sampler": ("RandomSampler", "SequentialSampler", "NoneType"),
    "batch_sampler": ("BatchSampler", "NoneType"),
}
_PLAIN = (np.ndarray, list, tuple, Mapping, str, bytes)


def rows_of(data: Any) -> Any:
    """An Arrow table or a tree of arrays for a dataset; anything else as it is."""
    if _is_hugging_face(data):
        if not hasattr(data, "__len__"):
            raise TypeError(
                "data must be rows that can be read by number; got an iterable dataset,"
                " which is read in its own order: collect its batches by"
                " from_batches(dataset.with_format('numpy').iter(1000))"
            )
        if (getattr(data, "format", None) or {}).get("type") == "custom":
            raise TypeError(
                "data has a transform that makes its rows when they are read, and a"
                " plan reads them once: pass dataset.map(...), whose rows are made"
            )
        return data.with_format("arrow")[:]
    if isinstance(data, Mapping) and any(map(_is_hugging_face, data.values())):
        raise TypeError(
            f"data must be one split of a dataset; got {shorten(sorted(data))}: pass"
            " dataset['train'], say"
        )
    if _is_loader(data):
        return rows_of(_behind(data))
    if _is_iterable_dataset(data):
        raise TypeError(
            "data is an iterable dataset, which is read in its own order: pass"
            " from_batches(DataLoader(dataset, batch_size=1000))"
        )
    if _is_map_style(data):
        return _stacked(_examples(data))
    return data


def from_batches(batches: Iterable[Any]) -> Any:
    """The rows of all batches of a loader or generator, as one tree of arrays.

    The order does not matter: a plan draws its own batches from these rows.

    >>> two = ({"x": np.full((2, 3), float(i))} for i in range(2))
    >>> from_batches(two)["x"].shape
    (4, 3)
    """
    if getattr(getattr(batches, "sampler", None), "replacement", False):
        raise ValueError(
            "batches are drawn with replacement, so that a row would come several"
            " times, and count as several: take the rows themselves, in any order"
        )
    parts = [jax.tree.map(as_array, batch) for batch in batches]
    if not parts:
        raise ValueError("batches must hold at least one batch; got none")
    _check_alike(parts, lambda leaf: leaf.shape[1:], "batches")
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def as_array(value: Any) -> Any:
    """An array of what numpy can read; what it cannot is told in words."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:
        raise TypeError(
            f"data must be arrays of numbers; got a {type(value).__name__} that NumPy"
            f" cannot read ({str(error).rstrip('.')}). Of a torch tensor that is"
            " tensor.detach().float()"
        ) from error


def _is_hugging_face(data: Any) -> bool:
    return hasattr(data, "with_format") and hasattr(data, "column_names")


def _is_loader(data: Any) -> bool:
    """A torch DataLoader: a dataset, and how to make batches of it."""
    return hasattr(data, "dataset") and hasattr(data, "collate_fn")


def _behind(loader: Any) -> Any:
    made = getattr(loader.collate_fn, "__module__", "")
    if not str(made).startswith("torch."):
        raise TypeError(
            "data is a DataLoader with a collate_fn of its own, by which examples"
            " become rows: pass from_batches(loader)"
        )
    dataset = loader.dataset
    if _is_iterable_dataset(dataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            "data is a DataLoader of an iterable dataset: pass from_batches(loader)"
        )
    # A sampler may leave rows out: they would be trained on all the same.
    for name, known in _SAMPLERS.items():
        sampler = type(getattr(loader, name, None)).__name__
        if sampler not in known:
            raise TypeError(
                f"data is a DataLoader with a {sampler}, and a plan draws its batches"
                " itself, from all rows: pass torch.utils.data.Subset(dataset,"
                " indices) of the rows to train on"
            )
    return dataset


def _is_iterable_dataset(data: Any) -> bool:
    """A torch IterableDataset, which inherits a `__getitem__` that fails."""
    return any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__)


def _examples(data: Any) -> list[Any]:
    size = len(data)
    try:
        return [data[i] for i in range(size)]
    except IndexError as error:
        raise ValueError(
            f"data says that it has {size} rows, and has no row for one of their"
            " numbers"
        ) from error


def _is_map_style(data: Any) -> bool:
    """A torch Dataset: examples by number, and no array."""
    if isinstance(data, _PLAIN) or hasattr(data, "__array__") or hasattr(data, "dtype"):
        return False
    # Arrow tables and data frames have columns, and are read as such.
    if hasattr(data, "column_names") or hasattr(data, "columns"):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _stacked(rows: list[Any]) -> Any:
    if not rows:
        raise ValueError("data must hold at least one example; the dataset is empty")
    examples = [jax.tree.map(as_array, row) for row in rows]
    _check_alike(examples, np.shape, "examples")
    return jax.tree.map(lambda *leaves: np.stack(leaves), *examples)


def _check_alike(parts: list[Any], shape_of: Any, what: str) -> None:
    first: Any = jax.tree.structure(parts[0])
    shapes = [shape_of(leaf) for leaf in jax.tree.leaves(parts[0])]
    for part in parts[1:]:
        same = first == jax.tree.structure(part)
        if not same or [shape_of(leaf) for leaf in jax.tree.leaves(part)] != shapes:
            raise ValueError(
                f"{what} must all have the same structure and shapes: pad texts to a"
                " public length, resize images to a public size"
            )
