"""What searches cost, and how far the bound is from the worst finite mechanism."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from tuning_parts.draws import Array, line

from demur.core import accounting
from demur.core.accounting.events import BestOf, Pure
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
    """More runs for each setting: what they cost, and how seldom one is left out."""
    for each in (2.0, 3.0, 4.0, 6.0):
        for m in (4, 8, 16, 30):
            law = NegativeBinomialRepetitions.of_mean(each * m, 4.0)
            (cost,) = search_costs([0.8], [m], DELTA, lambda _, law=law: law)
            never = float(law_sum(law, np.array([1.0 - 1.0 / m]))[1])
            facts = {"multiple": round(cost.multiple, 3), "never": round(never, 3)}
            line(part="means", runs_for_each=each, settings=m, **facts)


def gap(seconds: float = 20.0) -> None:
    """The pure bound, and the largest epsilon of finite runs that a search found."""
    rng = np.random.default_rng(0)
    laws: dict[str, Any] = {
        "logarithmic, mean 10": NegativeBinomialRepetitions.of_mean(10.0, 0.0),
        "geometric, mean 4": NegativeBinomialRepetitions.of_mean(4.0, 1.0),
        "geometric, mean 10": NegativeBinomialRepetitions.of_mean(10.0, 1.0),
        "geometric, mean 10, at most 10": NegativeBinomialRepetitions.of_mean(
            10.0, 1.0, limit=10
        ),
        "Poisson, mean 10": PoissonRepetitions(10.0),
        "binomial, 20 times 1/2": BinomialRepetitions(20, 0.5),
    }
    for name, law in laws.items():
        for epsilon in (0.1, 1.0, 3.0):
            bound = accounting.price(BestOf((Pure(epsilon),), law), 0.0)
            worst = worst_pure(law, epsilon, rng, seconds / 18)
            share = round(worst / bound, 3)
            line(part="gap", law=name, run=epsilon, bound=round(bound, 4), share=share)


def worst_pure(law: Any, epsilon: float, rng: Any, seconds: float) -> float:
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

    best, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
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
