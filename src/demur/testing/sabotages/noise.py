"""Sabotages of noise: its scale, its law, its independence."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from demur.testing.sabotages.patches import Category, Sabotage

_GAUSSIAN = "demur.mechanisms.gaussian"
_THREEFRY = "demur.training.noise.threefry"


def _wider_clip(right: Any) -> Any:
    def factors(self: Any, *args: Any, **options: Any) -> Any:
        norms = import_module("jax").tree.map(lambda norm: norm * 2.0**0.5, self.norms)
        return right(replace(self, norms=norms), *args, **options)

    return factors


def _divided_twice(right: Any) -> Any:
    def privatizer(strategy: Any, *, stddev: float, **options: Any) -> Any:
        bound = options.get("l2_norm_bound") or 1.0
        return right(strategy, stddev=stddev * min(bound, 0.9), **options)

    return privatizer


def _times(factor: float) -> Any:
    return lambda right: lambda *args, **options: right(*args, **options) * factor


def _constant(factor: float) -> Any:
    return lambda right: type(right)(right * factor)


def _uniform(right: Any) -> Any:
    def at(key: Any, high: Any, low: Any) -> Any:
        ndtr = import_module("jax.scipy.special").ndtr
        return (ndtr(right(key, high, low)) - 0.5) * 12.0**0.5

    return at


def _cut_tails(right: Any) -> Any:
    def rounded(count: int, scale: Any, *streams: Any) -> Any:
        most = np.floor(2.0 * np.asarray(scale)).astype(np.int64)
        return np.clip(right(count, scale, *streams), -most, most)

    return rounded


def _one_number(right: Any) -> Any:
    def rounded(count: int, scale: Any, *streams: Any) -> Any:
        return np.full(count, right(count, scale, *streams)[0])

    return rounded


def _no_block(right: Any) -> Any:
    def stream_key(self: Any, purpose: str, block: int = 0) -> bytes:
        del block
        with self._usable() as secret:
            return self._derive(secret, f"noise\x00{purpose}\x000")

    return stream_key


def _twice_epsilon(right: Any) -> Any:
    return lambda epsilon, L, dimension: right(2.0 * epsilon, L, dimension)


def _first_keys(right: Any) -> Any:
    kept: dict[int, Any] = {}

    def step_keys(stream: Any, leaves: int) -> Any:
        return kept.setdefault(leaves, right(stream, leaves))

    return step_keys


def _keys_of_the_step(right: Any) -> Any:
    """Keys that follow from the number of the call alone, in every run the same."""
    calls: list[int] = [0]

    def step_keys(stream: Any, leaves: int) -> Any:
        shape = right(stream, leaves).shape
        calls[0] += 1
        seed = np.random.default_rng(1 + (calls[0] - 1) % 3)
        return seed.integers(0, 2**32, size=shape, dtype=np.uint32)

    return step_keys


def _one_leaf(right: Any) -> Any:
    def step_keys(stream: Any, leaves: int) -> Any:
        keys = np.array(right(stream, leaves))
        keys[:] = keys[0]
        return keys

    return step_keys


def _any_step(right: Any) -> Any:
    return lambda keys, step: keys


def _one_row(right: Any) -> Any:
    def words(self: Any, row_ids: Any, first: int, count: int) -> Any:
        return right(self, np.zeros_like(row_ids), first, count)

    return words


def _same_and_same(right: Any) -> Any:
    """For two places: the step's keys, and what mixes the step's number into them."""
    return _any_step(right) if right.__name__ == "keys_at" else _first_keys(right)


SABOTAGES = (
    Sabotage(
        "the clip norm times the root of 2",
        Category.SCALE,
        "training",
        ("demur.training.clipping.clip_factors:Clip.factors",),
        _wider_clip,
    ),
    Sabotage(
        "the noise of a plan divided twice",
        Category.SCALE,
        "training",
        ("demur.training.plans.plan:privatizer",),
        _divided_twice,
    ),
    Sabotage(
        "0.8 of the Gaussian noise",
        Category.SCALE,
        "convex",
        (f"{_GAUSSIAN}:Gaussian._scale",),
        _times(0.8),
    ),
    Sabotage(
        "0.9 of the threefry noise",
        Category.SCALE,
        "training",
        (f"{_THREEFRY}:_ROOT_2",),
        _constant(0.9),
    ),
    Sabotage(
        "uniform noise in place of threefry normals",
        Category.LAW,
        "training",
        (f"{_THREEFRY}:_at",),
        _uniform,
    ),
    Sabotage(
        "Gaussian noise without its tails",
        Category.LAW,
        "convex",
        ("demur.mechanisms.sampling.rounded_gaussian:rounded_gaussian",),
        _cut_tails,
    ),
    Sabotage(
        "BPM reports drawn at twice their epsilon",
        Category.LAW,
        "cluster",
        ("demur.mechanisms.bpm.table:make_table",),
        _twice_epsilon,
    ),
    Sabotage(
        "one stream for all blocks of a key",
        Category.INDEPENDENCE,
        "training",
        ("demur.core.entropy:NoiseKey.stream_key",),
        _no_block,
    ),
    Sabotage(
        "the same threefry keys in every step",
        Category.INDEPENDENCE,
        "training",
        (f"{_THREEFRY}:step_keys", f"{_THREEFRY}:keys_at"),
        _same_and_same,
    ),
    Sabotage(
        "one threefry key for all leaves",
        Category.INDEPENDENCE,
        "training",
        (f"{_THREEFRY}:step_keys",),
        _one_leaf,
    ),
    Sabotage(
        "threefry keys that repeat after three steps and in other runs",
        Category.INDEPENDENCE,
        "training",
        (f"{_THREEFRY}:step_keys", f"{_THREEFRY}:keys_at"),
        lambda right: (
            _any_step(right)
            if right.__name__ == "keys_at"
            else _keys_of_the_step(right)
        ),
    ),
    Sabotage(
        "one number of noise for all coordinates",
        Category.INDEPENDENCE,
        "convex",
        ("demur.mechanisms.sampling.rounded_gaussian:rounded_gaussian",),
        _one_number,
    ),
    Sabotage(
        "one stream for all rows of a report",
        Category.INDEPENDENCE,
        "cluster",
        ("demur.mechanisms.sampling.row_streams:RowStreams.words",),
        _one_row,
    ),
)
