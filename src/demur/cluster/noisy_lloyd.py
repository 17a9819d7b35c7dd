"""Lloyd's algorithm on a trusted server, with Gaussian noise on sums and counts.

The server sees the points (central differential privacy): a baseline that shows what
the promise of local reports costs. T steps from public centres; each assigns points of
the cube to the nearest centre and releases, for every cluster, the sum of x - c over
its points and their number times w, with c the middle of the cube and w = sqrt(d) / 2,
with Gaussian noise; the next centres are the ratios, inside the cube.

**Sensitivity.** Given the centres a record adds (x - c, w) to the block of one cluster,
a vector of norm at most sqrt(d/4 + w^2) = sqrt(d/2), since |x - c| <= sqrt(d)/2 in the
cube. So presence (`AddOrRemoveOne`) moves the blocks by at most sqrt(d/2). A record
that is replaced leaves one block and enters another: sqrt(2 d/2) = sqrt(d); if it stays
in its block the count does not move and the sum moves by |x - x'| <= sqrt(d). A move by
r, however small, may change the cluster, so that balls cost what a replacement costs.

**Composition.** The centres of a step are a function of earlier releases and public
numbers, so T steps of sensitivity D and deviation sigma are adaptive Gaussian steps of
mu = D / sigma, together exactly sqrt(T) mu-GDP (Dong, Roth, Su 2022, Corollary 3.3).

**Rounding.** Points are rounded to multiples of 2^-30 first, each by itself, and stay
in the cube, so the bounds above are those of the rounded points. Sums of at most 2^22
such numbers are exact in float64: no rounding error depends on the data. Which centre
is nearest is computed row by row: in neighbouring datasets all other rows get the same
cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.labelling import NearestCenter
from demur.core import validate
from demur.core.accounting.events import GaussianEvent
from demur.core.accounting.gaussian import gaussian_mu, ideal_delta
from demur.core.adjacency import AddOrRemoveOne, ReplaceOne, Unit
from demur.core.cost import Cost, Fixed, Term
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration, fingerprint_of
from demur.core.digest import digest_of_array
from demur.core.entropy import Source
from demur.core.promise import Promise
from demur.core.release import Release
from demur.core.rounding import down, product_up
from demur.ledger import Ledger, ledger_for
from demur.mechanisms.bpm.mechanism import root_up
from demur.mechanisms.gaussian import Gaussian
from demur.mechanisms.reports import ASSUMPTIONS, BOUNDS

Array = NDArray[np.float64]

MOST_POINTS = 2**22
MOST_STEPS = 10_000
_GRID = 2.0**-30
_SLACK = 1e-6
_RESERVE = 1.0 + 1e-9
_FEWEST = 1.0  # points: the noise of a smaller count would move a centre anywhere


@dataclass(frozen=True)
class NoisyLloyd:
    """A public plan: clusters, dimension, steps, and the noise of a step."""

    clusters: int
    dimension: int
    steps: int
    step: Gaussian

    @property
    def count_scale(self) -> float:
        """w, by which counts are multiplied: sqrt(d) / 2."""
        return 0.5 * math.sqrt(self.dimension)

    def declaration(self) -> Declaration:
        """All T steps as one charge: mu grows by sqrt(T), samplers' distances by T."""
        of_step = self.step.declaration()
        root = math.sqrt(self.steps) * (1.0 + 2.0**-50)
        terms: list[Term] = []
        for term in of_step.cost.terms:
            assert isinstance(term, Fixed) and isinstance(term.event, GaussianEvent)
            event = GaussianEvent(down(term.event.multiplier / root))
            terms.append(Fixed(term.unit, event))
        return replace(
            of_step,
            cost=Cost(tuple(terms)),
            sampler_distance=of_step.sampler_distance * self.steps * (1.0 + 2.0**-50),
            fingerprint=self.fingerprint,
            draws=self.steps,
        )

    @cached_property
    def fingerprint(self) -> str:
        """What a key must have been paid for to draw the steps of this plan."""
        numbers = float(self.clusters), float(self.dimension), float(self.steps)
        return fingerprint_of("noisy lloyd", self.step.fingerprint, *numbers)


