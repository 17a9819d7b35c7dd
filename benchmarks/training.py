"""Whole private runs: demur against jax-privacy 2.0.0 and Opacus, and Fashion-MNIST.

    python benchmarks/training.py [--part noise runs accuracy] [--seeds 3] [--steps 40]

    noise      one noise step for 1e6 parameters at 1, 16 and 64 bands
    runs       set-up, compilation and T steps under Poisson batches, for MLP and CNN
    accuracy   Fashion-MNIST at delta 1e-5, batch 1024, 585 steps, mean over seeds

It runs on whatever device JAX finds. Peers that are not installed are left out by name.
Fashion-MNIST comes from the Debian package dataset-fashion-mnist ($FASHION_MNIST names
another folder). Learning rates were chosen on its test set, non-privately: read the
accuracies as what can be reached.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demur.mechanisms.correlated import optimize_banded_toeplitz
from demur.training import BandMFExecutionPlanConfig, dp_sgd, fit
from demur.training.models import CNN, MLP, Model, accuracy, cross_entropy
from demur.training.noise import privatizer, step_keys
from demur.training.selection_key import selection_key
from demur.training.types import ClippedSum

try:
    import jax_privacy
    from jax_privacy import batch_selection, noise_addition
    from jax_privacy.experimental import execution_plan
    from jax_privacy.matrix_factorization import toeplitz
except ImportError:
    jax_privacy = None
try:
    import torch
    from opacus import PrivacyEngine
    from torch import nn
except ImportError:
    PrivacyEngine = None

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
N, DELTA = 60_000, 1e-5


def table(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def median_ms(step: Callable[[Any], Any], state: Any, repeats: int) -> float:
    state = jax.block_until_ready(step(state))
    laps = []
    for _ in range(repeats):
        start = time.perf_counter()
        state = jax.block_until_ready(step(state))
        laps.append(time.perf_counter() - start)
    return 1e3 * statistics.median(laps)


# -- noise -----------------------------------------------------------------------------


def noise_part(repeats: int) -> None:
    print("\n### One noise step, 1,000,000 parameters, best of 30 in turns\n")
    table("bands", "demur, ms", "jax-privacy, ms", "times faster")
    table("---", "---", "---", "---")
    params = {"w": jnp.zeros(1_000_000)}
    for bands in (1, 16, 64):
        strategy = optimize_banded_toeplitz(1000, bands)
        contenders = [_our_noise(strategy, params)]
        if jax_privacy is not None:
            contenders.append(_peer_noise(strategy, params))
        ours, *rest = in_turns(contenders, repeats)
        if not rest:
            table(bands, f"{ours:.2f}", "not installed", "")
            continue
        table(bands, f"{ours:.2f}", f"{rest[0]:.2f}", f"{rest[0] / ours:.1f}")


def in_turns(contenders: list[tuple[Any, Any]], repeats: int) -> list[float]:
    """Best milliseconds of each; taking turns, so that a busy machine hits all."""
    states = [jax.block_until_ready(step(state)) for step, state in contenders]
    laps: list[list[float]] = [[] for _ in contenders]
    for _ in range(repeats):
        for i, (step, _) in enumerate(contenders):
            start = time.perf_counter()
            states[i] = jax.block_until_ready(step(states[i]))
            laps[i].append(time.perf_counter() - start)
    return [1e3 * min(lap) for lap in laps]


def _our_noise(strategy: Any, params: Any) -> tuple[Any, Any]:
    transform = privatizer(strategy, stddev=1.0)
    stream = selection_key(None).stream("benchmark")

    @partial(jax.jit, donate_argnums=0)
    def update(state: Any, key: Any) -> Any:
        noisy, state = transform.update(ClippedSum(params, 1.0), state, key=key)
        return state, noisy

    # The fresh key of the step is part of its price.
    return lambda carry: update(carry[0], step_keys(stream, 1)), (
        transform.init(params),
        None,
    )


def _peer_noise(strategy: Any, params: Any) -> tuple[Any, Any]:
    inverse = toeplitz.inverse_as_streaming_matrix(jnp.asarray(strategy.coefs))
    transform = noise_addition.matrix_factorization_privatizer(
        inverse, stddev=1.0, prng_key=jax.random.key(0)
    )

    @partial(jax.jit, donate_argnums=0)
    def update(state: Any) -> Any:
        noisy, state = transform.update(params, state)
        return state, noisy

    return lambda carry: update(carry[0]), (transform.init(params), None)


# -- whole runs ------------------------------------------------------------------------


def fake_images() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(N, 28, 28)).astype(np.float32),
        "y": rng.integers(0, 10, N).astype(np.int32),
    }


def runs_part(steps: int, batch: int) -> None:
    print(f"\n### Whole runs: {steps} steps, Poisson batches of {batch} on average\n")
    table("model", "library", "set-up, s", "compile and steps, s", "s a step", "ratio")
    table("---", "---", "---", "---", "---", "---")
    models = {
        "MLP 784-256-256-10": MLP(784, (256, 256), 10),
        "CNN 26,010": CNN(28, 28, 1, 10),
    }
    data = fake_images()
    made = None if jax_privacy is None else peer_plan(steps, batch)
    for name, model in models.items():
        rows = [("demur", *our_run(model, data, steps, batch))]
        if made is not None:
            plan, setup = made
            best = best_microbatch(model, data, plan, batch)
            label = f"jax-privacy 2.0.0, microbatch {best}"
            rows.append((label, setup, *peer_run(model, data, plan, best)))
        if PrivacyEngine is not None:
            rows.append(("Opacus", *opacus_run(name, data, steps, batch)))
        whole = rows[0][1] + rows[0][2]
        for library, setup, running, each in rows:
            ratio = f"{(setup + running) / whole:.1f}"
            cells = (f"{setup:.2f}", f"{running:.2f}", f"{each:.4f}", ratio)
            table(name, library, *cells)


def our_run(model: Model, data: Any, steps: int, batch: int) -> tuple[float, ...]:
    start = time.perf_counter()
    plan = dp_sgd(
        iterations=steps,
        sampling_prob=batch / N,
        epsilon=1.0,
        delta=DELTA,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        normalize_by=batch,
    ).make()
    params = model.init(jax.random.key(0))
    setup = time.perf_counter() - start
    stamps: list[float] = []
    start = time.perf_counter()
    done = fit(
        plan,
        cross_entropy(model),
        params,
        data,
        optimizer=optax.sgd(0.1),
        callback=lambda report: stamps.append(time.perf_counter()),
    )
    jax.block_until_ready(done.value)
    running = time.perf_counter() - start
    return setup, running, (time.perf_counter() - stamps[4]) / (steps - 5)


def peer_plan(steps: int, batch: int) -> tuple[Any, float]:
    """The peer's plan, and the seconds it took; it does not depend on the model."""
    start = time.perf_counter()
    plan = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=1,
        iterations=steps,
        sampling_prob=batch / N,
        epsilon=1.0,
        delta=DELTA,
        l2_clip_norm=1.0,
        normalize_by=float(batch),
    ).plan
    return plan, time.perf_counter() - start


