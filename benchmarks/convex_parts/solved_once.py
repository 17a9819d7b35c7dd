"""The solver with a memory: a minimiser is found once for all draws of its noise."""

from __future__ import annotations

from typing import Any

from demur.convex.heads import linear_base
from demur.convex.solving import solver


def solved_once(most: int = 1) -> None:
    """Heads get one of the last minimisers where objective and tau are the same."""
    known: dict[Any, Any] = {}

    def minimise(stated: Any, *, tau: float, **limits: Any) -> Any:
        key = (stated.form, stated.digest(), tau)
        if key not in known:
            while len(known) >= most:
                del known[next(iter(known))]
            known[key] = solver.minimise(stated, tau=tau, **limits)
        return known[key]

    linear_base.minimise = minimise  # type: ignore[assignment]
