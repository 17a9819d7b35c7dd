"""A privacy promise: at most epsilon at delta for one unit."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from demur.core import validate
from demur.core.adjacency import Unit

# The largest float stands for no limit: for one release in memory whose epsilon is past
# any meaning. A promise without a limit holds whatever is spent.
NO_LIMIT = sys.float_info.max


@dataclass(frozen=True)
class Promise:
    """At most `epsilon` at `delta` for two datasets that differ by one `unit`.

    An entry carries one for each budget of its ledger; an engine calibrates to one.
    """

    unit: Unit
    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon)
        validate.probability(delta=self.delta)
