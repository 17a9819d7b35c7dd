"""The state of a run's noise, and the functions that advance it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from demur.training.clipping.types import PyTree


class NoiseState(NamedTuple):
    """The step to come and the memory of the noise. Secret."""

    step: Any
    memory: Any


Init = Callable[[PyTree], NoiseState]
# The sum's tree and its bound, the state and a key -> the noisy tree, the next state.
Add = Callable[[PyTree, float, NoiseState, Any], tuple[PyTree, NoiseState]]
