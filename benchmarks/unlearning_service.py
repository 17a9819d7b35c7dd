"""What durability costs: events per second of the deletion service, on this disk.

The peer is the disk itself: how many times a second a small append can be made durable
(write and fsync). With durability="each" an insert cannot be faster than that; with
"batch" many inserts share one.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from demur.unlearning import UnlearningService
from demur.unlearning.models import make_mode


def seconds(work, count):
    start = time.perf_counter()
    for i in range(count):
        work(i)
    return (time.perf_counter() - start) / count


def durable_appends(folder, count=200):
    with (folder / "appends").open("ab") as file:

        def append(_):
            file.write(bytes(512))
            file.flush()
            os.fsync(file.fileno())

        return seconds(append, count)


def main():
    table = Table(title="events per second, one thread")
    for column in ("mode", "d", "model alone", "each", "batch", "insert_many"):
        table.add_column(column, justify="right")
    table.add_column("deletion, ms", justify="right")
    table.add_column("of 100 together, ms each", justify="right")
    table.add_column("disk alone", justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for mode, dim in (("ogd", 20), ("ogd", 100), ("ridge", 20), ("ridge", 100)):
            table.add_row(mode, str(dim), *measured(folder, mode, dim))
    Console(width=120).print(table)


def measured(folder, mode, dim):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, dim)) / np.sqrt(dim)
    Y = np.sign(X @ rng.normal(size=dim))
    alone = make_mode(mode, dim)
    alone.insert(X[0], float(Y[0]))
    bare = seconds(lambda i: alone.insert(X[i], float(Y[i])), 5_000)
    noise = {} if mode == "ridge" else {"epsilon": 1.0, "delta": 1e-6}
    found = {"before": durable_appends(folder)}
    for durability, count in (("each", 300), ("batch", 10_000)):
        path = folder / f"{mode}-{dim}-{durability}.db"
        options = {"mode": mode, "dimension": dim, "durability": durability} | noise
        with UnlearningService.open(path, **options) as service:
            found[durability] = seconds(
                lambda i, s=service: s.insert(X[i], float(Y[i]), record_id=i), count
            )
            if durability == "each":  # a shared disk has its moods: measured beside
                found["after"] = durable_appends(folder)
            start = time.perf_counter()
            ids = range(10_000, 20_000)
            service.insert_many(X[10_000:], Y[10_000:], record_ids=ids)
            many = (time.perf_counter() - start) / 10_000
            forget = seconds(lambda i, s=service: s.delete(i, X[i], float(Y[i])), 30)
            start = time.perf_counter()
            service.delete_many(range(100, 200), X[100:200], Y[100:200])
            together = (time.perf_counter() - start) / 100
    return (
        f"{1 / bare:,.0f}",
        f"{1 / found['each']:,.0f}",
        f"{1 / found['batch']:,.0f}",
        f"{1 / many:,.0f}",
        f"{1000 * forget:.1f}",
        f"{1000 * together:.2f}",
        f"{2 / (found['before'] + found['after']):,.0f}",
    )


if __name__ == "__main__":
    main()
