"""Arrow batches as rows and class indices, for Parquet and Spark.

An error names a column, never a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from demur.convex.rows.tables import (
    features_of,
    index_columns,
    is_list,
    list_block,
)
from demur.convex.rows.totals import Index
from demur.core import validate

Array = NDArray[np.float64]


def feature_columns(
    schema: pa.Schema, label: str, columns: Sequence[str] | None, where: str
) -> tuple[str, ...]:
    """The names of the feature columns; each is there and holds numbers."""
    if isinstance(columns, str):
        raise TypeError("columns must be a list of names, not one. Nothing was spent.")
    names = list(schema.names)
    missing = [name for name in (label, *(columns or ())) if name not in names]
    if missing:
        raise ValueError(
            f"{where} has no column {missing[0]!r}; it has"
            f" {validate.nearest(missing[0], names)}. Nothing was spent."
        )
    try:
        features = features_of(
            names,
            label=label,
            indexes=index_columns(schema),
            columns=None if columns is None else list(columns),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not _is_label(schema.field(label).type):
        raise ValueError(
            f"the label {label!r} must hold one word or number for each row; got"
            f" {schema.field(label).type}. Nothing was spent."
        )
    for name in features:
        kind = schema.field(name).type
        inner = kind.value_type if is_list(kind) else kind
        if not _is_number(inner):
            raise ValueError(
                f"column {name!r} must hold numbers; got {kind}. Encode it by a public"
                " rule, or leave it out. Nothing was spent."
            )
    return tuple(features)


def matrix_of(
    batch: pa.RecordBatch, columns: Sequence[str], widths: Sequence[int]
) -> Array:
    """The features of a batch as a new float64 matrix, each column of its width."""
    blocks = _blocks(batch, columns)
    for name, block, width in zip(columns, blocks, widths, strict=True):
        # Not their sum alone: two columns may make up for each other, and then the
        # same place of two rows holds two different things.
        if block.shape[1] != width and len(block):
            raise ValueError(
                f"column {name!r} must have {width} features in every row, as in the"
                f" first; it holds lists of {block.shape[1]}. Nothing was spent."
            )
    matrix = np.empty((batch.num_rows, sum(widths)))
    start = 0
    for block in blocks:
        matrix[:, start : start + block.shape[1]] = block
        start += block.shape[1]
    return matrix


def widths_of(batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    """How many features each column of a batch that has rows brings."""
    widths = [block.shape[1] for block in _blocks(batch, columns)]
    if not sum(widths):
        raise ValueError("the lists of the features are empty. Nothing was spent.")
    return widths


def _blocks(batch: pa.RecordBatch, columns: Sequence[str]) -> list[NDArray[Any]]:
    blocks: list[NDArray[Any]] = []
    for name in columns:
        column = batch.column(name)
        if column.null_count:
            raise ValueError(
                f"column {name!r} has missing values: drop or impute them by a rule"
                " that does not look at other rows. Nothing was spent."
            )
        if is_list(column.type):
            blocks.append(list_block(name, column))
        else:
            if pa.types.is_decimal(column.type):
                column = column.cast(pa.float64())
            blocks.append(column.to_numpy(zero_copy_only=False)[:, None])
    return blocks


def class_indices(labels: pa.Array, classes: NDArray[Any]) -> Index:
    """The position of each label among the classes."""
    # A column that is encoded already comes back as it is.
    coded = labels.dictionary_encode()
    positions = {value: i for i, value in enumerate(classes.tolist())}
    codes = [positions.get(value, -1) for value in coded.dictionary.to_pylist()]
    if coded.null_count or (coded.dictionary.null_count and len(labels)):
        raise ValueError("y has missing labels: drop those records")
    index = np.asarray(codes, dtype=np.intp)[coded.indices.to_numpy()]
    if (index < 0).any():
        raise ValueError("y holds labels outside classes")
    return index


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )
