"""One call of each kind, for `tools.house --trace`: what it takes to follow it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from demur import Ball, Budget, Ledger


def _ledger(space: str) -> Ledger:
    return Ledger(Budget(100.0, 1e-5), unit=Ball(0.2, space=space))


def prototype_fit() -> Callable[[], object]:
    """A prototype classifier on forty rows."""
    from demur.convex import BallPrototypeClassifier  # noqa: PLC0415

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)) / 4, np.arange(40) % 2
    head = BallPrototypeClassifier(
        epsilon=1.0,
        delta=1e-6,
        radius=0.2,
        space="x",
        classes=[0, 1],
        ledger=_ledger("x"),
    )
    return lambda: head.fit(X, y)


def bpm_report() -> Callable[[], object]:
    """Reports of forty points."""
    from demur.mechanisms import BPM  # noqa: PLC0415

    points, bpm = np.random.default_rng(0).random((40, 2)), BPM(4.0, 0.5, 2)
    ledger = _ledger("cube")
    return lambda: bpm.privatize(points, ledger=ledger)


def deletion() -> Callable[[], object]:
    """A deletion from a service on disk."""
    from demur.unlearning import UnlearningService  # noqa: PLC0415

    folder = tempfile.mkdtemp()
    service = UnlearningService.open(
        Path(folder) / "model.db", mode="ridge", dimension=3, record_store="encrypted"
    )
    rng = np.random.default_rng(0)
    service.insert_many(
        rng.normal(size=(20, 3)) / 4, rng.random(20), record_ids=range(20)
    )
    return lambda: service.delete(7)


def training_run() -> Callable[[], object]:
    """Three steps of DP-SGD."""
    import jax.numpy as jnp  # noqa: PLC0415
    import optax  # noqa: PLC0415

    from demur.training import dp_sgd, fit  # noqa: PLC0415

    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(50, 3)).astype("float32"), "y": np.arange(50) % 2}

    def loss(weights, batch):  # type: ignore[no-untyped-def]
        scores = batch["x"] @ weights
        return optax.sigmoid_binary_cross_entropy(scores, batch["y"]).mean()

    plan = dp_sgd(
        iterations=3,
        sampling_prob=0.2,
        l2_clip_norm=1.0,
        noise_multiplier=2.0,
        normalize_by=10.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
    ).make()
    return lambda: fit(
        plan, loss, jnp.zeros(3), data, optimizer=optax.sgd(0.1), delta=1e-5
    )


CALLS: dict[str, Callable[[], Callable[[], object]]] = {
    "a prototype fit": prototype_fit,
    "BPM reports": bpm_report,
    "a deletion": deletion,
    "a training run": training_run,
}
