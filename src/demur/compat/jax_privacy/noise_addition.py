"""`jax_privacy.noise_addition`: Gaussian noise on a `ClippedSum`."""

from __future__ import annotations

import logging
from typing import Any

from demur import training

_LOG = logging.getLogger(__name__)
_LONGEST_RUN = 2**31 - 1  # steps are counted in int32


def gaussian_privatizer(
    *, stddev: float, prng_key: Any = None, dtype: Any = None
) -> training.Privatizer:
    """Independent noise at every step.

    `prng_key` is not used: noise that a seed repeats hides nothing. Noise is float32,
    or as wide as the sum, whatever `dtype` says.
    """
    if prng_key is not None:
        _LOG.warning("prng_key is ignored: every step draws fresh noise")
    if dtype is not None:
        _LOG.warning("dtype is ignored: noise is float32 or wider")
    return training.gaussian_privatizer(stddev, _LONGEST_RUN)


__all__ = ["gaussian_privatizer"]
