"""Local reports that Spark draws, in a process that `layouts.spark` starts.

python -m demur.testing.audit_suite.layouts.spark_run FOLDER SEED ROWS
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demur.core.entropy import Seeded
from demur.testing.audit_suite.layouts.children import FOUND
from demur.testing.audit_suite.layouts.spark import MECHANISM, PARTITIONS

# The suite lies below the adapters: it loads them by name, as the contracts do, and
# Spark with them.
ADAPTER = "demur.adapters.spark.local_reports"
_NAMES = ["x", "y"]


def session(folder: Path) -> Any:
    """A session in this process, with nothing outside of `folder`."""
    os.environ |= {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.default.parallelism": str(PARTITIONS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    sql = import_module("pyspark.sql")
    builder = sql.SparkSession.builder.master("local[2]").appName("demur audit")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _values(df: Any) -> dict[str, Any]:
    """Reports in the order of their ids, and the partition that drew each."""
    number = import_module("pyspark.sql.functions").spark_partition_id()
    rows = df.withColumn("part", number).toArrow().sort_by("id")
    return {name: rows.column(name).to_numpy() for name in [*_NAMES, "part"]}


def main(folder: Path, seed: int, rows: int) -> None:
    """The same reports twice, and those of another payment."""
    spark = session(folder)
    zeros = {name: pa.array(np.zeros(rows)) for name in _NAMES}
    table = pa.table({"id": pa.array(np.arange(rows)), **zeros})
    # Kept, so that each draw sees the partitions of the one before.
    df = spark.createDataFrame(table).repartition(PARTITIONS).cache()
    privatize = import_module(ADAPTER).privatize
    found: dict[str, Any] = {}
    for name, own in (("first", seed), ("other", seed + 1)):
        given = df, MECHANISM, _NAMES, "id"
        with privatize(*given, lazy=True, source=Seeded(own)) as reports:
            drawn = _values(reports.dataframe)
            found[name] = np.column_stack([drawn[axis] for axis in _NAMES])
            if name == "first":
                more = _values(reports.dataframe)
                found["again"] = np.column_stack([more[axis] for axis in _NAMES])
                found["partitions"] = drawn["part"]
    np.savez(folder / FOUND, **found)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:]))
