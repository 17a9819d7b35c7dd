"""Bytes on disk for each record of a deletion service, with and without its records.

    python benchmarks/scale_parts/records.py

Ten thousand records are inserted; counted is what the second half adds to the tables
and to the encrypted records. Journals of a write under way are left out: they do not
grow with the number of records.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from demur.unlearning import UnlearningService

HALF = 5_000


def bytes_per_record(dimension: int, store: Literal["none", "encrypted"]) -> float:
    """What one more record takes, by the growth of the files."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        service = UnlearningService.open(
            folder / "model.db",
            mode="ridge",
            dimension=dimension,
            epsilon=1.0,
            record_store=store,
        )
        sizes = []
        for start in (0, HALF):
            rows = rng.normal(size=(HALF, dimension))
            rows /= 2.0 * np.linalg.norm(rows, axis=1, keepdims=True)
            ids = [f"order {i}" for i in range(start, start + HALF)]
            service.insert_many(rows, rows[:, 0], record_ids=ids)
            service.flush()
            files = [f for f in folder.rglob("*.db") if f.is_file()]
            sizes.append(sum(file.stat().st_size for file in files))
        service.close()
    return (sizes[1] - sizes[0]) / HALF


def main() -> None:
    print("| features | no records | encrypted records |\n|---:|---:|---:|")
    for dimension in (10, 100, 400):
        none, kept = (bytes_per_record(dimension, s) for s in ("none", "encrypted"))
        print(f"| {dimension} | {none:,.0f} | {kept:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
