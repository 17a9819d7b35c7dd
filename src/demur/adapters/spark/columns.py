"""Columns of points or reports in a DataFrame: checked, and selected.

They are renamed: Spark's mapInArrow takes a name with a dot for a field of a struct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from demur.core import validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_REAL = ("float", "double", *_WHOLE)


def listed(columns: Iterable[str]) -> list[str]:
    """Names as a list; a single string is refused, as its letters would be names."""
    if isinstance(columns, str):
        raise TypeError(
            "columns must be a list of names, or the name of one column of arrays of"
            " numbers, not another string. Nothing was spent."
        )
    return list(columns)


def spread(
    df: DataFrame, dimension: int, columns: Iterable[str]
) -> tuple[DataFrame, list[str]]:
    """df with a column for each coordinate, and their names.

    `columns` is a list of names, or the name of one column of arrays: its coordinates
    are then NAME_0, NAME_1 and so on. An array of another length has no coordinates.
    """
    from pyspark.sql import functions as F

    if not isinstance(columns, str) or columns not in df.columns:
        return df, listed(columns)
    kind = dict(df.dtypes)[columns]
    inner = kind.removeprefix("array<").removesuffix(">")
    if inner == kind or inner not in _REAL:
        return df, listed(columns)
    names = [f"{columns}_{i}" for i in range(dimension)]
    taken = [name for name in names if name in df.columns]
    if taken:
        raise ValueError(
            f"the array {columns!r} gives columns {names[0]!r} and so on, and df has"
            f" {taken[0]!r} already: rename it. Nothing was spent."
        )
    array = F.col(quoted(columns))
    whole = F.size(array) == dimension
    parts = {n: F.when(whole, F.get(array, F.lit(i))) for i, n in enumerate(names)}
    return df.withColumns(parts), names


def check_columns(
    df: DataFrame, dimension: int, columns: Sequence[str], ids: Sequence[str] = ()
) -> None:
    """Refuse unless df has each name once, with numbers in it (ids: whole ones)."""
    names = [*ids, *columns]
    for name in names:
        validate.name(column=name)
    if len(columns) != dimension or len(set(names)) != len(names):
        raise ValueError(
            f"columns must name {dimension} different columns, as declared, without"
            f" the id column; got {len(columns)}. Nothing was spent."
        )
    types = dict(df.dtypes)
    for name in names:
        if df.columns.count(name) != 1:
            raise ValueError(
                f"df must have one column {name!r}; it has {df.columns.count(name)}."
                " Nothing was spent."
            )
        allowed = _WHOLE if name in ids else _REAL
        if types[name] not in allowed:
            raise ValueError(
                f"column {name!r} must be one of {', '.join(allowed)}; got"
                f" {types[name][:40]}. Nothing was spent."
            )


def id_and_coordinates(
    df: DataFrame, dimension: int, columns: Sequence[str], id_column: str
) -> DataFrame:
    """The id as it is and the coordinates as doubles, renamed to id, x0, x1, ... ."""
    from pyspark.sql import functions as F

    check_columns(df, dimension, columns, [id_column])
    points = (F.col(quoted(name)).cast("double") for name in columns)
    return df.select(
        F.col(quoted(id_column)).alias("id"),
        *(x.alias(f"x{i}") for i, x in enumerate(points)),
    )


def repeated(df: DataFrame) -> int:
    """How many values of the first column occur more than once, exactly (a shuffle)."""
    return df.groupBy(df.columns[0]).count().where("count > 1").count()


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, dots and backticks included."""
    return "`" + name.replace("`", "``") + "`"
