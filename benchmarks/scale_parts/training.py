"""Training on 1, 2 and 4 processes of one machine: rows a second, and the noise.

    python benchmarks/scale_parts/training.py [--quick]

Every process is pinned to one core and runs one thread, so that two of them on two
cores can at best double what one does, and four only show what the meetings cost. One
process with both cores is shown beside them: what a single machine does by itself. The
model is an MLP with correlated noise of 8 bands; batches have one size. Times are those
of steps after the first three, between callbacks, in process 0; the noise is timed
alone, for 10 million parameters, and so is a meeting of the processes.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demur.core.entropy import Seeded
from demur.mechanisms.correlated import optimize_banded_toeplitz
from demur.training import (
    BandMFExecutionPlanConfig,
    ClippedSum,
    Reporting,
    Resources,
    ShapePlan,
    fit,
    privatizer,
)
from demur.training.devices.placement import Placement
from demur.training.devices.processes import Processes
from demur.training.distributed import start

ROWS, SIZES = 1024, (784, 512, 512, 10)
SEEN_FROM = 3  # the first steps wait for programs and pages
NOISE_SHAPE = (10_000, 1_000)
# processes, cores that each may use; None is all of them
CASES = ((1, None), (1, 1), (2, 1), (4, 1))


def train(mesh: Any, steps: int) -> float:
    """Rows a second of a run, a tenth of them padding."""
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(8 * ROWS, SIZES[0])).astype(np.float32),
        "y": rng.integers(0, SIZES[-1], 8 * ROWS),
    }
    pairs = list(zip(SIZES[:-1], SIZES[1:], strict=True))
    params = [(rng.normal(size=p) / p[0] ** 0.5).astype(np.float32) for p in pairs]

    def loss(params: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for matrix in params[:-1]:
            hidden = jax.nn.relu(hidden @ matrix)
        logits = hidden @ params[-1]
        return optax.softmax_cross_entropy_with_integer_labels(
            logits, batch["y"]
        ).mean()

    plan = BandMFExecutionPlanConfig(
        iterations=steps,
        num_bands=8,
        sampling_prob=0.9,
        noise_multiplier=4.0,
        l2_clip_norm=1.0,
        normalize_by=ROWS,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make()
    times: list[float] = []

    def note(report: Any) -> None:
        report.params()  # the step is done when its parameters are here
        times.append(time.perf_counter())

    fit(
        plan,
        loss,
        params,
        data,
        optimizer=optax.sgd(0.1),
        delta=1e-6,
        resources=Resources(
            shapes=ShapePlan((ROWS,), None, steps, 0.0, 0.0, 0.0),
            mesh=mesh,
            check_loss=False,
        ),
        reporting=Reporting(note, progress=False),
        source=Seeded(1),
    )
    return ROWS * (len(times) - 1 - SEEN_FROM) / (times[-1] - times[SEEN_FROM])


def noise_s(mesh: Any, turns: int) -> float:
    """Seconds of one step of noise alone, added and gathered; the best of some."""
    strategy = optimize_banded_toeplitz(iterations=64, bands=8)
    add = privatizer(strategy, stddev=1.0)
    add = add if mesh is None else add.on(mesh)
    sums = Placement(mesh).replicate({"w": jnp.zeros(NOISE_SHAPE)})
    state, times = add.init(sums), []

    step = jax.jit(add.update, donate_argnums=1)
    for turn in range(turns + 1):
        key = np.array([[turn, 7]], np.uint32)
        began = time.perf_counter()
        noisy, state = step(ClippedSum(sums, 1.0), state, key=key)
        jax.block_until_ready((noisy, state))
        times.append(time.perf_counter() - began)
        del noisy
    return min(times[1:])


def meeting_s(mesh: Any, turns: int) -> float:
    """Seconds of one meeting of all processes, as there is one after each step."""
    group = Processes(mesh)
    with group.stage():
        pass
    began = time.perf_counter()
    for _ in range(turns):
        with group.stage():
            pass
    return (time.perf_counter() - began) / turns


def worker(port: str, count: str, index: str, steps: str) -> None:
    """One process."""
    mesh = None
    if int(count) > 1:
        mesh = start(f"127.0.0.1:{port}", int(count), int(index))
    found = {
        "rate": train(mesh, int(steps)),
        "noise": noise_s(mesh, 5),
        "meeting": meeting_s(mesh, 200),
    }
    print("found " + json.dumps(found), flush=True)


def measured(count: int, cores: int | None, steps: int) -> dict[str, float]:
    """What process 0 of `count` found."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--worker", str(port), str(count)]
    everything, running = sorted(os.sched_getaffinity(0)), []
    try:
        for index in range(count):
            # Pinned as it starts: JAX makes as many threads as it may use cores.
            if cores is not None:
                os.sched_setaffinity(0, {everything[index % len(everything)]})
            running.append(
                subprocess.Popen(
                    [*command, str(index), str(steps)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=600)[0] for process in running]
    finally:
        os.sched_setaffinity(0, everything)
        for process in running:
            process.kill()
    (line,) = (x for x in outputs[0].splitlines() if x.startswith("found "))
    return dict(json.loads(line.removeprefix("found ")))


def run(quick: bool) -> list[str]:
    """The table, as lines of Markdown."""
    steps = 12 if quick else 64
    lines = [
        "| processes | cores each | rows/s | against one core | noise of 1e7"
        " parameters | a meeting |",
        "|---|---|---|---|---|---|",
    ]
    found = {case: measured(*case, steps) for case in CASES}
    base = found[1, 1]["rate"]
    for (count, cores), one in found.items():
        meeting = "-" if count == 1 else f"{1e3 * one['meeting']:.2f} ms"
        lines.append(
            f"| {count} | {'all' if cores is None else cores} | {one['rate']:,.0f} |"
            f" {one['rate'] / base:.2f} | {1e3 * one['noise']:.0f} ms | {meeting} |"
        )
    here = len(os.sched_getaffinity(0))
    lines += [
        "",
        f"MLP {'-'.join(map(str, SIZES))}, {ROWS} rows a step, 8 bands, {steps} steps,"
        f" {here} cores. Processes beyond the cores share them.",
    ]
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print("\n".join(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