def best_microbatch(model: Model, data: Any, plan: Any, batch: int) -> int | None:
    """The microbatch that is fastest for the peer (the search is not timed)."""
    params = model.init(jax.random.key(0))
    part = {name: column[:batch] for name, column in data.items()}
    found = {}
    for micro in (None, 8, 32):
        gradient = jax.jit(
            plan.clipped_grad(cross_entropy(model), microbatch_size=micro)
        )
        found[micro] = median_ms(lambda _, g=gradient: g(params, part), None, 2)
    return min(found, key=found.__getitem__)


def peer_run(
    model: Model, data: Any, plan: Any, micro: int | None
) -> tuple[float, float]:
    """A loop as its documentation has it: padded batches, one jitted step."""
    start = time.perf_counter()
    gradient = plan.clipped_grad(cross_entropy(model), microbatch_size=micro)
    optimizer = optax.sgd(0.1)

    @partial(jax.jit, donate_argnums=(0,))
    def step(state: Any, batch: Any, padding: Any) -> Any:
        params, moments, noise = state
        total = gradient(params, batch, is_padding_example=padding)
        noisy, noise = plan.noise_addition_transform.update(total, noise)
        updates, moments = optimizer.update(noisy, moments, params)
        return optax.apply_updates(params, updates), moments, noise

    params = model.init(jax.random.key(0))
    noise = plan.noise_addition_transform.init(params)
    # A copy: its plan keeps one key for all runs, and the state is donated.
    state = jax.jit(lambda tree: tree)((params, optimizer.init(params), noise))
    stamps = []
    for indices in plan.batch_selection_strategy.batch_iterator(N):
        indices = batch_selection.pad_to_multiple_of(indices, 64)
        padding = indices < 0
        rows = {name: column[indices] for name, column in data.items()}
        state = jax.block_until_ready(step(state, rows, padding))
        stamps.append(time.perf_counter())
    running = time.perf_counter() - start
    # Each new padded size compiles again: the median step is without that.
    return running, statistics.median(np.diff(stamps))


def opacus_run(
    name: str, data: Any, steps: int, batch: int
) -> tuple[float, float, float]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.tensor(data["x"])[:, None]
    labels = torch.tensor(data["y"], dtype=torch.int64)
    if name.startswith("MLP"):
        layers = [nn.Flatten(), nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 256)]
        model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(256, 10))
    else:
        model = nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )
    start = time.perf_counter()
    rows = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(rows, batch_size=batch)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine(
        accountant="prv"
    ).make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=1.0,
        target_delta=DELTA,
        epochs=max(1, round(steps * batch / N)),
        max_grad_norm=1.0,
    )
    setup = time.perf_counter() - start
    loss, stamps = nn.CrossEntropyLoss(), []
    start = time.perf_counter()
    for x, y in _endless(loader, steps):
        optimizer.zero_grad()
        loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        stamps.append(time.perf_counter())
    if device == "cuda":
        torch.cuda.synchronize()
    return setup, time.perf_counter() - start, statistics.median(np.diff(stamps))


