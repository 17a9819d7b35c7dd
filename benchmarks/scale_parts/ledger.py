"""The ledger at 10,000 charges a second: measured on PostgreSQL, and simulated.

    python benchmarks/scale_parts/ledger.py [--quick] [--plot FILE]

Every charge takes the ledger's one lock, so a ledger makes 1 / S transactions a second,
S being the time from one commit to the next. Taken k at a time, as a reservation of k
or by `Reservation.draw_many`, a charge costs 1 / k of a transaction. Measured: S, rates
and latencies for several k. Simulated, with the measured S: Poisson arrivals at many
clients, which fetch k when they have none; checked against the same arrivals in real
processes.
"""

import argparse
import heapq
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "src"), str(ROOT)]

from _crowd import in_processes  # noqa: E402

from demur.core.accounting.events import Pure  # noqa: E402
from demur.core.adjacency import AddOrRemoveOne  # noqa: E402
from demur.core.cost import Cost, Fixed  # noqa: E402
from demur.core.declaration import Declaration  # noqa: E402
from demur.ledger import Budget, Ledger  # noqa: E402
from demur.ledger.storage import header  # noqa: E402
from tests.ledger.kit import NoServer, Server, ask  # noqa: E402

UNIT = AddOrRemoveOne()
GRAIN = Declaration("a query", Cost((Fixed(UNIT, Pure(2.0**-40)),)))
TERMS: dict[str, Any] = {
    "dataset": "benchmark",
    "budgets": {UNIT: Budget(1.0)},
    "filter": "pure",
}
CLIENTS = 8
RATE = 10_000.0
BATCHES = (1, 10, 100, 1000)
# Batches to simulate, by that which fills the writer.
SHARES = (0.5, 0.9, 1.05, 1.25, 1.5, 2.0, 4.0, 8.0)
LONG = 2**22  # a reservation that outlasts every run here
Step = Callable[[], object]


# -- real clients --------------------------------------------------------------------


def one_by_one(url: str, batch: int) -> Step:
    """A charge."""
    ledger = Ledger.open(url)
    return lambda: ledger.charge(GRAIN, label="one of many")


def own_reservation(url: str, batch: int) -> Step:
    """A reservation of its own for every batch."""
    ledger = Ledger.open(url)
    return lambda: ledger.reserve(GRAIN, count=batch, label="a batch")


def from_a_long_one(url: str, batch: int) -> Step:
    """A batch of draws from a reservation that lasts."""
    ledger = Ledger.open(url)
    reserved = ledger.reserve(GRAIN, count=LONG, label="the long one")
    return lambda: reserved.draw_many(batch)


@dataclass(frozen=True)
class Saturated:
    """As many transactions as the ledger makes, with all clients asking at once."""

    charges_a_second: float
    gaps: np.ndarray  # from one commit to the next, of all clients together
    latencies: np.ndarray


def saturate(
    make: Callable[[str, int], Step], url: str, batch: int, seconds: float
) -> Saturated:
    """Transactions back to back in every client."""

    def work(number: int, ready: Callable[[], None]) -> list[tuple[float, float]]:
        step = make(url, batch)
        step()
        ready()
        begin, times = time.monotonic(), []
        while time.monotonic() - begin < seconds:
            before = time.monotonic()
            step()
            times.append((before, time.monotonic()))
        return times

    times = [pair for found in in_processes(CLIENTS, work) for pair in found]
    ends = np.sort([end for _, end in times])
    # The last second may have fewer clients at work.
    gaps = np.diff(ends[: max(2, int(0.9 * len(ends)))])
    spent = ends[-1] - min(begin for begin, _ in times)
    latencies = np.array([end - begin for begin, end in times])
    return Saturated(batch * len(times) / spent, gaps, latencies)


@dataclass(frozen=True)
class Arrived:
    """Real clients with charges that arrive at random."""

    waits: np.ndarray
    holds: np.ndarray  # of the lock, by each fetch
    approach: float  # from a fetch's begin until it asks for the lock, on average


