"""How fast a ledger is: charges beside raw commits of the same store, and readings.

    python benchmarks/ledger.py [--seconds 4] [--entries 100000]

A raw commit is the least that any durable counter does: take the lock, add one, insert
a row of the size of ours, commit (SQLite: BEGIN IMMEDIATE, synchronous=FULL, once with
a write-ahead log, which leaves commits outside the file, and once with the ledger's
journal; PostgreSQL: SELECT ... FOR UPDATE, synchronous_commit=on, fsync=on). All are
measured in the same run, in the same number of processes; read the ratio, not the
figures. The parts of a charge are those of one process.
"""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy.engine.default import DefaultDialect

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from _crowd import in_processes  # noqa: E402

from demur.core.accounting.events import GaussianEvent  # noqa: E402
from demur.core.adjacency import AddOrRemoveOne  # noqa: E402
from demur.core.cost import Cost, Fixed  # noqa: E402
from demur.core.declaration import Declaration  # noqa: E402
from demur.ledger import Budget, Ledger, journal  # noqa: E402
from demur.ledger.storage import rows  # noqa: E402
from tests.ledger import large  # noqa: E402
from tests.ledger.kit import NoServer, Server, subprocess_environment  # noqa: E402

try:
    import psycopg
except ModuleNotFoundError:
    psycopg = None  # type: ignore[assignment]

UNIT = AddOrRemoveOne()
TERMS: dict[str, Any] = {"dataset": "benchmark", "budgets": {UNIT: Budget(1.0, 1e-6)}}
COUNT = Declaration("a count", Cost((Fixed(UNIT, GaussianEvent(1e6)),)))
BODY = "x" * 600  # about the size of an entry
Step = Callable[[], object]


def charges(url: str) -> Step:
    """A step that charges the ledger once."""
    ledger = Ledger.open(url)
    return lambda: ledger.charge(COUNT, label="one of many")


