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
            "columns must be a list of names, not one string. Nothing was spent."
        )
    return list(columns)


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