def arrive(url: str, batch: int, rate: float, seconds: float) -> Arrived:
    """How long each charge waits in real clients, with Poisson arrivals at `rate`."""

    def work(number: int, ready: Callable[[], None]) -> dict[str, Any]:
        asked: list[float] = []
        got: list[float] = []
        lock_ledger = header.lock

        def watched(connection: Any) -> Any:
            asked.append(time.monotonic())
            found = lock_ledger(connection)
            got.append(time.monotonic())
            return found

        step = from_a_long_one(url, batch)
        step()
        header.lock = watched
        draw = np.random.default_rng([7, number])
        gaps = draw.exponential(CLIENTS / rate, int(rate / CLIENTS * seconds))
        ready()
        arrivals = time.monotonic() + 0.1 + np.cumsum(gaps)
        stock, waits = int(draw.integers(0, batch)), []
        begins: list[float] = []
        ends: list[float] = []
        for arrival in arrivals.tolist():
            early = arrival - time.monotonic()
            if early > 0:
                time.sleep(early)
            if stock == 0:
                begins.append(time.monotonic())
                step()
                ends.append(time.monotonic())
                stock = batch
                waits.append(max(0.0, time.monotonic() - arrival))
            else:
                # In hand at once, unless an earlier fetch has kept it waiting.
                waits.append(max(0.0, -early))
            stock -= 1
        return {"waits": waits, "times": [*zip(begins, asked, got, ends, strict=True)]}

    found = in_processes(CLIENTS, work)
    waits = np.concatenate([f["waits"] for f in found])
    begins, asked, got, ends = np.array([t for f in found for t in f["times"]]).T
    # The server gives the lock a little before we hear of it: as long as that takes
    # when nobody else has it.
    unheard = np.quantile(got - asked, 0.05)
    return Arrived(waits, ends - got + unheard, float(np.mean(asked - begins)))


# -- simulated clients ---------------------------------------------------------------


@dataclass(frozen=True)
class Simulated:
    """What a single writer does to charges that arrive at random."""

    utilisation: float
    waits: np.ndarray
    queue: float  # clients at the writer, on average at an arrival there
    growth: float  # of the charges that wait, a second, in the second half


def simulate(
    gaps: np.ndarray,
    rate: float,
    clients: int,
    batch: int,
    seconds: float,
    ahead: bool = False,
    approach: float = 0.0,
) -> Simulated:
    """Clients that hold a stock of draws and fetch `batch` when a charge finds none.

    The writer serves one fetch at a time, first come first served, for a time drawn
    from `gaps`. A client fetches once at a time; charges wait at it in order. `ahead`:
    it fetches when half a batch is left. `approach`: what a fetch takes before it asks
    for the lock. All start somewhere in a batch.
    """
    draw = np.random.default_rng(5)
    count = draw.poisson(rate * seconds)
    arrivals = np.sort(draw.uniform(0.0, seconds, count)).tolist()
    at = draw.integers(0, clients, count).tolist()
    services = iter(draw.choice(gaps, count + clients).tolist())
    low = batch // 2 if ahead else 0
    stock = (low + draw.integers(0, batch, clients)).tolist()
    waiting: list[deque[float]] = [deque() for _ in range(clients)]
    fetching = [False] * clients
    done: list[tuple[float, int]] = []  # fetches under way, by their end
    free_at = busy = 0.0
    waits: list[float] = []
    seen: list[int] = []

    def fetch(client: int, now: float) -> None:
        nonlocal free_at, busy
        seen.append(len(done))
        service = next(services)
        free_at = max(free_at, now + approach) + service
        if free_at <= seconds:
            busy += service
        fetching[client] = True
        heapq.heappush(done, (free_at, client))

    def finish(until: float) -> None:
        while done and done[0][0] <= until:
            now, client = heapq.heappop(done)
            stock[client] += batch
            fetching[client] = False
            line = waiting[client]
            while line and stock[client]:
                waits.append(now - line.popleft())
                stock[client] -= 1
            if line or stock[client] < low:
                fetch(client, now)

    halfway = 0
    for number, (arrival, client) in enumerate(zip(arrivals, at, strict=True)):
        finish(arrival)
        if number == count // 2:
            halfway = sum(map(len, waiting))
        if stock[client]:
            stock[client] -= 1
            waits.append(0.0)
        else:
            waiting[client].append(arrival)
        if not fetching[client] and (waiting[client] or stock[client] < low):
            fetch(client, arrival)
    finish(seconds)
    late = [seconds - arrival for line in waiting for arrival in line]
    return Simulated(
        busy / seconds,
        np.array(waits + late),
        float(np.mean(seen or [0])),
        (len(late) - halfway) / (seconds / 2),
    )


