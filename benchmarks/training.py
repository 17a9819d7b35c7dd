"""Whole private runs: demur against jax-privacy 2.0.0 and Opacus, and Fashion-MNIST.

    python benchmarks/training.py [--part noise runs fashion large]
        [--steps 200] [--peer-steps 40] [--batch 256] [--parameters 1e9]
        [--models softmax cnn] [--seeds 5] [--choose]

    noise      one noise step for 1e6 parameters at 1, 16 and 64 bands
    runs       set-up, compilation and T steps under Poisson batches, for MLP and CNN
    fashion    Fashion-MNIST at delta 1e-5, batch 1024, 585 steps, mean over seeds;
               `--choose` compares settings on a held-out part of the training set
    large      one noise step for as many parameters as a GPU holds; only if named

It runs on whatever device JAX finds. Peers that are not installed are left out by name.
Times are on the clock and of CPU: on a shared machine the second is the steadier one.
Fashion-MNIST comes from the Debian package dataset-fashion-mnist ($FASHION_MNIST names
another folder). Choosing settings on its data costs privacy that is not counted here:
it is public.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from demur.mechanisms.correlated import optimize_banded_toeplitz
from demur.training import (
    BandMFExecutionPlanConfig,
    ClippedSum,
    Reporting,
    Resources,
    dp_sgd,
    fit,
    privatizer,
    step_keys,
)
from demur.training.batches.selection_key import selection_key
from demur.training.models import CNN, MLP, Model, accuracy, cross_entropy

try:
    import jax_privacy
    from jax_privacy import batch_selection, noise_addition
    from jax_privacy.experimental import execution_plan
    from jax_privacy.matrix_factorization import toeplitz
except ImportError:
    jax_privacy = None
try:
    import opacus
    import torch
    from opacus import PrivacyEngine
    from torch import nn
except ImportError:
    PrivacyEngine = None

FOLDER = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
N, DELTA = 60_000, 1e-5


def table(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def now() -> np.ndarray:
    """Seconds on the clock, and of CPU in all threads: a busy machine has two times."""
    return np.array([time.perf_counter(), time.process_time()])


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
    print(f"\n### One noise step, 1,000,000 parameters, best of {repeats} in turns\n")
    print("Milliseconds on the clock / of CPU.\n")
    table("bands", "demur", "jax-privacy", "times faster")
    table("---", "---", "---", "---")
    params = {"w": jnp.zeros(1_000_000)}
    for bands in (1, 16, 64):
        strategy = optimize_banded_toeplitz(1000, bands)
        contenders = [_our_noise(strategy, params)]
        if jax_privacy is not None:
            contenders.append(_peer_noise(strategy, params))
        found = in_turns(contenders, repeats)
        cells = ["{:.2f} / {:.2f}".format(*laps) for laps in found]
        if len(found) == 1:
            table(bands, *cells, "not installed", "")
            continue
        table(bands, *cells, "{:.1f} / {:.1f}".format(*(found[1] / found[0])))


def in_turns(contenders: list[tuple[Any, Any]], repeats: int) -> list[Any]:
    """Best milliseconds of each; taking turns, so that a busy machine hits all."""
    states = [jax.block_until_ready(step(state)) for step, state in contenders]
    laps: list[list[Any]] = [[] for _ in contenders]
    for _ in range(repeats):
        for i, (step, _) in enumerate(contenders):
            start = now()
            states[i] = jax.block_until_ready(step(states[i]))
            laps[i].append(now() - start)
    return [1e3 * np.min(lap, axis=0) for lap in laps]


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


def large_part(parameters: int) -> None:
    """One leaf of so many parameters: the noise step and the memory of its ring."""
    print(f"\n### One noise step, {parameters:.3g} parameters, best of 5\n")
    table("bands", "demur, ms on the clock", "ring, GiB")
    table("---", "---", "---")
    params = {"w": jnp.zeros((parameters // 4096, 4096))}
    for bands in (1, 2, 4, 8, 16):
        ring = 4.0 * (bands - 1) * parameters / 2**30
        ours = _our_noise(optimize_banded_toeplitz(1000, bands), params)
        laps = in_turns([ours], 5)[0]
        table(bands, f"{laps[0]:.1f}", f"{ring:.1f}")


# -- whole runs ------------------------------------------------------------------------


def fake_images() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(N, 28, 28)).astype(np.float32),
        "y": rng.integers(0, 10, N).astype(np.int32),
    }


def runs_part(steps: int, batch: int, peer_steps: int) -> None:
    """One line for each library: what it takes to get `steps` private steps.

    Peers make `peer_steps` of them, being slow: a total is set-up, compilation and
    `steps` times the median step.
    """
    print(f"\n### Whole runs: {steps} steps, Poisson batches of {batch} on average\n")
    print("Seconds on the clock / of CPU.\n")
    table("model", "library", "set-up", "compile", "a step", "total", "times demur")
    table(*["---"] * 7)
    models = {
        "MLP 784-256-256-10": MLP(784, (256, 256), 10),
        "CNN 26,010": CNN(28, 28, 1, 10),
    }
    data = fake_images()
    # Plans do not depend on the model: one for both, each charged with its set-up.
    mine, mine_setup = our_plan(steps, batch)
    made = None if jax_privacy is None else peer_plan(steps, batch)
    for name, model in models.items():
        ours = our_run(model, data, mine)
        whole = show(name, "demur", mine_setup, *ours, steps, None)
        if made is not None:
            plan, setup = made
            best = best_microbatch(model, data, plan, batch)
            found = peer_run(model, data, plan, best, peer_steps)
            label = f"jax-privacy 2.0.0, microbatch {best}"
            show(name, label, setup, *found, steps, whole)
        if PrivacyEngine is not None:
            for mode in ("hooks", "ghost"):
                theirs = opacus_run(name, data, steps, batch, mode, peer_steps)
                label = f"Opacus {opacus.__version__}, {mode}"
                show(name, label, *theirs, steps, whole)


def show(
    name: str,
    library: str,
    setup: Any,
    compiling: Any,
    each: Any,
    steps: int,
    whole: Any,
) -> Any:
    """One row; its total."""
    took = setup + compiling + steps * each
    cells = ["{:.2f} / {:.2f}".format(*pair) for pair in (setup, compiling)]
    cells.append("{:.4f} / {:.4f}".format(*each))
    cells.append("{:.1f} / {:.1f}".format(*took))
    ratio = "1" if whole is None else "{:.1f} / {:.1f}".format(*(took / whole))
    table(name, library, *cells, ratio)
    return took


def split(start: Any, stamps: list[Any]) -> tuple[Any, Any]:
    """Seconds of compilation, and those of a step.

    The first steps compile, and so does any new shape: what all took beyond as many
    median steps.
    """
    each = np.median(np.diff(stamps, axis=0), axis=0)
    return np.maximum(0.0, stamps[-1] - start - len(stamps) * each), each


def our_plan(steps: int, batch: int) -> tuple[Any, Any]:
    start = now()
    plan = dp_sgd(
        iterations=steps,
        sampling_prob=batch / N,
        epsilon=1.0,
        delta=DELTA,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        normalize_by=batch,
    ).make()
    return plan, now() - start


def our_run(model: Model, data: Any, plan: Any) -> tuple[Any, Any]:
    params = model.init(jax.random.key(0))
    stamps: list[Any] = []
    start = now()
    done = fit(
        plan,
        cross_entropy(model),
        params,
        data,
        optimizer=optax.sgd(0.1),
        # A program of an earlier run of this script would hide the compilation.
        resources=Resources(store_programs=False),
        reporting=Reporting(lambda report: stamps.append(now())),
    )
    jax.block_until_ready(done.value)
    # Steps are queued: the last stamp is when all are done.
    stamps[-1] = now()
    return split(start, stamps)


def peer_plan(steps: int, batch: int) -> tuple[Any, Any]:
    """The peer's plan, and the seconds it took."""
    start = now()
    plan = execution_plan.BandMFExecutionPlanConfig.default(
        num_bands=1,
        iterations=steps,
        sampling_prob=batch / N,
        epsilon=1.0,
        delta=DELTA,
        l2_clip_norm=1.0,
        normalize_by=float(batch),
    ).plan
    return plan, now() - start


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
    model: Model, data: Any, plan: Any, micro: int | None, steps: int
) -> tuple[Any, Any]:
    """A loop as its documentation has it: padded batches, one jitted step."""
    params = model.init(jax.random.key(0))
    start = now()
    gradient = plan.clipped_grad(cross_entropy(model), microbatch_size=micro)
    optimizer = optax.sgd(0.1)

    @partial(jax.jit, donate_argnums=(0,))
    def step(state: Any, batch: Any, padding: Any) -> Any:
        params, moments, noise = state
        total = gradient(params, batch, is_padding_example=padding)
        noisy, noise = plan.noise_addition_transform.update(total, noise)
        updates, moments = optimizer.update(noisy, moments, params)
        return optax.apply_updates(params, updates), moments, noise

    noise = plan.noise_addition_transform.init(params)
    # A copy: its plan keeps one key for all runs, and the state is donated.
    state = jax.jit(lambda tree: tree)((params, optimizer.init(params), noise))
    stamps = []
    chosen = plan.batch_selection_strategy.batch_iterator(N)
    for indices in islice(chosen, steps):
        indices = batch_selection.pad_to_multiple_of(indices, 64)
        padding = indices < 0
        rows = {name: column[indices] for name, column in data.items()}
        state = jax.block_until_ready(step(state, rows, padding))
        stamps.append(now())
    return split(start, stamps)


