"""Replay: an engine on two neighbouring datasets, with the mechanisms' outputs fixed.

`run(data, source)` is the engine and all code around it: it takes one dataset and a
seeded source, and returns what it would publish. It is run on D while every noise
point is recorded (`core.recording`), then on D' from the same seed, where every noise
point returns its output on D. A composition of mechanisms is private because

1. mechanisms see the data through inputs that lie within their declared sensitivity,
2. nothing else does: what is published is a function of their outputs,
3. what they cost does not depend on the data,

and each of these is compared: inputs in the geometry of each declaration (`distances`),
results bit by bit (`equality`), charges field by field. The measured losses of all
mechanisms must also add up to no more than what was charged at the unit, so noise that
is too small for its price is detected as well. Selected batches must be the same for
both datasets, or the same except for the record that one of them lacks.

**What a pass shows.** For this pair, this seed and the path the run took: the three
points hold. Errors in the code around a mechanism (data used after they were clipped
into a copy, a domain read off the records, a scale that follows n) are detected with
one pair, whatever the noise.
**What it does not show.** Other pairs, and paths that other noise would take. That the
noise has the law it claims (level "noise"), that its scale is right for the event
(accounting tests), that sampling amplifies as it is priced (batches that are fixed show
nothing about how they were drawn), that two mechanisms have keys of their own (fixed
noise is never compared with itself), what the first run leaves behind for the second (a
cache filled on D is used for D' as well), timing, and files, logs or warnings that the
run does not return.

>>> from demur.core.adjacency import ReplaceOne
>>> from demur.ledger import Budget, Ledger
>>> from demur.mechanisms import Gaussian
>>> def mean(data, source):
...     bounded = np.clip(data, 0.0, 1.0)
...     noise = Gaussian.calibrated(epsilon=1.0, delta=1e-6,
...         sensitivity={ReplaceOne(): 1.0 / len(data)}, unit=ReplaceOne())
...     ledger = Ledger(Budget(1.0, 1e-6), unit=ReplaceOne())
...     mean = [bounded.mean()]
...     return noise.release(mean, ledger=ledger, source=source).value
>>> pair = ([0.2, 0.4, 0.0], [0.2, 0.4, 7.0])
>>> result = replay(mean, pair, unit=ReplaceOne(), subject="a clipped mean")
>>> result.refuted, result.uses, round(result.sensitivity_used, 3)
(False, 1, 1.0)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from demur.audit.distances import charged_loss, measure
from demur.audit.equality import copied, differences
from demur.audit.measurement import MeasuredLoss, Measurement, Pair
from demur.audit.result import AuditResult, Level
from demur.audit.step_distances import FLOAT32
from demur.core import recording, validate
from demur.core.adjacency import Erasure, Unit
from demur.core.entropy import Seeded, Source
from demur.core.errors import DatasetsInWrongOrder, NotCovered, NotPriced
from demur.core.recording import Charge, MechanismUse, Step, Tape

D = TypeVar("D")
_MOST_NAMED = 5


class Breach(StrEnum):
    """Kinds of violation in a replay."""

    INPUT = "input"
    NOISE = "noise"
    USES = "uses"
    CHARGE = "charge"
    PRICE = "price"
    BATCHES = "batches"
    RESULT = "result"
    ERROR = "error"


@dataclass(frozen=True)
class Violation:
    """One thing that differs, or differs too much, without any value of either run."""

    breach: Breach
    message: str


@dataclass(frozen=True)
class ReplayResult:
    """The result of replaying one pair.

    `uses` and `charges` count the noise points and charges of the first run.
    `sensitivity_used` is the largest share of a declared sensitivity that the pair used
    up. Near 1 the pair tested the declaration well, near 0 hardly at all.
    """

    subject: str
    unit: Unit
    uses: int
    charges: int
    sensitivity_used: float
    violations: tuple[Violation, ...]

    @property
    def refuted(self) -> bool:
        """Whether the two datasets can be told apart other than through the noise."""
        return bool(self.violations)

    def breaches(self) -> set[Breach]:
        """The kinds of violation that were found."""
        return {violation.breach for violation in self.violations}

    def audit_result(self) -> AuditResult:
        """The result as an `AuditResult`; a replay gives no bound on epsilon."""
        evidence = (
            f"{self.uses} noise points and {self.charges} charges agree on both"
            " datasets."
        )
        if self.violations:
            message = self.violations[0].message
            evidence = f"{message[:1].upper()}{message[1:]}."
            more = len(self.violations) - 1
            evidence += f" And {more} more." if more else ""
        return AuditResult(
            subject=self.subject,
            level=Level.REPLAY,
            method="replay of one pair",
            unit=self.unit.describe(),
            claimed=None,
            delta=0.0,
            lower_bound=None,
            runs=2,
            alpha=0.0,
            refuted=self.refuted,
            evidence=evidence,
            factor=1.0 / self.sensitivity_used if self.sensitivity_used else None,
        )


def replay(
    run: Callable[[D, Source], Any],
    pair: tuple[D, D],
    *,
    unit: Unit,
    subject: str,
    random_state: int = 0,
) -> ReplayResult:
    """Run on both datasets of `pair` with the noise fixed, and compare the rest.

    `run(data, source)` must take all its randomness from `source`, make its own ledger
    (or none), and return everything it publishes: arrays, numbers, text, containers,
    fitted objects. The datasets are neighbours at `unit`; for add-or-remove in
    training, the larger one comes first and the extra record is its last. At `Erasure`
    the record's own deletion comes before other people's. A jitted step must be made
    inside `run`, because a program that was traced before is not recorded. An error on
    both datasets is raised; on one alone it is a violation.
    """
    validate.text(subject=subject)
    if recording.active() is not None:
        raise RuntimeError("replay cannot be called inside another replay")
    first = Tape()
    second = Tape(first)
    try:
        return _replayed(run, pair, unit, subject, random_state, first, second)
    finally:
        # Programs traced meanwhile may hold the tapes, so they are emptied.
        first.close()
        second.close()


def _replayed(
    run: Callable[[D, Source], Any],
    pair: tuple[D, D],
    unit: Unit,
    subject: str,
    seed: int,
    first: Tape,
    second: Tape,
) -> ReplayResult:
    published, failed = _recorded(run, pair[0], seed, first)
    # The second run may write into what the first one returned.
    before = copied(published)
    uncopied = set(differences(before, published))
    other, failed_too = _recorded(run, pair[1], seed, second)
    if failed is not None and failed_too is not None:
        raise failed  # nothing is published on either dataset
    measurements = measure(_matched(first, second), unit)
    violations = list(_compared(first, second, measurements, unit))
    alone = failed or failed_too
    if alone is not None:
        # An error on one dataset alone reveals which one it was.
        message = f"only one dataset ends with an error ({type(alone).__name__})"
        violations.append(Violation(Breach.ERROR, message))
    else:
        places = itertools.islice(differences(published, other), _MOST_NAMED)
        violations += [
            Violation(Breach.RESULT, f"what is published differs at {place}")
            for place in places
        ]
        if set(differences(before, published)) - uncopied:
            message = "the first run's result is overwritten by the second run"
            violations.append(Violation(Breach.RESULT, message))
    return ReplayResult(
        subject=subject,
        unit=unit,
        uses=len(first.uses),
        charges=len(first.charges),
        sensitivity_used=max((each.share for each in measurements), default=0.0),
        violations=tuple(violations),
    )


def _recorded(
    run: Callable[[D, Source], Any], data: D, seed: int, tape: Tape
) -> tuple[Any, Exception | None]:
    """What a run returns while `tape` records it, or its error."""
    with recording.watching(tape):
        try:
            return run(data, Seeded(seed)), None
        except DatasetsInWrongOrder:
            raise  # about the pair, not about the engine
        except Exception as error:
            return None, error


def _compared(
    first: Tape, second: Tape, measurements: list[Measurement], unit: Unit
) -> Iterator[Violation]:
    yield from _charges(first.charges, second.charges)
    yield from _uses(first.uses, second.uses)
    yield from _batches(first, second)
    for measured in measurements:
        if not measured.within:
            how = "is not comparable or not a number"
            if math.isfinite(measured.distance):
                how = "moves further than declared"
            if measured.counted:
                how = "is too large"
            elif measured.allowed == 0.0:
                how = f"moves, and nothing is declared at {unit}"
            yield Violation(Breach.INPUT, f"{measured.what} {how}")
    yield from _price(first, measurements, unit)


def _matched(first: Tape, second: Tape) -> list[Pair]:
    """Uses at the same position of both runs, if of the same mechanism."""
    return [
        (before, after)
        for before, after in zip(first.uses, second.uses, strict=False)
        if before.name == after.name and type(before.declared) is type(after.declared)
    ]


def _charges(first: list[Charge], second: list[Charge]) -> Iterator[Violation]:
    if len(first) != len(second):
        yield Violation(Breach.CHARGE, "the number of charges differs")
    for i, (before, after) in enumerate(zip(first, second, strict=False)):
        for place in differences(before, after, f"charge {i}"):
            yield Violation(Breach.CHARGE, f"what is charged differs at {place}")


def _uses(first: list[MechanismUse], second: list[MechanismUse]) -> Iterator[Violation]:
    if len(first) != len(second):
        yield Violation(Breach.USES, "the number of noise points differs")
    for i, (before, after) in enumerate(zip(first, second, strict=False)):
        if before.name != after.name:
            yield Violation(Breach.USES, f"noise point {i} is another mechanism")
            continue
        for place in differences(before.declared, after.declared, before.name):
            yield Violation(
                Breach.NOISE, f"what the noise is declared for differs: {place}"
            )


def _batches(first: Tape, second: Tape) -> Iterator[Violation]:
    if len(first.selections) != len(second.selections):
        yield Violation(Breach.BATCHES, "the number of runs with batches differs")
    for before, after in zip(first.selections, second.selections, strict=False):
        # Batches are gathered ahead of the steps: how many is a matter of timing.
        expected = [batch[batch < after.size] for batch in before.batches]
        same = zip(expected, after.batches, strict=False)
        if not all(np.array_equal(a, b) for a, b in same):
            yield Violation(
                Breach.BATCHES, "which records are selected depends on the others"
            )


def _price(
    first: Tape, measurements: list[Measurement], unit: Unit
) -> Iterator[Violation]:
    """Whether the measured losses together exceed what was charged at the unit."""
    paid = MeasuredLoss()
    for charge in (charge for charge in first.charges if charge.paid):
        cost = charge.declaration.cost
        # A deletion pays for no privacy, nor most mechanisms for a deletion.
        if not isinstance(unit, Erasure) and cost.only_erasure():
            continue
        if isinstance(unit, Erasure) and not cost.covers_erasure():
            continue
        try:
            loss = charged_loss(cost.at(unit))
        except (NotCovered, NotPriced):
            yield Violation(
                Breach.PRICE, f"{charge.declaration.name!r} has no cost at {unit}"
            )
            return
        if loss is None:
            return  # an (epsilon, delta) pair is no sum of mu and epsilon
        paid += MeasuredLoss(
            loss.squared_mu * charge.count, loss.epsilon * charge.count
        )
    total = sum((measured.loss for measured in measurements), MeasuredLoss())
    float32 = any(isinstance(use.declared, Step) for use in first.uses)
    room = 1.0 + (4.0 * FLOAT32 if float32 else 1e-8)
    if total.squared_mu > paid.squared_mu * room or total.epsilon > paid.epsilon * room:
        yield Violation(
            Breach.PRICE, "the mechanisms lose more privacy than was charged"
        )
