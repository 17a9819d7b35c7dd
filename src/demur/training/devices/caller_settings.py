"""Settings of JAX that hold in one thread, for the other threads of a run.

`with jax.enable_x64(True):` and `with jax.default_device(...):` hold in the thread that
enters them. A run compiles and gathers batches in threads of its own, which would see
other dtypes and another device than the thread that called `fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax

_CONFIG: Any = jax.config  # its attributes are not typed


def callers_settings() -> Callable[[], AbstractContextManager[None]]:
    """A context for another thread, with the settings of this one."""
    wide, device = _CONFIG.jax_enable_x64, _CONFIG.jax_default_device

    @contextmanager
    def settings() -> Iterator[None]:
        with jax.enable_x64(wide), jax.default_device(device):
            yield

    return settings


def compiles() -> bool:
    """Whether `jit` compiles in this thread: not under `jax.disable_jit()`."""
    return not _CONFIG.jax_disable_jit
