"""Replay: an engine on two neighbouring datasets, the mechanisms' outputs frozen.

`run(data, source)` is the engine and all glue around it: it takes one dataset and a
seeded source, and returns what it would publish. It is run on D while every noise
point is recorded (`core.recording`), then on D' from the same seed, where every noise
point gives the output it gave on D. A composition of mechanisms is private because

1. mechanisms see the data through inputs that lie within their declared sensitivity,
2. nothing else does: what is published is a function of their outputs,
3. what they cost does not depend on the data,

and each of these is compared: inputs in the geometry of each promise (`distances`),
results bit by bit (`equality`), charges word for word. The measured losses of all
mechanisms must also add up to no more than what was charged at the unit, so noise that
is too small for its price is seen as well. Selected batches are the same in both
worlds, or the same but for the record that one of them lacks.

**What a pass shows.** For this pair, this seed and the path the run took: the three
points hold. Errors of glue (data used after they were clipped into a copy, a domain
read off the records, a scale that follows n) show up with one pair, whatever the noise.
**What it does not.** Other pairs, and paths that other noise would take. That the noise
has the law it claims (level "noise"), that its scale is right for the event (accounting
tests), that sampling amplifies as it is priced (a run whose batches are frozen says
nothing about how they were drawn), that two mechanisms have keys of their own (frozen
noise is never compared with itself), what the first run leaves behind for the second (a
cache filled on D serves D' as well), timing, and files, logs or warnings that the run
does not return.

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
>>> found = replay(mean, pair, unit=ReplaceOne(), subject="a clipped mean")
>>> found.refuted, found.passages, round(found.closest, 3)
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
from demur.audit.measured import Loss, Measured, Pair
from demur.audit.result import AuditResult, Level
from demur.audit.step_distances import FLOAT32
from demur.core import recording, validate
from demur.core.adjacency import Erasure, Unit
from demur.core.entropy import Seeded, Source
from demur.core.errors import NotCovered, NotPriced
from demur.core.recording import Charge, Passage, Step, Tape

D = TypeVar("D")
_MOST_NAMED = 5


class Breach(StrEnum):
    """What two worlds may not differ in."""

    INPUT = "input"
    NOISE = "noise"
    PASSAGES = "passages"
    CHARGE = "charge"
    PRICE = "price"
    BATCHES = "batches"
    RESULT = "result"
    ERROR = "error"


@dataclass(frozen=True)
class Violation:
    """One thing that differs, or differs too much; no value of either world in it."""

    breach: Breach
    said: str


@dataclass(frozen=True)
class ReplayResult:
    """What the replay of one pair found.

    `closest` is the largest share of a declared sensitivity that the pair used up: near
    1 the pair was a hard one, near 0 it could not have shown much.
    """

    subject: str
    unit: Unit
    passages: int
    charges: int
    closest: float
    violations: tuple[Violation, ...]

    @property
    def refuted(self) -> bool:
        """Whether the two worlds can be told apart other than through the noise."""
        return bool(self.violations)

    def breaches(self) -> set[Breach]:
        """The kinds of violation that were found."""
        return {violation.breach for violation in self.violations}

    def audit_result(self) -> AuditResult:
        """The result in the form of every audit; a replay bounds no epsilon."""
        said = (
            f"{self.passages} noise points and {self.charges} charges of two worlds"
            " agree."
        )
        if self.violations:
            said = (
                f"{self.violations[0].said[:1].upper()}{self.violations[0].said[1:]}."
            )
            more = len(self.violations) - 1
            said += f" And {more} more." if more else ""
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
            evidence=said,
        )


def replay(
    run: Callable[[D, Source], Any],
    pair: tuple[D, D],
    *,
    unit: Unit,
    subject: str,
    seed: int = 0,
) -> ReplayResult:
    """Run on both datasets of `pair`, noise frozen, and compare all but the noise.

    `run(data, source)` must take all its chance from `source`, make its own ledger (or
    none), and return everything it publishes: arrays, numbers, text, containers, fitted
    objects. The datasets are neighbours at `unit`; for add-or-remove in training, the
    larger one comes first and the extra record is its last. At `Erasure` the record's
    own deletion comes before other people's. A step of one's own that is jitted must be
    made inside `run`: a program that was traced before does not know of the replay.
    An error in both worlds is raised; in one alone, it is a way to tell them apart.
    """
    validate.text(subject=subject)
    if recording.active() is not None:
        raise RuntimeError("a replay cannot be made inside a replay")
    first = Tape()
    second = Tape(first)
    try:
        return _replayed(run, pair, unit, subject, seed, first, second)
    finally:
        # A program that was traced meanwhile may keep them: nothing stays in them.
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
    published, failed = _world(run, pair[0], seed, first)
    # The second run may write into what the first one returned.
    kept = copied(published)
    unlike = set(differences(kept, published))
    other, failed_too = _world(run, pair[1], seed, second)
    if failed is not None and failed_too is not None:
        raise failed  # nothing is published in either world: no run to speak of
    measured = measure(_matched(first, second), unit)
    found = list(_compared(first, second, measured, unit))
    alone = failed or failed_too
    if alone is not None:
        # A refusal in one world alone is an answer too.
        said = f"one world alone ends with an error ({type(alone).__name__})"
        found.append(Violation(Breach.ERROR, said))
    else:
        places = itertools.islice(differences(published, other), _MOST_NAMED)
        found += [
            Violation(Breach.RESULT, f"what is published differs at {place}")
            for place in places
        ]
        if set(differences(kept, published)) - unlike:
            said = "what one world publishes is overwritten by the run of the other"
            found.append(Violation(Breach.RESULT, said))
    return ReplayResult(
        subject=subject,
        unit=unit,
        passages=len(first.passages),
        charges=len(first.charges),
        closest=max((one.share for one in measured), default=0.0),
        violations=tuple(found),
    )


def _world(
    run: Callable[[D, Source], Any], data: D, seed: int, tape: Tape
) -> tuple[Any, Exception | None]:
    """What a run returns under the eyes of `tape`, or how it ends."""
    with recording.watching(tape):
        try:
            return run(data, Seeded(seed)), None
        except recording.WrongOrder:
            raise  # about the pair, not about the engine
        except Exception as error:
            return None, error


def _compared(
    first: Tape, second: Tape, measured: list[Measured], unit: Unit
) -> Iterator[Violation]:
    yield from _charges(first.charges, second.charges)
    yield from _passages(first.passages, second.passages)
    yield from _batches(first, second)
    for one in measured:
        if not one.within:
            how = "is not comparable or not a number"
            if math.isfinite(one.distance):
                how = "is beyond what is declared"
            if one.counted:
                how = "is too large"
            elif one.allowed == 0.0:
                how = f"moves, and nothing is declared at {unit}"
            yield Violation(Breach.INPUT, f"{one.what} {how}")
    yield from _price(first, measured, unit)


def _matched(first: Tape, second: Tape) -> list[Pair]:
    """Passages at the same place of both runs, where they are the same mechanism's."""
    return [
        (one, two)
        for one, two in zip(first.passages, second.passages, strict=False)
        if one.name == two.name and type(one.declared) is type(two.declared)
    ]


