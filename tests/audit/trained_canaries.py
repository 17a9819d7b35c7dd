"""How near a one-run audit of a small CNN comes to what its plan claims.

    python -m tests.audit.trained_canaries

trains a convolutional network on scikit-learn's digits through `fit`, with Poisson
batches and the default generator. The network has a further leaf, which no digit's
loss uses: each canary is a record whose gradient is four clip norms along one
coordinate of that leaf, so that the clip brings it to the clip norm. Canaries enter by
fair coins and are sampled like digits. The attacker sees the final parameters alone:
a canary's score is how far its coordinate went.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from demur.audit import AuditResult, audit_sampled_run, flip_coins
from demur.core import accounting
from demur.core.accounting.events import PoissonGaussian, Repeated
from demur.core.entropy import Seeded
from demur.training import Reporting, Resources, dp_sgd, fit, named_optimizer

DELTA = 1e-5
CLIP, PROBABILITY, STEPS, RATE = 1.0, 0.25, 80, 1.0


def multiplier_for(epsilon: float, steps: int = STEPS) -> float:
    """The noise multiplier at which the plan costs epsilon at 1e-5."""
    low, high = 0.3, 100.0
    while high / low > 1.0005:
        middle = (low * high) ** 0.5
        event = Repeated(PoissonGaussian(PROBABILITY, middle), steps)
        good = accounting.price(event, DELTA) <= epsilon
        low, high = (low, middle) if good else (middle, high)
    return high


def network(canaries: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float) -> Any:
        return jnp.asarray(scale * rng.standard_normal(shape, np.float32))

    return {
        "canaries": jnp.zeros(canaries),
        "filters": normal(3, 3, 1, 8, scale=0.3),
        "out": normal(8 * 16, 10, scale=0.1),
        "bias": jnp.zeros(10),
    }


def loss(params: Any, batch: Any) -> Any:
    """Cross-entropy of digits; of a canary, its coordinate times its length."""
    place = batch["place"]
    seen = jax.lax.conv_general_dilated(
        batch["x"][..., None],
        params["filters"],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    seen = jnp.tanh(seen).reshape(-1, 4, 2, 4, 2, 8).mean(axis=(2, 4))
    logits = seen.reshape(seen.shape[0], -1) @ params["out"] + params["bias"]
    learned = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    at = params["canaries"][jnp.maximum(place, 0)]
    return jnp.where(place < 0, learned, 4.0 * CLIP * at).mean()


def trained_scores(
    epsilon: float,
    canaries: int,
    seed: int,
    *,
    noise: float = 1.0,
    steps: int = STEPS,
    digits: int | None = None,
) -> tuple[np.ndarray, np.ndarray, Repeated]:
    """Scores and coins of one run, and what it claims; `noise` is the twin's factor."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:digits] / 16.0, y[:digits]
    coins = flip_coins(canaries, random_state=seed)
    inside = np.flatnonzero(coins)
    data = {
        "x": np.concatenate([x.reshape(-1, 8, 8), np.zeros((inside.size, 8, 8))]),
        "y": np.concatenate([y, np.zeros(inside.size)]),
        "place": np.concatenate([np.full(len(x), -1), inside]),
    }
    data["x"] = data["x"].astype(np.float32)
    data = {k: v if k == "x" else v.astype(np.int32) for k, v in data.items()}
    claimed = multiplier_for(epsilon, steps)
    plan = dp_sgd(
        iterations=steps,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=CLIP,
        sampling_prob=PROBABILITY,
        noise_multiplier=claimed * noise,
        normalize_by=PROBABILITY * len(x),
    ).make()
    done = fit(
        plan,
        loss,
        network(canaries),
        data,
        optimizer=named_optimizer("sgd", RATE),
        delta=DELTA,
        resources=Resources(check_loss=False),
        reporting=Reporting(progress=False),
        source=Seeded(seed),
    )
    scores = -np.asarray(done.value["canaries"], np.float64)
    return scores, coins, Repeated(PoissonGaussian(PROBABILITY, claimed), steps)


def audited(
    epsilon: float, canaries: int, seed: int, test: str, **more: Any
) -> AuditResult:
    scores, coins, event = trained_scores(epsilon, canaries, seed, **more)
    return audit_sampled_run(scores, coins, event, delta=DELTA, test=test)


def main() -> None:
    canaries = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for epsilon in (2.0, 4.0, 8.0):
        for noise in (1.0, 0.5):
            for seed in range(seeds if noise == 1.0 else 1):
                started = time.process_time()
                scores, coins, event = trained_scores(
                    epsilon, canaries, seed, noise=noise
                )
                shown = [
                    audit_sampled_run(scores, coins, event, delta=DELTA, test=test)
                    for test in ("f-DP", "counts")
                ]
                bounds = ", ".join(
                    f"{r.method.rpartition(' ')[2]} {r.lower_bound:.2f}"
                    f"{' refuted' if r.refuted else ''}"
                    for r in shown
                )
                print(
                    f"claimed {shown[0].claimed:.3f}, {noise:g} of the noise, seed"
                    f" {seed}, {canaries} canaries: {bounds}"
                    f" ({time.process_time() - started:.0f} CPU-s)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
