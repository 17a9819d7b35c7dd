"""What searches cost, and how far the bound is from the worst finite mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import norm
from tuning_parts.draws import Array, line

from demur.core import accounting
from demur.core.accounting.events import BestOf, GaussianEvent, Pure
from demur.core.accounting.gaussian import gaussian_mu
from demur.tuning import (
    BinomialRepetitions,
    NegativeBinomialRepetitions,
    PoissonRepetitions,
    search_costs,
)

DELTA = 1e-6


def costs() -> None:
    for cost in search_costs([0.1, 0.5, 1.0, 3.0, 8.0], [3, 10, 30, 100], DELTA):
        line(
            part="costs",
            run=cost.run,
            settings=cost.settings,
            search=round(cost.search, 3),
            multiple=round(cost.multiple, 2),
            composed=round(cost.composed / cost.run, 2),
        )


def means() -> None:
    """Laws of one mean, then more runs for each setting: price, and what is left out.

    "never" is the chance that none of three good settings among ten is run, and then
    that one given setting is not.
    """
    for eta in (0.0, 1.0, 4.0, 8.0, math.inf):
        law: Any = PoissonRepetitions(20.0)
        if math.isfinite(eta):
            law = NegativeBinomialRepetitions.of_mean(20.0, eta)
        (cost,) = search_costs([0.8], [10], DELTA, lambda _, law=law: law)
        never = float(law_sum(law, np.array([0.7]))[1])
        facts = {"multiple": round(cost.multiple, 3), "never": round(never, 4)}
        line(part="means", law=type(law).__name__, eta=str(eta), **facts)
    for each in (2.0, 3.0, 4.0, 6.0):
        for m in (4, 8, 16, 30):
            law = NegativeBinomialRepetitions.of_mean(each * m, 4.0)
            (cost,) = search_costs([0.8], [m], DELTA, lambda _, law=law: law)
            never = float(law_sum(law, np.array([1.0 - 1.0 / m]))[1])
            facts = {"multiple": round(cost.multiple, 3), "never": round(never, 3)}
            line(part="means", runs_for_each=each, settings=m, **facts)


LAWS: dict[str, Any] = {
    "logarithmic, mean 10": NegativeBinomialRepetitions.of_mean(10.0, 0.0),
    "geometric, mean 4": NegativeBinomialRepetitions.of_mean(4.0, 1.0),
    "geometric, mean 10": NegativeBinomialRepetitions.of_mean(10.0, 1.0),
    "geometric, mean 10, at most 10": NegativeBinomialRepetitions.of_mean(
        10.0, 1.0, limit=10
    ),
    "eta 4, mean 20": NegativeBinomialRepetitions.of_mean(20.0, 4.0),
    "Poisson, mean 10": PoissonRepetitions(10.0),
    "binomial, 20 times 1/2": BinomialRepetitions(20, 0.5),
}


def gap() -> None:
    """The bound, and the largest epsilon of finite runs of the same profile."""
    rng = np.random.default_rng(0)
    for name, law in LAWS.items():
        for epsilon in (0.1, 1.0, 3.0):
            bound = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
            share = round(worst_pure(law, epsilon, rng) / bound, 3)
            facts = {"run": epsilon, "bound": round(bound, 4), "share": share}
            line(part="gap", law=name, profile="pure", **facts)
        for epsilon in (0.5, 1.0, 3.0):
            mu = gaussian_mu(epsilon, DELTA)
            bound = accounting.price(BestOf((GaussianEvent(1.0 / mu),), law), DELTA)
            share = round(worst_gaussian(law, mu) / bound, 3)
            facts = {"run": epsilon, "bound": round(bound, 4), "share": share}
            line(part="gap", law=name, profile="Gaussian", **facts)


def worst_gaussian(law: Any, mu: float, cells: int = 40) -> float:
    """A Gaussian cut to cells; which cells win, and where the order begins, is tried.

    The order rises or falls along the line and is turned, so that one end of the line
    comes last: a release may be unlikely to be beaten in one world only.
    """
    cuts = np.linspace(-6.5, 6.5 + mu, cells - 1)
    worlds = [cell_masses(cuts - shift) for shift in (0.0, mu)]
    worst = 0.0
    for turn in range(cells):
        for step in (1, -1):
            order = np.roll(np.arange(cells)[::step], turn)
            released = [winner(law.weights, masses[order]) for masses in worlds]
            worst = max(worst, epsilon_at(*released, DELTA))
    return worst


def cell_masses(cuts: Array) -> Array:
    """Of a standard Gaussian, each from the nearer tail."""
    left = np.diff(np.concatenate([[0.0], norm.cdf(cuts), [1.0]]))
    right = -np.diff(np.concatenate([[1.0], norm.sf(cuts), [0.0]]))
    return np.where(np.concatenate([[-np.inf], cuts]) < 0.0, left, right)


def winner(weights: Array, masses: Array) -> Array:
    """The law of what is released, worst first: nothing, then each outcome.

    F^k - G^k = q (F^(k-1) + F^(k-2) G + ... + G^(k-1)), without cancellation.
    """
    upto = np.minimum(np.cumsum(masses), 1.0)
    below = np.concatenate([[0.0], upto[:-1]])
    sums, powers = np.zeros_like(masses), np.ones_like(masses)
    released = np.zeros_like(masses)
    for weight in weights[1:]:
        sums, powers = upto * sums + powers, powers * below
        released += weight * masses * sums
    return np.concatenate([[weights[0]], released])


def epsilon_at(one: Array, two: Array, delta: float) -> float:
    """The smallest epsilon at delta, for both directions."""
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2.0
        ratio = math.exp(middle)
        sticks = [np.maximum(p - ratio * q, 0.0).sum() for p, q in pairs(one, two)]
        low, high = (middle, high) if max(sticks) > delta else (low, middle)
    return low


def pairs(one: Array, two: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (one, two), (two, one)


def worst_pure(law: Any, epsilon: float, rng: Any, climbs: int = 75) -> float:
    """Random ordered finite pairs whose ratios are within e^epsilon, then climbing."""

    def loss(p: Array, signs: Array) -> float:
        # q = p e^(+-epsilon) scaled to sum to one, ratios clipped to the range.
        q = p * np.exp(epsilon * signs)
        for _ in range(60):
            q = np.clip(q / q.sum(), p * math.exp(-epsilon), p * math.exp(epsilon))
        if abs(q.sum() - 1.0) > 1e-12:
            return 0.0
        logs = [np.log(np.diff(law_sum(law, np.cumsum(each)))) for each in (p, q)]
        return float(np.abs(logs[0] - logs[1]).max())

    best = 0.0
    for _ in range(climbs):
        k = int(rng.integers(2, 6))
        p = rng.dirichlet(np.full(k, rng.choice([0.3, 1.0, 3.0])))
        p = np.maximum(p, 1e-9) / np.maximum(p, 1e-9).sum()
        signs = rng.choice([-1.0, 1.0], k)
        value = loss(p, signs)
        for _ in range(60):
            other = p * np.exp(0.3 * rng.normal(size=k))
            other /= other.sum()
            found = loss(other, signs)
            if found > value:
                p, value = other, found
        best = max(best, value)
    return best


def law_sum(law: Any, x: Array) -> Array:
    """f at 0 and at x, the generating function of the number of runs."""
    at = np.concatenate([[0.0], np.minimum(x, 1.0)])
    return np.polynomial.polynomial.polyval(at, law.weights)
