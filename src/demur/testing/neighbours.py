"""Contract of neighbours: outputs on two datasets show no more than the price.

For mechanisms whose author gives two neighbouring inputs and the values that can come
out. Both inputs are run many times on seeded noise. A first half of the runs ranks the
values by how much likelier they are on one input than on the other, a second half is
counted (`demur.audit`), and a lower confidence bound on epsilon that exceeds the
declared price breaks the contract. A correct mechanism breaks it with probability 1e-6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from demur.audit import Claim, audit_scores
from demur.core.entropy import NoiseKey, Seeded
from demur.core.rounding import printed_down, printed_up
from demur.testing.result import require
from demur.testing.subject import Subject

_RUNS = 8_000


def neighbours_show_no_more_than_the_price(subject: Subject) -> None:
    """Counted outputs on the author's neighbours do not refute the declared cost."""
    if subject.neighbours is None:
        return
    require(
        callable(getattr(subject.make(), "apply", None)),
        "neighbours are compared through apply(value, key), which it does not have",
    )
    values = [_value(outcome) for outcome in subject.outcomes]
    spender = subject.make()
    seeds = iter(range(1, 10**9))

    def drawn(data: Any) -> list[Hashable]:
        # Not paid for: a seeded key made by hand draws for tests alone.
        keys = (
            NoiseKey(Seeded(next(seeds)).new_key(), private=False) for _ in range(_RUNS)
        )
        return [_value(spender.apply(data, key)) for key in keys]

    first, second = (drawn(data) for data in subject.neighbours)
    unknown = set(first + second) - set(values)
    require(not unknown, f"{len(unknown)} released values are not among the outcomes")
    half = _RUNS // 2
    score = _ranked(values, first[:half], second[:half])
    claim = Claim.of(spender, unit=subject.unit, delta=subject.delta or None)
    result = audit_scores(
        [score(v) for v in first[half:]],
        [score(v) for v in second[half:]],
        claim,
        pilot=([score(v) for v in first[:half]], [score(v) for v in second[:half]]),
    )
    require(
        not result.refuted,
        f"two neighbours show epsilon {printed_down(result.lower_bound or 0.0)} at"
        f" least, and {printed_up(claim.epsilon)} is declared at {subject.unit}",
    )


CONTRACTS = (neighbours_show_no_more_than_the_price,)


def _value(released: Any) -> Hashable:
    """A released value as something that can be counted."""
    if isinstance(released, np.ndarray):
        return tuple(released.reshape(-1).tolist())
    if isinstance(released, list | tuple):
        return tuple(released)
    plain: Hashable = released.item() if isinstance(released, np.generic) else released
    return plain


def _ranked(
    values: Sequence[Hashable], first: list[Hashable], second: list[Hashable]
) -> Callable[[Hashable], float]:
    """How much likelier a value was on the first input, from runs of their own."""
    here, there = Counter(first), Counter(second)
    ratios = {v: np.log((here[v] + 0.5) / (there[v] + 0.5)) for v in values}
    return lambda value: float(ratios[value])
