"""Import of pyspark, and a check that a DataFrame is of a classic session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demur.adapters.frameworks import missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark_sql() -> Any:
    """The module `pyspark.sql`, or an ImportError that names the extra to install."""
    try:
        import pyspark.sql
    except ImportError as error:
        raise missing("PySpark (and Java 17)", "spark", error) from error
    return pyspark.sql


def classic_dataframe(df: object, name: str = "df") -> DataFrame:
    """`df`, if it is a DataFrame of a session with its SparkContext in this process.

    Spark Connect has no context here: no broadcast that could be destroyed, and no
    local properties. Its DataFrames are refused, and so is anything else.
    """
    sql = spark_sql()
    if not isinstance(df, sql.DataFrame):
        raise TypeError(
            f"{name} must be a Spark DataFrame; got {type(df).__name__}."
            " Nothing was spent."
        )
    if not hasattr(df, "_jdf"):
        raise TypeError(
            f"{name} belongs to a Spark Connect session; this needs a classic one, made"
            " by SparkSession.builder.master(...).getOrCreate(). Nothing was spent."
        )
    return df
