"""Tables for Spark, their reports as arrays, and a search for keys in what it wrote."""

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ["x", "y"]


def some_points(n=400, seed=0, d=2):
    rng = np.random.default_rng(seed)
    return rng.random((n, d)), rng.permutation(2**40 + 3 * np.arange(n))


def table_of(points, ids, names=NAMES):
    columns = {name: points[:, j] for j, name in enumerate(names)}
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def written_table(folder: Path, points, ids, parts=3):
    """Parquet files of fixed size: other values of the same number fit in place."""
    folder.mkdir(exist_ok=True)
    for part, rows in enumerate(np.array_split(np.arange(len(ids)), parts)):
        pq.write_table(
            table_of(points[rows], ids[rows]),
            folder / f"part-{part}.parquet",
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
    return str(folder)


def by_id(df, names=NAMES):
    """The rows of a DataFrame in the order of their ids: ids, values."""
    rows = sorted(df.collect(), key=lambda row: row["id"])
    ids = np.array([row["id"] for row in rows])
    return ids, np.array([[row[name] for name in names] for row in rows])


def plain_reports(mechanism, points, ids, source):
    """What one machine draws, in the order of the ids."""
    release = mechanism.privatize(points, ledger=None, row_ids=ids, source=source)
    order = np.argsort(ids)
    return ids[order], release.value.values[order]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def same_rows(one, other):
    """Which of the reports are equal in all coordinates."""
    assert np.array_equal(one[0], other[0])
    return (one[1] == other[1]).all(axis=1)


# -- where a secret may lie ------------------------------------------------------------


def spellings(secret: bytes):
    """A secret as bytes, hex and base64 at each alignment, without its ends."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(shift) + secret)[4:-4]


def holding(folder: Path, *secrets: bytes):
    """The files under `folder` that hold one of the secrets in any spelling."""
    wanted = [spelling for secret in secrets for spelling in spellings(secret)]
    found = set()
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # Spark removed it meanwhile
            continue
        if any(spelling in content for spelling in wanted):
            found.add(path)
    return found


def plan_texts(df):
    """Everything that a plan says of itself."""
    run = df._jdf.queryExecution()
    yield run.toString()
    yield run.explainString(
        df._sc._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )
    for plan in (run.analyzed(), run.optimizedPlan(), run.executedPlan()):
        yield plan.toJSON()
        yield plan.toString()


def closure_of(df) -> bytes:
    """The pickled function of a mapInArrow."""
    command = df._jdf.queryExecution().analyzed().functionExpr().func().command()
    return bytes(int(byte) & 255 for byte in command.mkString(",").split(","))
