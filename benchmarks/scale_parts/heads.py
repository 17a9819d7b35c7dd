"""A head fitted from Parquet: wall time, passes and peak memory against its file.

    python benchmarks/scale_parts/heads.py [--quick] [--size N D ...]

Each fit runs in a process of its own, whose peak memory is what the system says
(ru_maxrss). Files are made here, float32 embeddings in one column of lists, and removed
afterwards. "Of one core" is processor time, which a busy machine does not change
much. At sizes that fit, the same fit on arrays in memory stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

QUICK = [(1_000_000, 64)]
FULL = [(1_000_000, 64), (1_000_000, 384), (10_000_000, 384)]
LARGEST_IN_MEMORY = 2**32  # bytes of float64
_ROWS = 65_536

FIT = """
import json, resource, sys, time
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
path, how = sys.argv[1:3]
from demur.convex import BallLogisticRegression, ParquetRows
from demur.convex.rows.tables import read_rows
from demur.convex.solving.streamed_objective import StreamedObjective
seen = []
plain = StreamedObjective.answer
def answer(self, theta, *, hessian=False):
    begun = time.perf_counter()
    found = plain(self, theta, hessian=hessian)
    seen.append((hessian, time.perf_counter() - begun))
    return found
StreamedObjective.answer = answer
before, start, busy = peak(), time.perf_counter(), time.process_time()
head = BallLogisticRegression(radius=0.3, lam=1e-3, classes=[0, 1])
if how == "parquet":
    head.fit(ParquetRows(path))
else:
    rows = read_rows(path, label="y")
    head.fit(rows.X, rows.y)
print(json.dumps({"seconds": time.perf_counter() - start, "before": before,
    "cpu": time.process_time() - busy, "peak": peak(),
    "passes": seen}))
"""


def write(path: Path, n: int, d: int) -> None:
    """Rows of norm 1 with a decaying spectrum, and labels that depend on them.

    One block of normals is reflected anew for each row group: its law is symmetric, so
    these are as good as fresh ones, and much cheaper to make.
    """
    rng = np.random.default_rng(0)
    scale = np.arange(1, d + 1, dtype=np.float32) ** -0.5
    direction = rng.normal(size=d).astype(np.float32)
    block = rng.standard_normal((_ROWS, d), dtype=np.float32) * scale
    block /= np.linalg.norm(block, axis=1, keepdims=True)
    schema = pa.schema({"embedding": pa.list_(pa.float32(), d), "y": pa.int8()})
    with pq.ParquetWriter(
        path, schema, use_dictionary=["y"], compression="none"
    ) as file:
        for start in range(0, n, _ROWS):
            signs = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), d)
            X = block[: min(_ROWS, n - start)] * signs
            p = 1.0 / (1.0 + np.exp(-3.0 * (X @ direction)))
            y = (rng.random(len(X)) < p).astype(np.int8)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), d)
            file.write_table(pa.table([lists, pa.array(y)], schema=schema))


def fitted(path: Path, how: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(path), how],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, object] = json.loads(done.stdout)
    return found


def run(quick: bool, sizes: list[tuple[int, int]] | None = None) -> list[str]:
    """Markdown lines."""
    lines = [
        "| n | d | file MiB | rows in | seconds | of one core | passes (with Hessian) |"
        " peak MiB | above import MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for n, d in sizes or (QUICK if quick else FULL):
        with tempfile.TemporaryDirectory(prefix="demur-heads-") as folder:
            path = Path(folder) / "rows.parquet"
            write(path, n, d)
            size = path.stat().st_size / 2**20
            ways = ["parquet"]
            if n * d * 8 <= LARGEST_IN_MEMORY:
                ways.append("memory")
            for how in ways:
                found = fitted(path, how)
                passes = found["passes"]
                assert isinstance(passes, list)
                bent = [s for h, s in passes if h]
                shown = "-"
                if how == "parquet":
                    each = ", ".join(f"{s:.0f}" for _, s in passes)
                    shown = f"{len(passes)} ({len(bent)}), of {each} s"
                lines.append(
                    f"| {n:,} | {d} | {size:,.0f} | {how} | {found['seconds']:.1f} |"
                    f" {found['cpu']:.1f} | {shown} | {found['peak']:,.0f} |"
                    f" {found['peak'] - found['before']:,.0f} |"
                )
                print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--size", nargs=2, type=int, action="append", default=None)
    options = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {os.cpu_count()} cores,"
        f" numpy {np.__version__}, pyarrow {pa.__version__},"
        f" OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    sizes = [(n, d) for n, d in options.size] if options.size else None
    print("\n".join(run(options.quick, sizes)))


if __name__ == "__main__":
    main()
