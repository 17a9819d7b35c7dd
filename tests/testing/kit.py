"""Mechanisms and estimators for the contracts, correct ones and broken twins."""

from dataclasses import dataclass

import numpy as np

from demur import AddOrRemoveOne, Declaration, Release
from demur.core.accounting.events import GaussianEvent
from demur.core.cost import Cost, Fixed
from demur.core.digest import digest_of_array
from demur.mechanisms import Gaussian
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

    def paid(self, value, ledger, label, source):
        bound = self.inner().digest(value)
        return ledger.paid(self, label=label, digest=bound, source=source)

    def release(self, value, *, ledger, label=LABEL, source=None):
        vector = self.check(value)
        with self.paid(vector, ledger, label, source) as payment:
            released = self.inner().apply(vector, payment.key)
            payment.released(digest_of_array(released))
        return Release(released, payment.entry)


def declared(name="a noisy mean", multiplier=2.0, unit=UNIT):
    return Declaration(name, Cost((Fixed(unit, GaussianEvent(multiplier)),)))


def subject(cls, **about):
    return of_mechanism(cls(), **about)


def rng_data(size=4):
    return np.random.default_rng(5).uniform(0.1, 0.9, size=size)
