"""Training: a private search over learning rates on Fashion-MNIST."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
import optax
from training import STEPS, unit_norm
from training import fashion as images
from tuning_parts.draws import Array, known, line, measured

from demur import AddOrRemoveOne
from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu, ideal_delta
from demur.core.promise import Promise
from demur.training import BandMFExecutionPlanConfig, Resources, fit
from demur.training.models import MLP, accuracy, cross_entropy
from demur.tuning import PlanSetting, correct_answers, held_back, search_plans

DELTA, PUBLIC = 1e-5, 0.1
QUICK = Resources(check_loss=False)
MODEL = MLP(784, (), 10)


@dataclass(frozen=True)
class Schedule:
    """Steps of batches, for a softmax with one of several rates; the noise follows."""

    steps: int = 100
    batch: int = 512
    rates: Sequence[float] = (0.25, 1.0, 4.0, 16.0)
    bands: Sequence[int] = (1,)
    average: float | None = None
    falls: Sequence[bool] = (False,)

    def settings(
        self, epsilon: float, n: int, *, runs: int = 1, noise: float | None = None
    ) -> list[PlanSetting]:
        """One for each combination; `runs` of them cost epsilon."""
        return [
            PlanSetting(
                {"bands": bands, "rate": rate, "falls": falls},
                plan_of(self, bands, epsilon, n, runs, noise),
                self.optimizer(rate, falls),
                self.average,
            )
            for bands in self.bands
            for falls in self.falls
            for rate in self.rates
        ]

    def optimizer(self, rate: float, falls: bool) -> Any:
        """Momentum 0.9, and a rate that is constant or falls to a tenth."""
        schedule: Any = rate
        if falls:
            schedule = optax.cosine_decay_schedule(rate, self.steps, alpha=0.1)
        return optax.sgd(schedule, momentum=0.9)


@lru_cache(maxsize=64)
def plan_of(
    schedule: Schedule,
    bands: int,
    epsilon: float,
    n: int,
    runs: int,
    noise: float | None,
) -> Any:
    config = BandMFExecutionPlanConfig(
        iterations=schedule.steps * runs,
        num_bands=bands,
        sampling_prob=bands * schedule.batch / n,
        epsilon=epsilon if noise is None else None,
        delta=DELTA if noise is None else None,
        noise_multiplier=noise,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        rescale_to_unit_norm=True,
        normalize_by=float(schedule.batch),
    )
    if runs > 1:
        level = config.make().noise_multiplier
        return plan_of(schedule, bands, epsilon, n, 1, level)
    return config.make()


@lru_cache(maxsize=1)
def data() -> tuple[Array, Array, Array, Array]:
    (x, y), (xt, yt) = images("train"), images("t10k")
    return unit_norm(x), y, unit_norm(xt), yt


def parameters_of(done: Any) -> Any:
    return done.value if done.average is None else done.average


def predict(done: Any, rows: Array) -> Array:
    return np.asarray(MODEL.logits(parameters_of(done), rows)).argmax(-1)


def trained(setting: PlanSetting, rows: Array, labels: Array) -> Any:
    return fit(
        setting.plan,
        cross_entropy(MODEL),
        MODEL.init(jax.random.key(0)),
        {"x": rows, "y": labels},
        optimizer=setting.optimizer,
        average=setting.average,
        delta=DELTA,
        resources=QUICK,
    )


def searched(schedule: Schedule, epsilon: float, key: str, x: Array, y: Array) -> Any:
    """The winner of a search that costs epsilon."""
    back = held_back(np.arange(len(y)), key=key)
    result = search_plans(
        partial(schedule.settings, n=int((~back).sum())),
        Promise(AddOrRemoveOne(), epsilon, DELTA),
        cross_entropy(MODEL),
        MODEL.init(jax.random.key(0)),
        {"x": x[~back], "y": y[~back]},
        score=partial(correct_answers, x[back], y[back], predict=predict),
        resources=QUICK,
    )
    return result.value


def fashion(draws: int, epsilons: list[float]) -> None:
    """All methods on the same divisions of the training images."""
    schedule = Schedule()

    def one(draw: int, epsilon: float) -> dict[str, Any]:
        x, y, xt, yt = data()
        public = held_back(np.arange(len(y)), PUBLIC, key=f"public {draw}")
        xp, yp, x, y = x[public], y[public], x[~public], y[~public]
        n, half, key = len(y), len(yp) // 2, f"held back {draw}"

        def judged(done: Any) -> float:
            return accuracy(MODEL, parameters_of(done), xt, yt)

        fixed = schedule.settings(epsilon, n)
        noise = fixed[0].plan.noise_multiplier
        on_public = [
            float(
                (
                    predict(trained(s, xp[:half], yp[:half]), xp[half:]) == yp[half:]
                ).mean()
            )
            for s in schedule.settings(epsilon, half, noise=noise)
        ]
        return {
            "fixed": [judged(trained(s, x, y)) for s in fixed],
            "chosen": int(np.argmax(on_public)),
            "paid": judged(searched(schedule, epsilon, key, x, y)),
            "composed": judged(composed(schedule, epsilon, key, x, y)),
        }

    measured("fashion", draws, epsilons, one)


def candidates(draws: int, epsilons: list[float]) -> None:
    """A search over what `training.py --choose` compares, on all 60,000 images."""
    schedule = Schedule(
        steps=STEPS,
        batch=1024,
        rates=(4.0, 8.0, 16.0),
        bands=(1, 8),
        average=0.98,
        falls=(False, True),
    )
    x, y, xt, yt = data()
    for epsilon in epsilons:
        for draw in range(draws):
            if known(part="candidates", epsilon=epsilon, draw=draw):
                continue
            start = time.perf_counter()
            done = searched(schedule, epsilon, f"held back {draw}", x, y)
            line(
                part="candidates",
                epsilon=epsilon,
                draw=draw,
                last=accuracy(MODEL, done.value, xt, yt),
                averaged=accuracy(MODEL, done.average, xt, yt),
                seconds=round(time.perf_counter() - start),
            )
        found = known(part="candidates", epsilon=epsilon)
        cells = [
            f"{np.mean(column):.4f} ({np.std(column, ddof=1):.4f})"
            for column in ([f[k] for f in found] for k in ("last", "averaged"))
            if len(column) > 1
        ]
        print(
            "| paid search over 12 settings |", epsilon, *cells, len(found), sep=" | "
        )


def composed(schedule: Schedule, epsilon: float, key: str, x: Array, y: Array) -> Any:
    """Every setting once, by composition, and the one whose noisy score is best."""
    back = held_back(np.arange(len(y)), key=key)
    count = len(schedule.rates) * len(schedule.bands)
    ideal = ideal_delta(DELTA)
    each = gaussian_epsilon(gaussian_mu(epsilon, ideal) / math.sqrt(count), ideal)
    promise = Promise(AddOrRemoveOne(), each, DELTA)
    score = correct_answers(x[back], y[back], promise, predict=predict)
    plans = schedule.settings(epsilon, int((~back).sum()), runs=count)
    runs = [trained(s, x[~back], y[~back]) for s in plans]
    noisy = [score.mechanism.release([score.value(run)]).value[0] for run in runs]
    return runs[int(np.argmax(noisy))]
