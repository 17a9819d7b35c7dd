"""A private search: pay once, run a secret number of times, release the best run.

    search = PrivateSearch(candidates, repetitions=law, score=score)
    found = search.run(ledger, label="the rate", digest=digest)

1. Every candidate and the score declare what one run may cost; the search declares the
   best of a secret number of such runs (`core.cost.Searched`) and is paid for, durably,
   before anything is drawn.
2. The number of runs, the setting of each run and all of their noise follow from the
   key of that one entry. Each run is an engine's own fit, against a `RunLedger` that
   takes what was declared and nothing else.
3. The best run is kept and the others are forgotten. The entry is committed with the
   winner, and its key is wiped.

**What is secret.** The other runs and their number. While runs are under way nothing is
printed, logged or warned about (`secrecy` has the limits), and nothing is written:
neither ledger nor files change between payment and commit. There is no progress bar,
since a schedule that anybody may see must not follow the number of runs. How long it
took tells that number too, and the ledger's rows keep the times of charge and commit;
unless `result_after` holds result and commit back, the statement excludes time.

**A run that fails** has the lowest score of all, and its error is not shown. Failing is
an outcome of the run: it is as private as the same refusal is outside of a search, and
where that follows the rows it is a condition of the engine's statement, which this one
repeats. If all runs failed, that is what is released. Whatever refuses for a public
reason refuses before the payment, if it can be known there. A solver that does not
converge with its settings is known afterwards, from the rows: such runs are paid for.

**A crash** leaves the entry spent. Payments with an idempotency key and a digest find
it again: the same number of runs, the same settings, the same noise. It is never drawn
anew: whoever could repeat the draw until a search ends would see how often it did not,
which depends on the data and which nobody paid for.

**No run at all** is what some laws may draw. That outcome has the same chance whatever
the data are; it is released as such, and it costs what the search costs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from demur.core import accounting, validate
from demur.core.accounting import repetitions as laws
from demur.core.accounting.gaussian import ideal_delta
from demur.core.accounting.repetitions import Repetitions
from demur.core.adjacency import Unit
from demur.core.cost import Cost, Searched
from demur.core.declaration import (
    Declaration,
    Mechanism,
    declaration_of,
    fingerprint_of,
)
from demur.core.digest import digest_of_parts
from demur.core.entropy import NoiseKey, Source
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.core.rounding import product_up, up
from demur.ledger import Budget, Filter, Ledger, RunLedger, checked_ledger
from demur.tuning.holdout import KEY, SHARE
from demur.tuning.scores import NoisyScore
from demur.tuning.secrecy import silence, told

TIME_EXCLUDED = (
    "nobody who may see the result saw how long the search took or when it ended, on a"
    " clock or in the rows of the ledger, which keep the times of its charge and of its"
    " commit: time is not part of this statement, and it tells how often the search ran"
)
OTHER_PERSONS = (
    "no person is both trained on and scored with, and who is which follows from each"
    " person's id alone, which is no part of a record"
)
_SECRET_RUNS = "the other runs of the search, and how many there were, stay secret"
_MOST_SETTINGS = 1000


@dataclass(frozen=True)
class SearchCandidate:
    """One setting of a search: a declared mechanism, and what runs it.

    - `setting`: the public parameters, as plain data. The winner's is released.
    - `mechanism`: what one run declares to the ledger, `count` times.
    - `run(ledger)` trains against a ledger that takes exactly that, and returns the
      outcome, which the score is given.
    - `credited(outcome, entry)` is the outcome as it leaves the search, leading to the
      entry that paid. By default that entry takes the place of those that attributes
      of the outcome hold, or of its members where it is a list, tuple or dict.
    - `digest(outcome)` names the released outcome in the ledger.
    """

    setting: Mapping[str, Any]
    mechanism: Mechanism
    run: Callable[[Ledger], Any]
    count: int = 1
    credited: Callable[[Any, Entry], Any] | None = None
    digest: Callable[[Any], str] | None = None

    @property
    def name(self) -> str:
        """The setting in words."""
        return ", ".join(f"{key}={value}" for key, value in self.setting.items())


@dataclass(frozen=True)
class SearchResult:
    """What a search releases: the best run with its setting and its noisy score.

    `outcome` is "found", "empty" (no run was drawn) or "failed" (every run failed); for
    the last two there is no value. All three cost the same.
    """

    outcome: str
    value: Any
    setting: Mapping[str, Any] | None
    score: float | None
    entry: Entry

    def statement(self, *, records: int | None = None) -> str:
        """The privacy statement of the entry that paid."""
        return self.entry.statement(records=records)


@dataclass(frozen=True)
class SearchTerms:
    """How a search is entered in the ledger, and when its result appears.

    The fields are those of `PrivateSearch` and of its `run`. Where a search divides the
    persons itself, a `share` of them is held back, by a hash under `split_key`.
    """

    label: str = "a private search"
    idempotency_key: str | None = None
    result_after: float | None = None
    source: Source | None = None
    block_delta: float | None = None
    share: float = SHARE
    split_key: str = KEY


@dataclass(frozen=True)
class PrivateSearch:
    """A search over candidates, scored on persons that none of them is trained on.

    - `repetitions` is the law of the secret number of runs; each run takes one of the
      candidates, all with the same chance.
    - `score` is a declared mechanism (`correct_answers`, `small_loss`).
    - `promise` is what the whole search is meant to cost, if it was calibrated for it.
      It sets the delta at which a ledger of blocks prices it.
    - `result_after`: seconds after the payment at which the result appears, whatever
      the number of runs. A search that takes longer shows that it did.
    - `assumptions` are added to the statement.
    """

    candidates: Sequence[SearchCandidate]
    repetitions: Repetitions
    score: NoisyScore
    promise: Promise | None = None
    result_after: float | None = None
    assumptions: tuple[str, ...] = ()
    _declared: tuple[tuple[Declaration, int], ...] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", tuple(self.candidates))
        check_settings(len(self.candidates))
        if not isinstance(self.repetitions, Repetitions):
            raise TypeError(
                "repetitions must be a law such as NegativeBinomialRepetitions.of_mean("
                "10); a fixed number of runs is no private search, since every run"
                " would have to be paid for. Nothing was spent."
            )
        if not isinstance(self.score, NoisyScore):
            raise TypeError(
                "score must be a declared mechanism, as correct_answers(...) makes it:"
                " what a search selects on is part of what it tells. Nothing was spent."
            )
        if self.result_after is not None:
            validate.positive(result_after=self.result_after)
        names = [candidate.name for candidate in self.candidates]
        if len(set(names)) != len(names):
            raise ValueError(
                "candidates must differ in their settings. Nothing was spent."
            )
        declared = tuple(
            (declaration_of(c.mechanism), c.count) for c in self.candidates
        )
        object.__setattr__(self, "_declared", declared)

    def declaration(self) -> Declaration:
        """The best of a secret number of runs, as the ledger stores it."""
        score = self.score.declaration()
        parts = [declared for declared, _ in self._declared]
        runs = [(d.cost, count) for d, count in self._declared] + [(score.cost, 1)]
        longest = max(
            product_up(d.sampler_distance, count) for d, count in self._declared
        )
        # Each run is off by its samplers' distances at most; there are E[K] of them.
        off = up((longest + score.sampler_distance) * self.repetitions.mean, 2)
        kinds = list(dict.fromkeys(d.name for d in parts))
        what = kinds[0] if len(kinds) == 1 else f"{len(kinds)} mechanisms"
        lines = [line for d in parts for line in d.assumptions]
        return Declaration(
            name=f"a private search over {len(parts)} settings of {what}"[:200],
            cost=Cost((Searched(tuple(runs), self.repetitions),)),
            sampler_distance=off,
            bounds=tuple(dict.fromkeys(b for d in [*parts, score] for b in d.bounds)),
            unprotected=(
                *dict.fromkeys(line for d in parts for line in d.unprotected),
                "the settings that were searched and the law of the number of runs",
            ),
            assumptions=(
                *dict.fromkeys([*lines, *score.assumptions]),
                _SECRET_RUNS,
                OTHER_PERSONS,
                self._timing(),
                *self.assumptions,
            ),
            fingerprint=fingerprint_of(
                "private search",
                [[d.fingerprint, count, d.to_json()] for d, count in self._declared],
                [candidate.name for candidate in self.candidates],
                score.fingerprint,
                laws.law_to_json(self.repetitions),
            ),
        )

    def _timing(self) -> str:
        if self.result_after is None:
            return TIME_EXCLUDED
        return (
            f"the search was over {self.result_after:g} seconds after it was paid for,"
            " when its result appeared: one that took longer would have shown it"
        )

    def run(
        self,
        ledger: Ledger | None,
        *,
        label: str,
        digest: str | None = None,
        idempotency_key: str | None = None,
        source: Source | None = None,
        block_delta: float | None = None,
    ) -> SearchResult:
        """Pay, run in secret, and release the best run.

        `digest` is that of all the data, trained on or scored with. With an
        `idempotency_key` too, a search that was interrupted is found again, with the
        same runs. Without a ledger (None) the entry is in memory only, and the
        statement says so.
        """
        declaration = self.declaration()
        paying = self._ledger(ledger)
        if block_delta is None and self.promise is not None:
            if not paying.terms.filter.meters and self.promise.delta:
                block_delta = ideal_delta(self.promise.delta)
        with paying.paid(
            declaration,
            label=label,
            digest=digest,
            idempotency_key=idempotency_key,
            source=source,
            block_delta=block_delta,
        ) as payment:
            began = time.monotonic()
            best, stopped = self._in_secret(
                paying,
                payment.key.authorise(declaration.fingerprint, digest or "not named"),
            )
            if stopped is not None:
                raise stopped
            if self.result_after is not None:
                time.sleep(max(0.0, began + self.result_after - time.monotonic()))
            result, artefact = self._result(best, payment.entry)
            payment.released(artefact)
        return result

    def _ledger(self, ledger: Ledger | None) -> Ledger:
        known = checked_ledger(ledger)
        if known is not None:
            return known
        if self.promise is None:
            raise TypeError(
                "ledger must be given: without a promise nothing says what the search"
                " may cost. Nothing was spent."
            )
        budget = Budget(self.promise.epsilon, self.promise.delta)
        return Ledger(
            budget, unit=self.promise.unit, filter=Filter.pure(), dataset="not named"
        )

    def _in_secret(
        self, paying: Ledger, key: NoiseKey
    ) -> tuple[tuple[int, Any, float] | None, BaseException | None]:
        """The best run, or what may be raised in place of what stopped the runs.

        Nothing leaves this method by being raised: its traceback would lead to frames
        that know the number of runs.
        """
        try:
            with silence():
                return self._best(paying, key), None
        except BaseException as stop:
            return None, told(stop)

    def _best(self, paying: Ledger, key: NoiseKey) -> tuple[int, Any, float] | None:
        """The number of the winning setting, its outcome and its score.

        None: no run was drawn. A setting of -1: every run failed.
        """
        stream = key.stream("repetitions")
        count = laws.draw(self.repetitions, stream.read)
        best: tuple[int, Any, float] | None = None
        for run in range(count):
            chosen = laws.uniform(len(self.candidates), stream.read)
            outcome, score = self._one(paying, key, run, chosen)
            if best is None or score > best[2]:  # ties: the earliest
                best = (chosen if score > -math.inf else -1, outcome, score)
        # Whoever shares the entry may have wiped its key meanwhile. Runs after that
        # have failed, and the best of those before is not what was paid for.
        key.subkey("the end of the search")
        return best

    def _one(
        self, paying: Ledger, key: NoiseKey, run: int, chosen: int
    ) -> tuple[Any, float]:
        """One run, trained and scored against a ledger of its own."""
        declared = [self._declared[chosen], (self.score.declaration(), 1)]
        try:
            with RunLedger(paying.terms, key, run, declared) as own:
                outcome = self.candidates[chosen].run(own)
                score = self.score(outcome, own)
        except Exception:  # an outcome of this run, and nobody else's business
            return None, -math.inf
        return (outcome, score) if math.isfinite(score) else (None, -math.inf)

    def _result(
        self, best: tuple[int, Any, float] | None, entry: Entry
    ) -> tuple[SearchResult, str]:
        if best is None or best[0] < 0:
            outcome = "empty" if best is None else "failed"
            result = SearchResult(outcome, None, None, None, entry)
            return result, digest_of_parts("a private search", outcome)
        chosen, value, score = best
        candidate = self.candidates[chosen]
        named = "" if candidate.digest is None else candidate.digest(value)
        credited = candidate.credited or _led_to
        value = credited(value, entry)
        result = SearchResult("found", value, dict(candidate.setting), score, entry)
        artefact = digest_of_parts("a private search", candidate.name, score, named)
        return result, artefact

    def price(self, delta: float, unit: Unit | None = None) -> float:
        """What the whole search costs at `delta`, at a unit (or the promise's)."""
        if unit is None:
            if self.promise is None:
                raise TypeError(
                    "unit must be given: the search has no promise. Nothing was spent."
                )
            unit = self.promise.unit
        return accounting.price(self.declaration().cost.at(unit), delta)


def check_settings(count: int) -> None:
    """Refuse a search over no settings, or over too many."""
    if not 1 <= count <= _MOST_SETTINGS:
        raise ValueError(
            f"candidates must be 1 to {_MOST_SETTINGS} settings; got {count}. Nothing"
            " was spent."
        )


def _led_to(value: Any, entry: Entry) -> Any:
    """The value with `entry` in place of a run's, which has the price of one run.

    A run's ledger, whose name says which run it was, is taken out.
    """
    if isinstance(value, Entry):
        return entry
    if isinstance(value, RunLedger):
        return None
    if isinstance(value, tuple | list):
        members = [_led_to(each, entry) for each in value]
        make = getattr(type(value), "_make", type(value))
        return make(members)
    if isinstance(value, dict):
        return {name: _led_to(each, entry) for name, each in value.items()}
    held = {name: getattr(value, name, None) for name in _attributes(value)}
    changed = {
        name: _led_to(each, entry)
        for name, each in held.items()
        if isinstance(each, Entry | RunLedger) or is_dataclass(each)
    }
    changed = {name: each for name, each in changed.items() if each is not held[name]}
    if changed:
        value = copy.copy(value)
        for name, each in changed.items():
            object.__setattr__(value, name, each)
    return value


def _attributes(value: Any) -> list[str]:
    if isinstance(value, type):
        return []
    slots = [each.name for each in fields(value)] if is_dataclass(value) else []
    return list(dict.fromkeys([*slots, *getattr(value, "__dict__", {})]))