def _charges(one: list[Charge], two: list[Charge]) -> Iterator[Violation]:
    if len(one) != len(two):
        yield Violation(Breach.CHARGE, "the number of charges differs")
    for i, (before, after) in enumerate(zip(one, two, strict=False)):
        for place in differences(before, after, f"charge {i}"):
            yield Violation(Breach.CHARGE, f"what is charged differs at {place}")


def _passages(one: list[Passage], two: list[Passage]) -> Iterator[Violation]:
    if len(one) != len(two):
        yield Violation(Breach.PASSAGES, "the number of noise points passed differs")
    for i, (before, after) in enumerate(zip(one, two, strict=False)):
        if before.name != after.name:
            yield Violation(Breach.PASSAGES, f"noise point {i} is another mechanism")
            continue
        for place in differences(before.declared, after.declared, before.name):
            yield Violation(
                Breach.NOISE, f"what the noise is made for differs: {place}"
            )


def _batches(first: Tape, second: Tape) -> Iterator[Violation]:
    if len(first.selections) != len(second.selections):
        yield Violation(Breach.BATCHES, "the number of runs with batches differs")
    for one, two in zip(first.selections, second.selections, strict=False):
        # Batches are gathered ahead of the steps: how many is a matter of timing.
        expected = [batch[batch < two.size] for batch in one.batches]
        same = zip(expected, two.batches, strict=False)
        if not all(np.array_equal(a, b) for a, b in same):
            yield Violation(
                Breach.BATCHES, "which records are selected depends on the others"
            )


def _price(first: Tape, measured: list[Measured], unit: Unit) -> Iterator[Violation]:
    """The measured losses, composed, against all that was charged at the unit."""
    paid = Loss()
    for charge in (one for one in first.charges if one.paid):
        cost = charge.declaration.cost
        # A deletion pays for no privacy, nor most mechanisms for a deletion.
        if not isinstance(unit, Erasure) and cost.only_erasure():
            continue
        if isinstance(unit, Erasure) and not cost.speaks_of_erasure():
            continue
        try:
            loss = charged_loss(cost.at(unit))
        except (NotCovered, NotPriced):
            yield Violation(
                Breach.PRICE, f"{charge.declaration.name!r} says nothing about {unit}"
            )
            return
        if loss is None:
            return  # A whole (epsilon, delta): it does not say how it is made up.
        paid += Loss(loss.squared_mu * charge.count, loss.epsilon * charge.count)
    total = sum((one.loss for one in measured), Loss())
    float32 = any(isinstance(one.declared, Step) for one in first.passages)
    room = 1.0 + (4.0 * FLOAT32 if float32 else 1e-8)
    if total.squared_mu > paid.squared_mu * room or total.epsilon > paid.epsilon * room:
        yield Violation(Breach.PRICE, "the mechanisms lose more than was charged for")
