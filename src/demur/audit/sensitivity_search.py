"""Sensitivities by adversarial search: the worst pair of datasets that can be found.

A replay (`demur.audit.replays`) compares what goes into each mechanism on two datasets
with what was declared. It is only as sharp as its pair. `search_sensitivity` looks for
a bad one: it replays the pairs that a theorem calls extreme, then moves the worst of
them about at random and keeps what is worse, through the engine's own path.

A pair that moves further than declared, or loses more privacy than was charged, refutes
the declaration. If none does, the largest share of the declared sensitivity that was
used up is the search's power: a declaration too small by the factor 1 / share would
have been refuted. A search that does not reach `least` raises `NoPower`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from demur.audit.errors import NoPower
from demur.audit.replays import ReplayResult, replay
from demur.audit.result import AuditResult, Level
from demur.core import validate
from demur.core.adjacency import Unit
from demur.core.entropy import Source
from demur.core.rounding import printed_down

P = TypeVar("P")
D = TypeVar("D")


def search_sensitivity(
    run: Callable[[D, Source], Any],
    starts: Sequence[P],
    pair: Callable[[P], tuple[D, D]],
    *,
    unit: Unit,
    subject: str,
    moved: Callable[[P, np.random.Generator], P] | None = None,
    rounds: int = 0,
    least: float = 0.0,
    random_state: int = 0,
) -> AuditResult:
    """Whether a pair of datasets was found that moves further than declared.

    `pair(start)` makes two neighbours at `unit` from each of `starts`; `moved(start,
    rng)` is another start near it, tried `rounds` times. `run` is that of `replay`.
    """
    validate.non_negative(rounds=rounds)
    if not starts:
        raise ValueError("starts must not be empty: the search begins somewhere")
    rng = np.random.default_rng(random_state)

    def replayed(start: P) -> ReplayResult:
        return replay(
            run, pair(start), unit=unit, subject=subject, random_state=random_state
        )

    tried = [(replayed(start), start) for start in starts]
    worst, best = max(tried, key=_badness)
    count = len(tried)
    for _ in range(rounds if moved is not None else 0):
        if worst.refuted:
            break
        assert moved is not None
        other = moved(best, rng)
        result = replayed(other)
        count += 1
        if _badness((result, other)) > _badness((worst, best)):
            worst, best = result, other
    share = worst.sensitivity_used
    if not worst.refuted and share < least:
        raise NoPower(
            f"the worst pair that was found uses {share:.3f} of the declared"
            f" sensitivity, less than {least:g}: a declaration that is too small by"
            " less than that would not be noticed"
        )
    evidence = (
        worst.audit_result().evidence
        if worst.refuted
        else f"The worst of {count} pairs uses {printed_down(share)} of what is"
        " declared."
    )
    return AuditResult(
        subject=subject,
        level=Level.SENSITIVITY,
        method="search for the worst pair",
        unit=unit.describe(),
        claimed=None,
        delta=0.0,
        lower_bound=None,
        runs=count,
        alpha=0.0,
        refuted=worst.refuted,
        evidence=evidence,
        factor=1.0 / share if share > 0.0 else float("inf"),
    )


def _badness(tried: tuple[ReplayResult, Any]) -> tuple[bool, float]:
    return tried[0].refuted, tried[0].sensitivity_used
