"""Settings from public records alone, for every method alike.

A fifth of a training set is taken as public and is left out of the private rest. A
setting is chosen there: fitted on 70% of the public records, scored on the others, mean
of three draws. Noise falls as one over the number of records, so a public fit gets the
budget at which its noise is that of the private one: mu (and a pure epsilon) times
n / n_public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from demur.core.accounting.gaussian import gaussian_epsilon, gaussian_mu

Array = np.ndarray
Data = tuple[Array, Array, Array, Array]

PUBLIC, FITTED, DRAWS = 0.2, 0.7, 3


@dataclass(frozen=True)
class PublicSplit:
    """The private data (its test set is the whole one), and the public records."""

    private: Data
    public: Data

    @classmethod
    def of(cls, data: Data, seed: int = 5) -> PublicSplit:
        """The records of each class in equal shares, drawn once."""
        X, y, Xt, yt = data
        rng = np.random.default_rng(seed)
        part = np.empty(len(y))
        for c in np.unique(y):
            index = np.flatnonzero(y == c)
            part[index] = (rng.permutation(len(index)) + 0.5) / len(index)
        fitted, public = part < PUBLIC * FITTED, part < PUBLIC
        scored = public & ~fitted
        return cls(
            (X[~public], y[~public], Xt, yt),
            (X[fitted], y[fitted], X[scored], y[scored]),
        )

    @property
    def ratio(self) -> float:
        """How many private records there are for each one that is fitted here."""
        return len(self.private[1]) / len(self.public[1])

    def epsilon(self, epsilon: float, delta: float) -> float:
        """The epsilon whose noise here is that of `epsilon` on the private records."""
        return gaussian_epsilon(gaussian_mu(epsilon, delta) * self.ratio, delta)

    def best(
        self,
        make: Callable[..., Any],
        settings: Iterable[dict[str, Any]],
        epsilon: float,
        delta: float,
    ) -> dict[str, Any]:
        """The setting of `make(epsilon=, ...)` with the best mean score here."""
        X, y, Xs, ys = self.public
        here = self.epsilon(epsilon, delta)
        found = [
            (
                np.mean(
                    [made.fit(X, y).score(Xs, ys) for made in _some(make, here, s)]
                ),
                s,
            )
            for s in settings
        ]
        return max(found, key=lambda one: one[0])[1]


def _some(
    make: Callable[..., Any], epsilon: float, setting: dict[str, Any]
) -> Sequence[Any]:
    return [make(epsilon=epsilon, **setting) for _ in range(DRAWS)]


def shown(setting: dict[str, Any]) -> str:
    """A setting in a table's cell."""
    names = {"learning_rate": "rate"}
    return ", ".join(f"{names.get(k, k)} {v:g}" for k, v in setting.items())