def plan_lloyd(
    promise: Promise, *, clusters: int, dimension: int, steps: int
) -> NoisyLloyd:
    """The least noise (to a millionth) with which T steps meet the promise."""
    validate.count(clusters=clusters, dimension=dimension, steps=steps)
    if steps > MOST_STEPS:
        raise ValueError(
            f"steps must be at most {MOST_STEPS}; got {steps}. Every step adds noise to"
            " all, and 5 to 10 are usual. Nothing was spent."
        )
    whole = root_up(dimension)
    table: dict[Unit | str, float | PiecewiseLinear] = {
        ReplaceOne(): product_up(whole, _RESERVE),
        AddOrRemoveOne(): product_up(whole, _RESERVE * math.sqrt(0.5)),
    }
    mu = gaussian_mu(promise.epsilon, ideal_delta(promise.delta))
    sigma = whole * math.sqrt(steps) / mu
    for _ in range(8):
        step = Gaussian(
            sigma,
            table,
            clusters * (dimension + 1),
            f"k-means on the server, {clusters} clusters, {steps} steps",
            BOUNDS,
            (),
            ASSUMPTIONS,
        )
        plan = NoisyLloyd(clusters, dimension, steps, step)
        event = plan.declaration().cost.at(promise.unit)
        assert isinstance(event, GaussianEvent)
        ratio = 1.0 / event.multiplier / mu
        if 1.0 - _SLACK < ratio <= 1.0 - 1e-13:
            step.check_bound(plan.count_scale * MOST_POINTS)
            return plan
        # A unit may cost less than a replacement, and the grid of a step a little.
        sigma *= ratio * (1.0 + 1e-12)
    raise ValueError(f"no noise found for {promise}. Nothing was spent.")


def rounded_points(points: Array) -> Array:
    """Points of the cube as multiples of 2^-30, each rounded by itself."""
    return np.rint(points / _GRID) * _GRID


def block_sums(points: Array, centers: Array, count_scale: float) -> Array:
    """For each cluster the sum of x - 1/2 over its rounded points, and w times n_j."""
    labels = NearestCenter(centers)(points)
    blocks = np.zeros((len(centers), points.shape[1] + 1))
    for j in range(len(centers)):
        mine = points[labels == j]
        blocks[j, :-1] = (mine - 0.5).sum(axis=0)
        blocks[j, -1] = count_scale * len(mine)
    return blocks


def run_lloyd(
    plan: NoisyLloyd,
    points: Array,
    start: Array,
    *,
    ledger: Ledger | None = None,
    label: str = "k-means on the server",
    source: Source | None = None,
) -> Release[Array]:
    """The last centres, and noisy counts in a last column; the entry paid for all."""
    digest = digest_of_array(points)
    with ledger_for(ledger, plan.declaration()).paid(
        plan, label=label, digest=digest, source=source
    ) as payment:
        rounded = rounded_points(points)
        centers, counts = start.copy(), np.zeros(plan.clusters)
        for index in range(plan.steps):
            sums = block_sums(rounded, centers, plan.count_scale).ravel()
            # The points were paid for, and each step is computed from them.
            key = payment.key.part(plan.step.digest(sums))
            noisy = plan.step.apply(sums, key, draw=index, paid_as=plan.fingerprint)
            blocks = noisy.reshape(plan.clusters, -1)
            counts = blocks[:, -1] / plan.count_scale
            means = 0.5 + blocks[:, :-1] / np.maximum(counts, _FEWEST)[:, None]
            # A cluster that noise may have made stays where it was.
            seen = counts > _FEWEST
            centers = np.where(seen[:, None], np.clip(means, 0.0, 1.0), centers)
        found = np.column_stack([centers, counts])
        payment.released(digest_of_array(found))
    return Release(found, payment.entry)
