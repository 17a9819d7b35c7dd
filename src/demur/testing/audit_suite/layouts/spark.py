"""Audits of local reports that Spark draws.

`privatize` runs on a DataFrame of zeros in eight partitions, so that its reports are
noise alone: their law, whether partitions, coordinates and runs share noise, and
whether a task that runs again draws the same report (another one would be two reports
for the price of one).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from shutil import which

import numpy as np
from numpy.typing import NDArray

from demur.audit import AuditResult, Level, law_of, noise_test, shared_noise_test
from demur.core.adjacency import ReplaceOne
from demur.mechanisms import GaussianReports
from demur.testing.audit_suite.case import Case, Size
from demur.testing.audit_suite.layouts.children import results_of

MECHANISM = GaussianReports(epsilon=4.0, dimension=2)
PARTITIONS = 8
_ROWS = 20_000  # two coordinates each: as many draws as the test of noise asks for

Values = NDArray[np.float64]


def lacking() -> str | None:
    """What must be installed for these audits; None if all is there."""
    if find_spec("pyspark") is None:
        return "reports on Spark need PySpark: pip install 'demur[spark]'"
    return None if which("java") else "reports on Spark need Java 17"


@dataclass(frozen=True, eq=False)
class SparkRun:
    """Reports of zeros: twice from one payment, and from another; and who drew them."""

    first: Values
    again: Values
    other: Values
    partitions: NDArray[np.float64]


@lru_cache(maxsize=2)
def spark_run(rows: int, seed: int) -> SparkRun:
    """What Spark drew; kept, since several audits look at the same."""
    return SparkRun(**results_of("spark_run", [[str(seed), str(rows)]]))


def _rows(size: Size) -> int:
    return _ROWS * 10 if size is Size.DEEP else _ROWS


def _law(size: Size, seed: int) -> AuditResult:
    drawn = spark_run(_rows(size), seed).first.reshape(-1)
    return noise_test(drawn, law_of(MECHANISM), subject="cluster: reports on Spark")


def by_part(run: SparkRun) -> Values:
    """A row for each partition and coordinate, those of another run behind them."""
    numbers = np.unique(run.partitions)
    parts = [run.first[run.partitions == number] for number in numbers]
    parts += [run.other[run.partitions == number] for number in numbers]
    length = min(len(part) for part in parts)
    return np.vstack([part[:length].T for part in parts])


def _parts(size: Size, seed: int) -> AuditResult:
    rows = by_part(spark_run(_rows(size), seed))
    return shared_noise_test(
        rows, law_of(MECHANISM), subject="cluster: parts of reports on Spark"
    )


def _again(size: Size, seed: int) -> AuditResult:
    run = spark_run(_rows(size), seed)
    differ = int((run.first != run.again).any(axis=1).sum())
    return AuditResult(
        subject="cluster: reports that Spark draws twice",
        level=Level.REPLAY,
        method="two actions on one DataFrame",
        unit=ReplaceOne().describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=len(run.first),
        alpha=0.0,
        refuted=differ > 0,
        evidence=f"{differ} of {len(run.first)} reports were others when they were"
        " drawn again.",
    )


_AUDITS = (
    ("reports", Level.NOISE, _law),
    ("partitions, coordinates and runs", Level.NOISE, _parts),
    ("reports drawn twice", Level.REPLAY, _again),
)


def cases(engine: str) -> tuple[Case, ...]:
    """The audits of reports on Spark; none without Spark and Java."""
    if lacking() is not None:
        return ()
    return tuple(
        Case(engine, f"Spark: {name}", level, audit, full=True)
        for name, level, audit in _AUDITS
    )
