"""Optimisers by name, for config files."""

from __future__ import annotations

import optax

from demur.core import validate


def named_optimizer(
    name: str, learning_rate: float, *, momentum: float = 0.0
) -> optax.GradientTransformation:
    """The optimiser called "sgd" (with momentum, if it is not 0) or "adam".

    >>> isinstance(named_optimizer("sgd", 0.1), optax.GradientTransformation)
    True
    """
    validate.positive(learning_rate=learning_rate)
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"momentum must be in [0, 1); got {momentum}")
    if name == "sgd":
        return optax.sgd(learning_rate, momentum=momentum or None)
    if name == "adam":
        return optax.adam(learning_rate)
    raise ValueError(f"optimizer must be 'sgd' or 'adam'; got {name!r}")
