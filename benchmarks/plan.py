"""Selection and calibration beside jax-privacy 2.0.0, in one run.

    python benchmarks/plan.py [--truncated]

Batches: milliseconds for one batch, the median of several. Calibration: seconds for a
plan of T = 1000, q = 128/60000, epsilon 2, delta 1e-6, and what dp_accounting's PLD
says of the result. `--truncated` also calibrates with a cap of 185, which takes the
peer minutes.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import dp_accounting as dpa
import numpy as np
from jax_privacy import batch_selection as peer
from jax_privacy.experimental import execution_plan as peer_plan

from demur.training import clipped_grad, dp_sgd
from demur.training.batches import selection as ours

Relation = dpa.NeighboringRelation
Q = 128 / 60_000


def milliseconds(strategy: Any, data: Any, batches: int) -> float:
    iterator = strategy.batch_iterator(data)
    next(iterator)
    laps = []
    for _ in range(batches):
        start = time.perf_counter()
        next(iterator)
        laps.append(time.perf_counter() - start)
    return 1e3 * statistics.median(laps)


def selection() -> None:
    users = np.random.default_rng(0).integers(0, 200_000, size=10**6)
    cases: list[tuple[str, Callable[[Any], Any], Any]] = [
        ("Poisson, n=1e6, q=0.25", lambda m: m.CyclicPoissonSampling(0.25, 99), 10**6),
        ("Poisson, n=6e4, q=128/n", lambda m: m.CyclicPoissonSampling(Q, 99), 60_000),
        (
            "cyclic 16, n=1e6, q=0.1",
            lambda m: m.CyclicPoissonSampling(0.1, 99, cycle_length=16),
            10**6,
        ),
        ("min-sep 64, n=1e6, p=0.1", lambda m: m.BMinSepSampling(0.1, 99, 64), 10**6),
        ("fixed 256 of 1e6", lambda m: m.FixedBatchSampling(256, 99), 10**6),
        (
            "2e5 users, q=0.02, 4 each",
            lambda m: m.UserSelectionStrategy(m.CyclicPoissonSampling(0.02, 99), 4),
            users,
        ),
    ]
    print("| batches | ours, ms | jax-privacy, ms | ratio |\n|---|---|---|---|")
    for name, make, data in cases:
        mine, theirs = (milliseconds(make(m), data, 15) for m in (ours, peer))
        print(f"| {name} | {mine:.3g} | {theirs:.3g} | {theirs / mine:.3g} |")


def calibration(cap: int | None) -> None:
    relation = Relation.ADD_OR_REMOVE_ONE if cap is None else Relation.REPLACE_SPECIAL
    independent = cap is None
    options: dict[str, Any] = {"truncated_batch_size": cap, "num_examples": 60_000}
    gradient = clipped_grad(lambda p, x: ((p - x) ** 2).mean(), l2_clip_norm=1.0)
    start = time.perf_counter()
    plan = dp_sgd(
        iterations=1000,
        sampling_prob=Q,
        epsilon=2.0,
        delta=1e-6,
        neighboring_relation=relation,
        accountant=dpa.pld.PLDAccountant(relation),
        **options,
    ).make(gradient)
    mine = time.perf_counter() - start
    check = dpa.pld.PLDAccountant(relation)
    check.compose(plan.dp_event)
    start = time.perf_counter()
    kind = peer.PartitionType
    theirs_plan = peer_plan.BandMFExecutionPlanConfig(
        iterations=1000,
        strategy=np.ones(1),
        sampling_prob=Q,
        epsilon=2.0,
        delta=1e-6,
        accountant=dpa.pld.PLDAccountant(relation),
        partition_type=kind.INDEPENDENT if independent else kind.EQUAL_SPLIT,
        **options,
    ).plan
    theirs = time.perf_counter() - start
    event: Any = theirs_plan.dp_event
    step = event.event
    other = step.event.noise_multiplier if cap is None else step.noise_multiplier
    print(
        f"| {'Poisson' if cap is None else f'truncated at {cap}'} | {mine:.2f} |"
        f" {theirs:.1f} | {theirs / mine:.3g} | {plan.noise_multiplier:.5f} |"
        f" {other:.5f} | {check.get_epsilon(1e-6):.5f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truncated", action="store_true")
    arguments = parser.parse_args()
    selection()
    print(
        "\n| calibration | ours, s | jax-privacy, s | ratio | z, ours | z, theirs |"
        " PLD epsilon of ours |\n|---|---|---|---|---|---|---|"
    )
    calibration(None)
    if arguments.truncated:
        calibration(185)


if __name__ == "__main__":
    main()