def raw_sqlite(path: str, journal: str = "wal") -> Step:
    """A step that commits once to a SQLite file, as durably as the ledger does."""
    connection = sqlite3.connect(f"{path}.{journal}", timeout=120, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("PRAGMA synchronous=FULL")

    def step() -> None:
        connection.execute("BEGIN IMMEDIATE")
        ((total,),) = connection.execute("SELECT total FROM counter").fetchall()
        connection.execute("INSERT INTO done VALUES (?, ?)", (total + 1, BODY))
        connection.execute("UPDATE counter SET total = ?", (total + 1,))
        connection.execute("COMMIT")

    return step


def raw_postgres(url: str) -> Step:
    """A step that commits once to a PostgreSQL server, as durably as a ledger."""
    connection = psycopg.connect(url)
    connection.execute("SET synchronous_commit = on")
    connection.commit()

    def step() -> None:
        row = connection.execute("SELECT total FROM counter FOR UPDATE").fetchone()
        total = row[0] + 1 if row else 0
        connection.execute("INSERT INTO done VALUES (%s, %s)", (total, BODY))
        connection.execute("UPDATE counter SET total = %s", (total,))
        connection.commit()

    return step


PARTS: dict[str, tuple[object, str]] = {
    "prices": (journal, "ways_to_pay"),
    "filter": (journal, "pay"),
    "declaration": (rows, "store_shared"),
    "row and state": (rows, "append"),
    "commit": (DefaultDialect, "do_commit"),
}


def parts_of_a_charge(name: str, url: str, count: int = 500) -> None:
    """Print where the time of a charge goes."""
    spent = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent[part] += time.perf_counter() - begin

        return call

    step = charges(url)
    step()
    with ExitStack() as stack:
        for part, (home, function) in PARTS.items():
            wrapped = timed(part, getattr(home, function))
            stack.enter_context(mock.patch.object(home, function, wrapped))
        begin = time.perf_counter()
        for _ in range(count):
            step()
        whole = time.perf_counter() - begin
    spent["the rest"] = whole - sum(spent.values())
    shown = ", ".join(f"{k} {v / count * 1e3:.2f}" for k, v in spent.items())
    print(f"{name:<11} {whole / count * 1e3:.2f} ms: {shown}", flush=True)


def rate(
    make: Callable[[str], Step], url: str, processes: int, seconds: float
) -> float:
    """Steps per second of many processes together."""

    def work(_: int, ready: Callable[[], None]) -> float:
        step = make(url)
        step()
        ready()
        begin, done = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            step()
            done += 1
        return done / (time.perf_counter() - begin)

    return float(sum(in_processes(processes, work)))


def compare(
    name: str,
    ledger: str,
    raw: str,
    makers: dict[str, Callable[[str], Step]],
    seconds: float,
) -> None:
    """Print a table of charges beside raw commits."""
    Ledger.open(ledger, **TERMS).close()
    parts_of_a_charge(name, ledger)
    for processes in (1, 8, 32):
        ours = rate(charges, ledger, processes, seconds)
        plain = {
            kind: rate(make, raw, processes, seconds) for kind, make in makers.items()
        }
        beside = ", ".join(
            f"{kind} {raw:.0f} (ratio {ours / raw:.2f})" for kind, raw in plain.items()
        )
        print(f"{name:<11} {processes:>9} {ours:>10.0f}   {beside}", flush=True)
    with Ledger.open(ledger) as charged:
        assert charged.verify(charged.tip()).ok


def read_large(name: str, url: str, entries: int) -> None:
    """Print how long a large ledger takes to read, in fresh processes."""
    large.build(url, entries)
    best: dict[str, float] = {}
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/ledger/large.py"), "read", url],
            env=subprocess_environment(),
            capture_output=True,
            check=True,
        )
        found = json.loads(done.stdout)
        whole = time.perf_counter() - begin - found["again"]
        if not best or whole < best["whole"]:
            best = found | {"whole": whole}
    begin = time.perf_counter()
    with Ledger.open(url) as ledger:
        assert ledger.verify().ok
    verified = time.perf_counter() - begin
    print(
        f"{name:<11} {entries:>9,} {best['whole']:>10.2f} {best['first']:>12.2f}"
        f" {best['again']:>7.2f} {verified:>8.2f}   epsilon {best['epsilon']:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--entries", type=int, default=100_000)
    asked = parser.parse_args()
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores"
        f" (load {os.getloadavg()[0]:.1f}), Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}, {platform.platform()}"
    )
    with tempfile.TemporaryDirectory(prefix="demur-bench-") as folder:
        os.environ["DEMUR_KEYS"] = f"{folder}/keys"
        server = None
        try:
            server = Server() if psycopg else None
        except NoServer as error:
            print(f"no PostgreSQL: {error}")
        print(f"\n{'store':<11} processes  charges/s   raw commits/s")
        raw = f"{folder}/raw.db"
        for journal in ("wal", "persist"):  # A file has one of them.
            with sqlite3.connect(f"{raw}.{journal}") as connection:
                connection.execute(f"PRAGMA journal_mode={journal}")
                connection.execute("CREATE TABLE counter (total INTEGER)")
                connection.execute("CREATE TABLE done (id INTEGER PRIMARY KEY, b TEXT)")
                connection.execute("INSERT INTO counter VALUES (0)")
            connection.close()
        try:
            journals = {
                "ahead": raw_sqlite,
                "persist": partial(raw_sqlite, journal="persist"),
            }
            compare("sqlite", f"{folder}/ledger.db", raw, journals, asked.seconds)
            if server:
                url = server.url(server.new_database())
                with psycopg.connect(url) as made:
                    made.execute("CREATE TABLE counter (total BIGINT)")
                    made.execute("CREATE TABLE done (id BIGINT PRIMARY KEY, body TEXT)")
                    made.execute("INSERT INTO counter VALUES (0)")
                compare("postgresql", url, url, {"raw": raw_postgres}, asked.seconds)
            print(
                f"\n{'store':<11}   entries  cold (s)*  in process  again   verify\n"
                "* a new interpreter: imports, opening and reading"
            )
            read_large("sqlite", f"{folder}/large.db", asked.entries)
            if server:
                url = server.url(server.new_database())
                read_large("postgresql", url, asked.entries)
        finally:
            if server:
                server.close()


if __name__ == "__main__":
    main()