def opacus_run(
    name: str, data: Any, steps: int, batch: int, mode: str, made_steps: int
) -> tuple[Any, Any, Any]:
    # About hooks on modules whose inputs need no gradient: the first layer.
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    warnings.filterwarnings("ignore", message="Full backward hook")
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
    start = now()
    rows = torch.utils.data.TensorDataset(images, labels)
    loader = torch.utils.data.DataLoader(rows, batch_size=batch)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = PrivacyEngine(accountant="prv").make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        data_loader=loader,
        target_epsilon=1.0,
        target_delta=DELTA,
        epochs=max(1, round(steps * batch / N)),
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    model, optimizer, *middle, loader = made
    loss = middle[0] if middle else nn.CrossEntropyLoss()
    setup = now() - start
    stamps = []
    start = now()
    for x, y in _endless(loader, made_steps):
        optimizer.zero_grad()
        loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        stamps.append(now())
    return setup, *split(start, stamps)


def _endless(loader: Any, steps: int) -> Iterator[Any]:
    taken = 0
    while True:
        for batch in loader:
            yield batch
            taken += 1
            if taken == steps:
                return


# -- Fashion-MNIST ---------------------------------------------------------------------


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


@dataclass(frozen=True)
class Setting:
    """How one model is trained: `rate` falls to a tenth along a cosine, or stays."""

    kind: str
    bands: int
    rate: float
    falls: bool
    momentum: float = 0.9
    clip: float = 1.0
    average: float = 0.98

    def __str__(self) -> str:
        told = f"clip {self.clip:g}, rate {self.rate:g}, momentum {self.momentum:g}"
        return told + (", cosine" if self.falls else "")

    def optimizer(self) -> optax.GradientTransformation:
        schedule: Any = self.rate
        if self.falls:
            schedule = optax.cosine_decay_schedule(self.rate, STEPS, alpha=0.1)
        return optax.sgd(schedule, momentum=self.momentum)


