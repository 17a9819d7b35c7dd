"""Examples of plans and of batch strategies, which need JAX."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from demur import training
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Filter
from demur.testing.builders import LABEL, of_plan
from demur.testing.selection import EXAMPLES, SelectionCase
from demur.testing.subject import Inputs, Subject

_SHARED = {
    "noise_multiplier": 1.5,
    "neighboring_relation": "ADD_OR_REMOVE_ONE",
    "l2_clip_norm": 1.0,
}
_STEPS = 3


def banded(cls: Any) -> list[Subject]:
    """DP-SGD: one band."""
    config = cls(iterations=_STEPS, num_bands=1, sampling_prob=0.5, **_SHARED)
    if ".compat." not in cls.__module__:
        return [of_plan(config)]
    same = "its runs are those of demur.training's own config, which is tested"
    return [
        of_plan(config, name=f"compat.jax_privacy {cls.__name__}", trusts_data=same)
    ]


def banded_by_count(cls: Any) -> list[Subject]:
    """The config of jax_privacy that counts participations instead of a rate."""
    config = cls(
        iterations=_STEPS,
        expected_participations=1.5,
        strategy=(1.0,),
        noise_multiplier=1.5,
    )
    same = "its runs are those of demur.training's own config, which is tested"
    return [
        of_plan(config, name=f"compat.jax_privacy {cls.__name__}", trusts_data=same)
    ]


def any_plan(cls: Any) -> list[Subject]:
    """Batches without amplification."""
    batches = training.BallsInBinsSampling(iterations=_STEPS, cycle_length=3)
    return [of_plan(cls(batch_selection_strategy=batches, **_SHARED))]


def made_plan(cls: Any) -> list[Subject]:
    """The plan as a mechanism: its declaration and its reservation."""
    config = training.dp_sgd(iterations=_STEPS, sampling_prob=0.5, **_SHARED)

    def make(noise_multiplier: float = 1.5) -> Any:
        return dataclasses.replace(config, noise_multiplier=noise_multiplier).make()

    def spend(spender: Any, inputs: Inputs, ledger: Any, source: Source | None) -> Any:
        del inputs
        with spender.paid(ledger, label=LABEL, source=source) as payment:
            for _ in range(spender.draws):
                payment.reservation.draw()
            _ = payment.key
            payment.released(payment.entry.id)
        return Release(None, payment.entry)

    return [
        Subject(
            name=cls.__name__,
            make=make,
            spend=spend,
            inputs={},
            unit=make().unit,
            delta=1e-5,
            filter=Filter.pure(),
            room=20.0,
            parameters={"noise_multiplier": 1.5},
            noisier={"noise_multiplier": 3.0},
        )
    ]


def cyclic(cls: Any) -> list[SelectionCase]:
    """Poisson batches: plain, cyclic, truncated."""
    variants: list[dict[str, Any]] = [
        {"sampling_prob": 0.5, "iterations": 6},
        {"sampling_prob": 0.5, "iterations": 6, "cycle_length": 3},
        {"sampling_prob": 0.5, "iterations": 6, "truncated_batch_size": 5},
    ]
    return [
        SelectionCase(f"{cls.__name__} {i}", cls(**parameters))
        for i, parameters in enumerate(variants)
    ]


def bins(cls: Any) -> list[SelectionCase]:
    """Balls in bins."""
    return [SelectionCase(cls.__name__, cls(iterations=6, cycle_length=3))]


def allocated(cls: Any) -> list[SelectionCase]:
    """Two of six steps for each example."""
    return [SelectionCase(cls.__name__, cls(total_participations=2, iterations=6))]


def fixed(cls: Any) -> list[SelectionCase]:
    """Fixed batches, with and without replacement."""
    return [
        SelectionCase(cls.__name__, cls(batch_size=7, iterations=6)),
        SelectionCase(f"{cls.__name__}, replace", cls(7, 6, replace=True)),
    ]


def separated(cls: Any) -> list[SelectionCase]:
    """Poisson batches with a minimum separation."""
    return [
        SelectionCase(cls.__name__, cls(sampling_prob=0.4, iterations=6, min_sep=3))
    ]


def users(cls: Any) -> list[SelectionCase]:
    """Batches of people, three examples each."""
    base = training.CyclicPoissonSampling(sampling_prob=0.5, iterations=6)
    owners = np.arange(EXAMPLES) // 3
    return [SelectionCase(cls.__name__, cls(base, 2, shuffle_per_user=True), owners)]