# -- tables --------------------------------------------------------------------------


def ms(values: np.ndarray, share: float) -> str:
    """A quantile in milliseconds."""
    return f"{1e3 * float(np.quantile(values, share)):,.1f}"


def run(quick: bool, plot: Path | None = None) -> list[str]:
    """Markdown tables of what was measured here and what follows."""
    seconds = 2.0 if quick else 8.0
    with tempfile.TemporaryDirectory(prefix="demur-bench-") as folder:
        os.environ["DEMUR_KEYS"] = f"{folder}/keys"
        try:
            server = Server()
        except NoServer as error:
            return [f"No PostgreSQL on this machine: {error}."]
        try:
            url = server.url(server.new_database())
            Ledger.open(url, **TERMS).close()
            lines, gaps = _measured(url, f"{folder}/ledger.db", seconds)
            lines += _checked(url, gaps, seconds)
            with Ledger.open(url) as ledger:
                found = ledger.verify(ledger.tip())
                assert found.ok, str(found)
                spent = ledger.status()[0]
                assert spent.spent_epsilon <= spent.budget.epsilon
            ((size,),) = ask(url, "SELECT pg_total_relation_size('demur_rows')")
            lines += [
                "",
                f"The ledger verifies: {found.rows:,} rows of {size / found.rows:,.0f}"
                " bytes with their indexes, within its budget.",
            ]
        finally:
            server.close()
    return lines + _at_scale(gaps, 5.0 if quick else 20.0, plot)


def _measured(url: str, file: str, seconds: float) -> tuple[list[str], np.ndarray]:
    lines = [
        f"{CLIENTS} client processes back to back; a charge is one paid use.",
        "",
        "| store | way | k | charges/s | transactions/s"
        " | of which one takes, p50 (ms) | p99 (ms) |",
        "|---|---|---|---|---|---|---|",
    ]
    Ledger.open(file, **TERMS).close()
    plans: list[tuple[str, str, str, Callable[[str, int], Step], int]] = [
        ("SQLite", file, "charge", one_by_one, 1),
        ("SQLite", file, "draw_many(k)", from_a_long_one, 1000),
        ("PostgreSQL", url, "charge", one_by_one, 1),
    ]
    for batch in BATCHES[1:]:
        plans.append(("PostgreSQL", url, "reserve(count=k)", own_reservation, batch))
    for batch in BATCHES[1:]:
        plans.append(("PostgreSQL", url, "draw_many(k)", from_a_long_one, batch))
    gaps = np.empty(0)
    for kind, where, way, make, batch in plans:
        found = saturate(make, where, batch, seconds)
        lines.append(
            f"| {kind} | {way} | {batch:,} | {found.charges_a_second:,.0f}"
            f" | {found.charges_a_second / batch:,.0f}"
            f" | {ms(found.latencies, 0.5)} | {ms(found.latencies, 0.99)} |"
        )
        if kind == "PostgreSQL" and way == "draw_many(k)" and batch == 100:
            gaps = found.gaps
    return lines, gaps