STEPS, HELD_OUT = 585, 5_000
MODELS: dict[str, Model] = {"softmax": MLP(784, (), 10), "cnn": CNN(28, 28, 1, 10)}
VIEWS = {"softmax": unit_norm, "cnn": centred}
# What `--choose` compares, at epsilon 3 and one seed.
CANDIDATES = [
    Setting(kind, bands, rate, falls)
    for kind, rates in (("softmax", (4.0, 8.0, 16.0)), ("cnn", (0.5, 1.0, 2.0)))
    for bands in (1, 8)
    for falls in (False, True)
    for rate in rates
]
ROWS: list[tuple[float, Setting]] = [
    *((eps, Setting("softmax", 1, 8.0, True)) for eps in (2.0, 3.0, 8.0)),
    *((eps, Setting("softmax", 8, 16.0, True)) for eps in (2.0, 3.0, 8.0)),
    (3.0, Setting("cnn", 1, 0.5, False)),
    (3.0, Setting("cnn", 8, 1.0, True)),
]


def fashion_part(seeds: int, kinds: list[str], choose: bool) -> None:
    """The rows on the test set, or the candidates on a held-out part of training."""
    train, judge = fashion("train"), fashion("t10k")
    rows = [(eps, setting) for eps, setting in ROWS if setting.kind in kinds]
    what = f"test set, {seeds} seeds"
    if choose:
        judge = tuple(column[-HELD_OUT:] for column in train)
        train = tuple(column[:-HELD_OUT] for column in train)
        rows = [(3.0, setting) for setting in CANDIDATES if setting.kind in kinds]
        what = f"the last {HELD_OUT} of the training set, {seeds} seeds"
    print(f"\n### Fashion-MNIST, delta {DELTA:g}, batch 1024, {STEPS} steps: {what}\n")
    table("what", "epsilon", "bands", "last", "averaged", "s a run", "setting")
    table(*["---"] * 7)
    for epsilon, setting in rows:
        start = time.perf_counter()
        plan = fashion_plan(epsilon, setting, len(train[1]))
        found = [
            fashion_run(plan, setting, seed, train, judge) for seed in range(seeds)
        ]
        each = (time.perf_counter() - start) / seeds
        cells = [
            f"{column.mean():.4f}"
            + (f" (sd {column.std(ddof=1):.4f})" if seeds > 1 else "")
            for column in np.array(found).T
        ]
        table(setting.kind, epsilon, setting.bands, *cells, f"{each:.0f}", setting)