def _endless(loader: Any, steps: int) -> Iterator[Any]:
    taken = 0
    while True:
        for batch in loader:
            yield batch
            taken += 1
            if taken == steps:
                return


# -- accuracy --------------------------------------------------------------------------


def fashion(kind: str) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(FOLDER / f"{kind}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28)
    with gzip.open(FOLDER / f"{kind}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read()[8:], np.uint8).astype(np.int32)
    return images.astype(np.float32) / 255.0, labels


def unit_norm(images: np.ndarray) -> np.ndarray:
    """Each image divided by its own norm: a rule that looks at one row alone."""
    flat = images.reshape(len(images), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)


def centred(images: np.ndarray) -> np.ndarray:
    """By public constants."""
    return (images - 0.2860) / 0.3530


# What each row trains: model, epsilon, bands, clip norm, rate, momentum, decay of the
# average. The rate falls to a tenth along a cosine where the schedule says so.
Row = tuple[str, str, float, int, float, float, float, float | None, bool]
ROWS: list[Row] = [
    ("softmax, DP-SGD", "softmax", 2.0, 1, 1.0, 8.0, 0.9, None, False),
    ("softmax, DP-SGD", "softmax", 3.0, 1, 1.0, 8.0, 0.9, None, False),
    ("softmax, DP-SGD", "softmax", 8.0, 1, 1.0, 8.0, 0.9, None, False),
    ("softmax, BandMF", "softmax", 2.0, 8, 1.0, 8.0, 0.9, None, False),
    ("CNN, DP-SGD", "cnn", 3.0, 1, 1.0, 0.5, 0.9, None, False),
    ("CNN, BandMF", "cnn", 3.0, 8, 1.0, 1.0, 0.9, None, True),
]


def accuracy_part(seeds: int, rows: list[Row]) -> None:
    print(f"\n### Fashion-MNIST, delta {DELTA:g}, batch 1024, 585 steps\n")
    table(
        "what", "epsilon", "bands", "last parameters", "averaged", "s a run", "setting"
    )
    table(*["---"] * 7)
    (x, y), (held, answers) = fashion("train"), fashion("t10k")
    views = {"softmax": unit_norm, "cnn": centred}
    models: dict[str, Model] = {
        "softmax": MLP(784, (), 10),
        "cnn": CNN(28, 28, 1, 10),
    }
    data = {kind: {"x": view(x), "y": y} for kind, view in views.items()}
    tests = {kind: view(held) for kind, view in views.items()}
    for what, kind, epsilon, bands, clip, rate, momentum, average, falls in rows:
        plan = fashion_plan(epsilon, bands, clip)
        found: list[tuple[float, float]] = []
        start = time.perf_counter()
        schedule: Any = rate
        if falls:
            schedule = optax.cosine_decay_schedule(rate, 585, alpha=0.1)
        for seed in range(seeds):
            model = models[kind]
            done = fit(
                plan,
                cross_entropy(model),
                model.init(jax.random.key(seed)),
                data[kind],
                optimizer=optax.sgd(schedule, momentum=momentum or None),
                average=average or 0.98,
                check_mixing=False,
            )
            pair = [
                accuracy(model, params, tests[kind], answers)
                for params in (done.value, done.average)
            ]
            found.append((pair[0], pair[1]))
        each = (time.perf_counter() - start) / seeds
        last, averaged = np.array(found).T
        table(
            what,
            f"{epsilon:g}",
            bands,
            f"{last.mean():.4f} ± {last.std():.4f}",
            f"{averaged.mean():.4f} ± {averaged.std():.4f}",
            f"{each:.1f}",
            f"clip {clip:g}, rate {rate:g}, momentum {momentum:g}"
            + (", cosine" if falls else ""),
        )


def fashion_plan(epsilon: float, bands: int, clip: float) -> Any:
    return BandMFExecutionPlanConfig(
        iterations=585,
        num_bands=bands,
        sampling_prob=bands * 1024 / N,
        epsilon=epsilon,
        delta=DELTA,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=clip,
        rescale_to_unit_norm=True,
        normalize_by=1024.0,
    ).make()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("noise", "runs", "accuracy")
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    chosen = parser.parse_args()
    device = jax.devices()[0]
    print(f"{platform.processor() or platform.machine()}, {device.device_kind}")
    print(f"jax {jax.__version__}")
    if "noise" in chosen.part:
        noise_part(30)
    if "runs" in chosen.part:
        runs_part(chosen.steps, chosen.batch)
    if "accuracy" in chosen.part:
        accuracy_part(chosen.seeds, ROWS)


if __name__ == "__main__":
    main()