def _checked(url: str, gaps: np.ndarray, seconds: float) -> list[str]:
    """The simulation beside real processes with the same arrivals.

    Service times are those of the same run: what else the machine does changes them.
    """
    service = float(gaps.mean())
    lines = [
        "",
        f"From one commit to the next, all clients asking: mean {1e3 * service:.2f} ms,"
        f" p50 {ms(gaps, 0.5)}, p99 {ms(gaps, 0.99)}. Arrivals at random, real /"
        " simulated with the lock times of the same run:",
        "",
        "| charges/s | k | lock held, mean (ms) | utilisation | share that waited"
        " | mean wait (ms) | p99 wait (ms) |",
        "|---|---|---|---|---|---|---|",
    ]
    cases = [(share * 20 / service, 20) for share in (0.3, 0.6, 0.9)]
    cases.append((RATE, int(np.ceil(RATE * service / 0.5))))
    for rate, batch in cases:
        real = arrive(url, batch, rate, seconds)
        made = simulate(real.holds, rate, CLIENTS, batch, 30.0, approach=real.approach)
        waited = [float(np.mean(w > 5e-4)) for w in (real.waits, made.waits)]
        means = [1e3 * float(np.mean(w)) for w in (real.waits, made.waits)]
        lines.append(
            f"| {rate:,.0f} | {batch} | {1e3 * real.holds.mean():.2f}"
            f" | {made.utilisation:.2f}"
            f" | {waited[0]:.3f} / {waited[1]:.3f}"
            f" | {means[0]:.2f} / {means[1]:.2f}"
            f" | {ms(real.waits, 0.99)} / {ms(made.waits, 0.99)} |"
        )
    return lines


def _at_scale(gaps: np.ndarray, seconds: float, plot: Path | None) -> list[str]:
    """10,000 charges a second over many clients."""
    service = float(gaps.mean())
    lines = [
        "",
        f"Simulated, {RATE:,.0f} charges/s; the writer is full below k ="
        f" {RATE * service:.0f}:",
        "",
        "| clients | k | utilisation | clients in the queue | share that waits"
        " | p99 wait (ms) | p99, fetched ahead | backlog grows by, a second"
        " | stranded uses, at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    curves: dict[int, list[tuple[float, float]]] = {}
    batches = [int(np.ceil(RATE * service * share)) for share in SHARES]
    for clients in (8, 100, 1000):
        for batch in (1, *batches):
            made, ahead = (
                simulate(gaps, RATE, clients, batch, seconds, way)
                for way in (False, True)
            )
            demand = RATE * service / batch
            full = demand >= 1
            waits = ["grows"] * 2
            if not full:
                waits = [ms(made.waits, 0.99), ms(ahead.waits, 0.99)]
                mean = 1e3 * float(np.mean(made.waits))
                curves.setdefault(clients, []).append((batch, mean))
            lines.append(
                f"| {clients:,} | {batch:,} | {demand:.2f} | {made.queue:,.1f}"
                f" | {np.mean(made.waits > 0):.4f} | {waits[0]} | {waits[1]}"
                f" | {made.growth if full else 0:,.0f} | {clients * batch:,} |"
            )
    if plot is not None:
        _draw(curves, RATE * service, plot)
    return lines


def _draw(
    curves: dict[int, list[tuple[float, float]]], full: float, plot: Path
) -> None:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for clients, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{clients:,} clients")
    axes.axvspan(full / 3, full, color="0.9")
    axes.text(0.03, 0.05, "the writer is full", color="0.4", transform=axes.transAxes)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(full / 3, 10 * full),
        xlabel="charges fetched at a time, k",
        ylabel="mean wait of a charge (ms)",
        title="10,000 charges a second on one ledger",
    )
    axes.minorticks_off()
    shown = sorted({batch for points in curves.values() for batch, _ in points})
    axes.set_xticks(shown, labels=[f"{batch:,}" for batch in shown])
    axes.legend()
    figure.savefig(plot, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    print("\n".join(run(asked.quick, asked.plot)))


if __name__ == "__main__":
    main()
