"""A training run as users start it, recorded: its noise, its batches, its charges.

`fit` itself runs, on the generator, sampler, clipping form and filter that it takes by
default, under a tape (`core.recording`). Nothing of it is written down here a second
time: the noise of a step is what was released less what went in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core import recording
from demur.core.accounting import events
from demur.core.entropy import Seeded
from demur.core.entry import Entry
from demur.training import (
    DPExecutionPlan,
    Reporting,
    Resources,
    Trained,
    dp_sgd,
    fit,
    named_optimizer,
)

BIASES, WEIGHTS = 256, (16, 16)
SIZE = BIASES + math.prod(WEIGHTS)
RECORDS, PROBABILITY, MULTIPLIER, CLIP = 64, 0.25, 1.5, 0.7
_DELTA = 1e-5

Values = NDArray[np.float64]


@dataclass(frozen=True)
class RecordedRun:
    """What was recorded of one run; a row for each step, leaves behind one another."""

    trained: Trained
    noise: Values
    batches: list[NDArray[Any]]
    charges: list[recording.Charge]

    def leaves(self) -> tuple[Values, Values]:
        """The noise of the biases and that of the weights, a row for each step."""
        return self.noise[:, :BIASES], self.noise[:, BIASES:]


def plan(iterations: int, **options: Any) -> DPExecutionPlan:
    """A plan as `dp_sgd` makes it; only what has no default is named."""
    given: dict[str, Any] = {
        "neighboring_relation": "ADD_OR_REMOVE_ONE",
        "l2_clip_norm": CLIP,
        "sampling_prob": PROBABILITY,
        "noise_multiplier": MULTIPLIER,
    } | options
    return dp_sgd(iterations=iterations, **given).make()


def params() -> dict[str, NDArray[np.float32]]:
    """Two leaves of one size; in the order of their names, biases come first."""
    return {
        "b": np.zeros(BIASES, np.float32),
        "w": np.zeros(WEIGHTS, np.float32),
    }


def loss(params: Any, batch: Any) -> Any:
    """The gradient of an example is the example, biases first."""
    weights = params["w"].reshape(-1)
    return (batch[:, :BIASES] @ params["b"] + batch[:, BIASES:] @ weights).mean()


@lru_cache(maxsize=8)
def recorded_run(iterations: int, seed: int, noise: str | None = None) -> RecordedRun:
    """One run of `fit` on made-up rows; `noise` None is the default generator.

    Kept, since several audits look at the same run.
    """
    options = {} if noise is None else {"noise": noise}
    rows = np.random.default_rng(0).normal(size=(RECORDS, SIZE)).astype(np.float32)
    tape = recording.Tape()
    with recording.watching(tape):
        trained = fit(
            plan(iterations, **options),
            loss,
            params(),
            rows,
            optimizer=named_optimizer("sgd", 0.01),
            delta=_DELTA,
            resources=Resources(check_loss=False),
            reporting=Reporting(progress=False),
            source=Seeded(seed),
        )
    try:
        drawn = [flat(use.released) - use.value[0] for use in tape.uses]
        (selection,) = tape.selections
        batches, charges = list(selection.batches), list(tape.charges)
    finally:
        tape.close()
    return RecordedRun(trained, np.array(drawn), batches, charges)


def charged_deviation(run: RecordedRun) -> float:
    """The deviation of the noise that the ledger was told, times the clip norm.

    From the declaration in the entry, not from the plan that drew.
    """
    return told_deviation(run.trained.entry)


def told_deviation(entry: Entry) -> float:
    """The same, of an entry that paid for such a run."""
    (atom,) = events.atoms(entry.declaration.cost.at(plan(1).unit))
    assert isinstance(atom, events.PoissonGaussian)
    return atom.multiplier * CLIP


def charged_probability(run: RecordedRun) -> float:
    """The sampling probability that the ledger was told."""
    (atom,) = events.atoms(run.trained.entry.declaration.cost.at(plan(1).unit))
    assert isinstance(atom, events.PoissonGaussian)
    return atom.probability


def flat(released: Any) -> Values:
    """Leaves behind one another."""
    single = isinstance(released, np.ndarray)
    parts = [released] if single else list(released)
    return np.concatenate([np.asarray(p, np.float64).reshape(-1) for p in parts])
