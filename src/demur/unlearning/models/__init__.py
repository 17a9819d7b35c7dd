"""Models that can forget, each a `Mode`: ogd, ridge, logistic, seed and others.

| mode | forgets by | keeps | guarantee |
|---|---|---|---|
| `ogd` | noise in the state | no data | Gaussian, shift G / (lambda (t + t0)) |
| `ridge` | subtracting integers | sums of products | exact: epsilon 0 |
| `standardised_ridge` | the same, scaling its features | the same | exact: epsilon 0 |
| `logistic` | a certified Newton step, noise on the published copy | sums | Gaussian |
| `seed` | the seed's own formula | the last feature vectors | none |
"""

from __future__ import annotations

import inspect
from typing import Any

from demur.core import validate
from demur.unlearning.errors import CertificateExceeded
from demur.unlearning.models.base import (
    NEVER_COVERED,
    Array,
    Mode,
    Scope,
    State,
    Theorem,
)
from demur.unlearning.models.logistic import Logistic
from demur.unlearning.models.ogd import OGD
from demur.unlearning.models.ridge import Ridge
from demur.unlearning.models.seed import Seed
from demur.unlearning.models.standardised_ridge import StandardisedRidge

__all__ = [
    "MODES",
    "NEVER_COVERED",
    "OGD",
    "Array",
    "CertificateExceeded",
    "Logistic",
    "Mode",
    "Ridge",
    "Scope",
    "Seed",
    "StandardisedRidge",
    "State",
    "Theorem",
    "make_mode",
]

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (OGD, Ridge, StandardisedRidge, Logistic, Seed)
}


def make_mode(name: str, dimension: int, **config: Any) -> Mode:
    """An empty mode by name, as in `MODES`.

    >>> make_mode("ogd", 3, lam=0.5).shift_bound() < 1.0
    True
    """
    if name not in MODES:
        raise ValueError(
            f"mode must be one of {', '.join(map(repr, MODES))}; got"
            f" {validate.shorten(name)}"
        )
    try:
        return MODES[name](dimension, **config)  # type: ignore[call-arg]
    except TypeError as error:
        options = list(inspect.signature(MODES[name]).parameters)[1:]
        if unknown := config.keys() - set(options):
            raise TypeError(
                f"mode {name!r} has no option {validate.shorten(min(unknown))}: it has"
                f" {', '.join(options)}"
            ) from error
        raise TypeError(f"mode {name!r}: {error}") from error
