"""Training data by row: arrays, memory maps, Arrow and Parquet tables, users.

Rows are gathered by index. An index of -1 is padding and gives a public row of zeros:
to NumPy it would be the last example.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.dataset as arrow_dataset
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.core.validate import shorten
from demur.preprocessing.table_files import read_whole, table_files
from demur.training.datasets import as_array, rows_of

_CHUNK = 2**24  # bytes hashed at a time, so that a memory map stays on disk
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A pytree of arrays with one row for each example."""

    columns: Any
    size: int

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        kinds = [f"{a.dtype}{a.shape[1:]}" for a in jax.tree.leaves(self.columns)]
        return f"Data({', '.join(kinds)})"

    def take(self, indices: NDArray[Any]) -> Any:
        """The rows at `indices` (of any shape), zeros where an index is -1."""
        padding = indices < 0
        safe = np.where(padding, 0, indices)

        def gather(column: NDArray[Any]) -> NDArray[Any]:
            if not self.size:
                return np.zeros((*indices.shape, *column.shape[1:]), column.dtype)
            rows = np.asarray(column[safe])
            if padding.any():
                rows[padding] = 0
            return rows

        return jax.tree.map(gather, self.columns)

    def structs(self, shape: tuple[int, ...], sharding: Any = None) -> Any:
        """Shapes and dtypes of a batch, as JAX will see it."""
        return jax.tree.map(
            lambda column: jax.ShapeDtypeStruct(
                (*shape, *column.shape[1:]),
                jax.dtypes.canonicalize_dtype(column.dtype),
                sharding=sharding,
            ),
            self.columns,
        )

    def structure(self) -> str:
        """Structure, dtypes and shapes, as text: no row is read."""
        leaves, treedef = jax.tree.flatten(self.columns)
        return f"{treedef} {[(str(a.dtype), a.shape) for a in leaves]}"

    def digest(self) -> str:
        """SHA-256 of structure, shapes and every byte."""
        leaves, treedef = jax.tree.flatten(self.columns)
        whole = hashlib.sha256(str(treedef).encode())
        for column in leaves:
            whole.update(f"{column.dtype} {column.shape}".encode())
            rows = max(1, _CHUNK // max(1, column[:1].nbytes))
            for start in range(0, len(column), rows):
                whole.update(np.ascontiguousarray(column[start : start + rows]).data)
        return whole.hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class UserData:
    """Data grouped by user, for batches of users: `ids[i]` owns example i.

    A selected user brings `examples` of their examples to a batch, and the plan then
    protects one user. `data` is anything that `as_data` takes.

    >>> UserData(np.eye(3), ids=["ann", "bob", "ann"]).count
    2
    """

    data: Any
    ids: ArrayLike
    examples: int = 1

    def __post_init__(self) -> None:
        validate.count(examples=self.examples)
        object.__setattr__(self, "data", as_data(self.data))
        object.__setattr__(self, "ids", _owners(self.ids))
        if np.shape(self.ids) != (len(self.data),):
            raise ValueError(
                f"ids must name the owner of each of {len(self.data)} examples; got"
                f" shape {np.shape(self.ids)}"
            )

    def __repr__(self) -> str:
        return f"UserData({self.data!r}, examples={self.examples})"

    @property
    def count(self) -> int:
        """How many users there are."""
        return len(np.unique(self.ids))


def _owners(ids: ArrayLike) -> NDArray[Any]:
    """Names as an array. A missing one (None, NaN) would be taken for a user."""
    # Through objects: an array of strings would have made "nan" of a missing one.
    given = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if given.dtype.kind == "O":
        kinds = (str, bytes, int, np.integer)
        wrong = [name for name in given.ravel() if not isinstance(name, kinds)]
        names = np.array(given.tolist())
    else:
        names = given
        wrong = [] if given.dtype.kind in "iuSUT" or not given.size else [given.flat[0]]
    if wrong:
        kind = type(wrong[0]).__name__
        raise TypeError(f"ids must be whole numbers or strings; got {kind}")
    return names


def as_data(
    data: Any, *, columns: Iterable[str] | None = None, filesystem: Any = None
) -> Data:
    """Data by row, of a pytree of arrays, an Arrow table, or the path of a file.

    A table becomes a dict of its columns (`columns` picks some); a file is `.parquet`,
    `.arrow`, `.feather`, `.npz` (a dict of its arrays) or `.npy` (memory-mapped).
    Several Parquet files, a folder of them (partitioned or not), and addresses such as
    `s3://...` are read whole; `filesystem` is one of pyarrow.fs or fsspec, for paths in
    it. A file that is named twice is refused, as its rows would count twice. A
    Hugging Face dataset is the table it holds; of a torch dataset (or the one of a
    DataLoader) every example is read, once, so that what it draws (an augmentation) is
    drawn once. Batches are put together by `from_batches`.

    >>> rows = as_data({"x": np.eye(3), "y": np.arange(3)})
    >>> rows.take(np.array([2, -1]))["x"].tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    if isinstance(data, Data):
        return data
    data = rows_of(data)
    columns = None if columns is None else list(columns)
    if _are_paths(data):
        data = _read(data, columns, filesystem)
    elif isinstance(data, arrow_dataset.Dataset):
        data = data.to_table(columns=columns)
    if isinstance(data, pa.Table):
        names = columns if columns is not None else data.column_names
        data = {name: _column(name, data[name]) for name in names}
    elif columns is not None and isinstance(data, dict):
        data = {name: data[name] for name in columns}
    _check_rows(data)
    arrays = jax.tree.map(_array, data)
    leaves = jax.tree.leaves(arrays)
    sizes = {len(leaf) for leaf in leaves}
    if len(sizes) != 1:
        raise ValueError(
            "data must be arrays with one row for each example, equally many; got"
            f" {len(leaves)} arrays of {shorten(sorted(sizes))} rows"
        )
    return Data(arrays, sizes.pop())


def _check_rows(data: Any) -> None:
    """Refuse what has no rows to draw from, in words that say what to make of it."""
    if isinstance(data, list | tuple) and data and isinstance(data[0], dict):
        if all(np.ndim(value) == 0 for value in data[0].values()) or len(data) > 8:
            raise TypeError(
                "data must be arrays with one row for each example; got a list of"
                " dicts, one for each. Stack them: {name: np.stack([row[name] for row"
                " in data]) for name in data[0]}"
            )
    if not isinstance(data, Mapping) and isinstance(data, Iterator):
        raise TypeError(
            f"data must be arrays or a file, of which any row can be read; got a"
            f" {type(data).__name__}, which is read once, in its own order: a plan"
            " draws its batches itself. Collect batches by from_batches(...), rows by"
            " np.stack(list(...)), or write them to a .parquet or .npy file"
        )


def _array(value: Any) -> NDArray[Any]:
    # Memory maps stay what they are: only the rows of a batch are read.
    array = value if isinstance(value, np.ndarray) else as_array(value)
    if np.ma.is_masked(array):
        raise ValueError(
            "data must hold no masked entries, as what a mask hides would be trained"
            " on: drop or fill them by a rule that does not look at other rows"
        )
    if array.ndim == 0:
        raise ValueError("data must have one row for each example; got a single number")
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(
            f"data must be numbers; got {array.dtype}. Encode texts and dates first,"
            " by a rule that does not look at other rows."
        )
    return array


def _are_paths(data: Any) -> bool:
    several = isinstance(data, list | tuple) and bool(data)
    parts = data if several else [data]
    return all(isinstance(part, str | os.PathLike) for part in parts)


def _read(paths: Any, columns: list[str] | None, filesystem: Any) -> Any:
    """Arrays of a file of numpy's, or a table of Arrow's files."""
    path = Path(paths) if isinstance(paths, str | os.PathLike) else None
    if path is not None and filesystem is None and "://" not in os.fspath(paths):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in columns or file.files}
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        if path.suffix in (".arrow", ".feather"):
            return arrow_dataset.dataset(path, format="ipc").to_table(columns=columns)
        if path.suffix not in _PARQUET and not path.is_dir():
            raise ValueError(
                "data must be a .parquet, .arrow, .feather, .npz or .npy file, or a"
                f" folder of Parquet files; got {path.name!r}"
            )
    return read_whole(table_files(paths, filesystem), columns)


def _column(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column as an array; lists of one length become the rows of a matrix."""
    if column.null_count:
        raise ValueError(
            f"column {name!r} has missing values: drop or impute them by a rule that"
            " does not look at other rows"
        )
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    shape: tuple[int, ...] = (len(array),)
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        inner = array.flatten()
        width = array.type.list_size if hasattr(array.type, "list_size") else None
        if width is None:
            lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                raise ValueError(f"column {name!r} has lists of different lengths")
            width = int(lengths[0]) if len(lengths) else 0
        shape = (*shape, width)
        if inner.null_count:
            raise ValueError(f"column {name!r} has missing values inside its lists")
        array = inner
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)
