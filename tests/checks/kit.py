"""Mechanisms and estimators for the contracts, honest ones and sabotaged ones."""

from dataclasses import dataclass

import numpy as np

from demur.core.accounting.events import Gaussian as GaussianEvent
from demur.core.adjacency import AddOrRemoveOne
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.entropy import OsEntropy
from demur.core.release import Release
from demur.mechanisms.gaussian import Gaussian, digest_of
from demur.testing.builders import LABEL, of_mechanism

UNIT = AddOrRemoveOne()


@dataclass(frozen=True)
class Honest:
    """A mechanism of one's own: a Gaussian by another name."""

    sigma: float = 2.0
    dimension: int = 4

    def inner(self):
        return Gaussian(self.sigma, {UNIT: 1.0}, dimension=self.dimension)

    def declaration(self):
        return self.inner().declaration()

    def event(self, unit):
        return self.declaration().cost.at(unit)

    def check(self, value):
        return self.inner().check(value)

    def charge(self, value, ledger, label, source):
        bound = digest_of(value)
        entry = ledger.charge(
            self, label=label, digest=bound, source=source or OsEntropy()
        )
        return entry, ledger._key(entry, bound)

    def release(self, value, ledger, *, label=LABEL, source=None):
        vector = self.check(value)
        entry, key = self.charge(vector, ledger, label, source)
        released = self.inner().apply(vector, key)
        ledger._commit(entry, digest_of(released))
        return Release(released, entry)


def declared(name="a noisy mean", multiplier=2.0, unit=UNIT):
    return Declaration(name, Cost((Fixed(unit, GaussianEvent(multiplier)),)))


def subject(cls, **about):
    return of_mechanism(cls(), **about)


def rng_data(size=4):
    return np.random.default_rng(5).uniform(0.1, 0.9, size=size)