def fashion_run(
    plan: Any, setting: Setting, seed: int, train: Any, judge: Any
) -> tuple[float, float]:
    """Accuracy of the last parameters and of their average."""
    model, view = MODELS[setting.kind], VIEWS[setting.kind]
    done = fit(
        plan,
        cross_entropy(model),
        model.init(jax.random.key(seed)),
        {"x": view(train[0]), "y": train[1]},
        optimizer=setting.optimizer(),
        average=setting.average,
        resources=Resources(check_loss=False),
    )
    x, y = view(judge[0]), judge[1]
    return accuracy(model, done.value, x, y), accuracy(model, done.average, x, y)


def fashion_plan(epsilon: float, setting: Setting, examples: int) -> Any:
    return BandMFExecutionPlanConfig(
        iterations=STEPS,
        num_bands=setting.bands,
        sampling_prob=setting.bands * 1024 / examples,
        epsilon=epsilon,
        delta=DELTA,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=setting.clip,
        rescale_to_unit_norm=True,
        normalize_by=1024.0,
    ).make()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("noise", "runs", "fashion")
    parser.add_argument(
        "--part", nargs="+", choices=[*parts, "large"], default=list(parts)
    )
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--peer-steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    chosen = parser.parse_args()
    device = jax.devices()[0]
    print(f"{platform.processor() or platform.machine()}, {device.device_kind}")
    print(f"jax {jax.__version__}")
    if "noise" in chosen.part:
        noise_part(30)
    if "large" in chosen.part:
        large_part(int(chosen.parameters))
    if "runs" in chosen.part:
        runs_part(chosen.steps, chosen.batch, chosen.peer_steps)
    if "fashion" in chosen.part:
        fashion_part(chosen.seeds, chosen.models, chosen.choose)


if __name__ == "__main__":
    main()
