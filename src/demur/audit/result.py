"""Audit results: a claim is refuted, or not refuted at this sample size.

A lower bound above the claim refutes it, with a false-alarm rate of at most `alpha`. A
lower bound below the claim does not prove the claim: it says that this test, with this
many runs, did not refute it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from demur.core import validate
from demur.core.rounding import printed_down, printed_up

_MAY_BE_INFINITE = ("claimed", "lower_bound", "factor")
_ADDED = {"factor", "p_value"}  # notes of earlier versions do not have them


class Level(StrEnum):
    """What the audit has access to, from inside the code to outside of it."""

    REPLAY = "replay"
    NOISE = "noise"
    BLACK_BOX = "black box"
    CANARIES = "canaries"
    DELETION = "deletion"
    SENSITIVITY = "sensitivity"
    ACCOUNTING = "accounting"


@dataclass(frozen=True)
class AuditResult:
    """One audit of one claim.

    `claimed` and `lower_bound` are epsilons at `delta`; None where the level does not
    bound epsilon. `alpha` is the designed false-alarm rate, 0 where nothing is random.
    `factor` is the power where no bound on epsilon states it (see `power`); `p_value`
    is that of the test, where it has one.
    """

    subject: str
    level: Level
    method: str
    unit: str
    claimed: float | None
    delta: float
    lower_bound: float | None
    runs: int
    alpha: float
    refuted: bool
    evidence: str
    factor: float | None = None
    p_value: float | None = None

    def __post_init__(self) -> None:
        validate.text(
            subject=self.subject,
            method=self.method,
            unit=self.unit,
            evidence=self.evidence,
        )
        object.__setattr__(self, "level", validate.choice(Level, level=self.level))
        for name in ("claimed", "lower_bound"):
            value = getattr(self, name)
            if value is None:
                continue
            if value != math.inf:
                validate.non_negative(**{name: value})
            object.__setattr__(self, name, float(value))
        for name in ("factor", "p_value"):
            value = getattr(self, name)
            if value is not None and value != math.inf:
                validate.non_negative(**{name: value})
                object.__setattr__(self, name, float(value))
        validate.probability(delta=self.delta, alpha=self.alpha)
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "alpha", float(self.alpha))
        validate.count(runs=self.runs)
        object.__setattr__(self, "runs", int(self.runs))
        if not isinstance(self.refuted, bool):
            raise TypeError(f"refuted must be True or False; got {self.refuted!r}")
        if self._beyond_claim and not self.refuted:
            raise ValueError(
                "refuted must be True: the lower bound"
                f" {self.lower_bound} is above the claim {self.claimed}"
            )

    @classmethod
    def of_draws(
        cls,
        subject: str,
        method: str,
        *,
        runs: int,
        alpha: float,
        refuted: bool,
        evidence: str,
        unit: str = "the noise itself",
        factor: float | None = None,
        p_value: float | None = None,
    ) -> AuditResult:
        """A result at the level of raw noise, which gives no bound on epsilon."""
        return cls(
            subject=subject,
            level=Level.NOISE,
            method=method,
            unit=unit,
            claimed=None,
            delta=0.0,
            lower_bound=None,
            runs=runs,
            alpha=alpha,
            refuted=refuted,
            evidence=evidence,
            factor=factor,
            p_value=p_value,
        )

    @property
    def power(self) -> float | None:
        """The smallest error that this audit would have refuted, as a factor.

        Noise smaller, or a sensitivity or price understated, by this factor would have
        been refuted at the same size and rate of false alarms. Infinity: nothing would
        have been, the audit has no power here. None: it does not test a scale.

        From a lower bound on epsilon it is claimed / lower bound: the same outputs
        refute every claim below that bound.
        """
        if self.factor is not None:
            return self.factor
        if self.claimed is None or self.lower_bound is None:
            return None
        if self.lower_bound == 0.0 or math.isinf(self.claimed):
            return math.inf
        return self.claimed / self.lower_bound

    @property
    def _beyond_claim(self) -> bool:
        return (
            self.claimed is not None
            and self.lower_bound is not None
            and self.lower_bound > self.claimed
        )

    def statement(self) -> str:
        """The verdict in a sentence or two, with its size and false-alarm rate.

        >>> AuditResult("a mean", "black box", "GDP mu test", "ReplaceOne()", 1.0,
        ...     1e-6, 0.4, 1000, 1e-6, False, "The two sides are close.").statement()
        'not refuted at n = 1000: a mean at ReplaceOne() claims epsilon 1 at delta
        1e-06; the GDP mu test shows at least 0.4. The two sides are close. Designed
        false-alarm rate 1e-06. It would refute an error by a factor 2.5.'
        """
        verdict = "refuted" if self.refuted else f"not refuted at n = {self.runs}"
        text = f"{verdict}: {self.subject} at {self.unit}"
        at_delta = f" at delta {printed_up(self.delta)}" if self.delta > 0 else ""
        if self.claimed is not None:
            text += f" claims epsilon {printed_up(self.claimed)}{at_delta}"
        text += f"; the {self.method}"
        if self.lower_bound is None:
            text += " refutes it." if self.refuted else " does not refute it."
        else:
            text += f" shows at least {printed_down(self.lower_bound)}."
        text += f" {self.evidence}"
        if self.refuted:
            text += f" n = {self.runs}."
        if self.alpha > 0:
            text += f" Designed false-alarm rate {self.alpha:g}."
        power = self.power
        if not self.refuted and power is not None:
            text += (
                " It has no power at this size."
                if math.isinf(power)
                else f" It would refute an error by a factor {printed_up(power)}."
            )
        return text

    def __str__(self) -> str:
        return self.statement()

    def to_json(self) -> dict[str, Any]:
        """The result as plain data; an infinite epsilon is the word "inf"."""
        data = asdict(self)
        data["level"] = str(self.level)
        for name in _MAY_BE_INFINITE:
            if data[name] == math.inf:
                data[name] = "inf"
        return data

    @classmethod
    def from_json(cls, data: object) -> AuditResult:
        """The result that `to_json` wrote; anything else is a ValueError."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) | _ADDED != names:
            raise ValueError(f"not an audit result: {validate.shorten(data)}")
        given = dict(data)
        for name in _MAY_BE_INFINITE:
            if given.get(name) == "inf":
                given[name] = math.inf
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"not an audit result: {error}") from error
