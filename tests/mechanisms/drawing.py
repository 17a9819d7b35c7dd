"""What another process draws; it imports no more than it needs for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demur import AddOrRemoveOne
from demur.core.entropy import NoiseKey, Seeded
from demur.mechanisms import BPM, Gaussian
from tests.keys import os_key


def gaussian_noise() -> Any:
    """64 draws with a key of its own."""
    mechanism = Gaussian(1.0, {AddOrRemoveOne(): 1.0}, 64)
    return mechanism.apply(np.zeros(64), os_key(mechanism))


def bpm_reports() -> Any:
    """The reports of 64 rows with a key that is the same everywhere."""
    points = np.linspace(0, 1, 128).reshape(64, 2)
    return BPM(4.0, 2.2335, 2).apply(points, NoiseKey.free(Seeded(9)))


def into(queue: Any, draw: Callable[[], Any]) -> None:
    """What a process runs."""
    queue.put(draw())


def here_and_there(context: Any, number: int, draw: Callable[[], Any]) -> set[bytes]:
    """What so many other processes draw, and this one."""
    queue = context.Queue()
    workers = [context.Process(target=into, args=(queue, draw)) for _ in range(number)]
    for worker in workers:
        worker.start()
    draws = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    return {each.tobytes() for each in [*draws, draw()]}
