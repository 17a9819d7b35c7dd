"""One deletion from a stream: what is refused, and the order of its steps.

    prepare   everything that can be refused is, and nothing is spent
    execute   draws of the reservation, durable; their noise; the mode's state

Whatever fails after the draw leaves it spent: the next attempt draws anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from demur.core.bounds import real_array
from demur.core.rounding import printed_up
from demur.unlearning.errors import (
    CapacityExhausted,
    CertificateExceeded,
    RecordNeeded,
    RecordUsedInCalibration,
)
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.stream.odometer import PrivacyOdometer
from demur.unlearning.stream.registry import Registry, Request


@dataclass(frozen=True)
class CheckedRequest:
    """A deletion that was checked and can be executed.

    `number` counts the requests of its subject. `observation` is the first calibration
    observation that it concerns, if any.
    """

    request: Request
    number: int
    rows: Array | None
    targets: Array | None
    observation: int | None


@dataclass(frozen=True)
class StreamDeletions:
    """The deletions of one model, paid by one odometer."""

    mode: Mode
    odometer: PrivacyOdometer
    registry: Registry
    keeps_calibration: bool

    def prepare(
        self,
        x: ArrayLike | None,
        y: ArrayLike | None,
        record_id: str | None,
        subject_id: str | None,
        unnamed: int,
        earlier: Sequence[Request] = (),
    ) -> CheckedRequest:
        """The deletion that is asked for, or a refusal.

        `unnamed` live records have no id; `earlier` requests come before this one.
        """
        self.odometer.require_ready()
        rows, targets = self.content(x, y)
        given = None if rows is None else len(rows)
        request = self.registry.request(record_id, subject_id, given, unnamed)
        if self.mode.needs_record and rows is None:
            raise RecordNeeded(
                f"mode {self.mode.name!r} must see the record to forget it: hand in x"
                " and y. Nothing was spent."
            )
        if given is not None and given != request.records:
            raise ValueError(
                f"{request.records} record(s) are to be deleted, but {given} were"
                " handed in. Nothing was spent."
            )
        if rows is not None and targets is not None:
            self.registry.check_content(request, rows, targets)
        number = 1
        if self._budget_per_subject():
            number = self.registry.request_number(request, earlier)
        self.odometer.require_ready(self.odometer.price(number, request.records).used)
        observation = self._observation(request, rows, targets)
        return CheckedRequest(request, number, rows, targets, observation)

    def content(
        self, x: ArrayLike | None, y: ArrayLike | None
    ) -> tuple[Array | None, Array | None]:
        """Rows and targets as they were learned, or None where nothing was given."""
        if x is None and y is None:
            return None, None
        if isinstance(x, str):
            raise TypeError(
                "x must be a record; an id goes by its name, as in"
                " delete(record_id=...). Nothing was spent."
            )
        if x is None or y is None:
            raise ValueError("x and y must be given together; nothing was spent")
        rows = np.atleast_2d(real_array("x", x))
        targets = np.atleast_1d(np.asarray(y))
        if len(rows) != len(targets) or not len(rows):
            raise ValueError(
                f"x has {len(rows)} rows and y {len(targets)} values; nothing was spent"
            )
        checked = [self.mode.check(*pair) for pair in zip(rows, targets, strict=True)]
        return np.array([r for r, _ in checked]), np.array([t for _, t in checked])

    def _budget_per_subject(self) -> bool:
        """Whether a subject's own requests share the budget."""
        theorem, scope = self.mode.theorem, self.odometer.scope
        if self.mode.exact or not theorem.scopes:
            return False
        return theorem.composition(scope) == "nothing"

    def _observation(
        self, request: Request, rows: Array | None, targets: Array | None
    ) -> int | None:
        """The calibration observation a request concerns; refused if it sized noise."""
        if self.keeps_calibration:
            return None
        observation = self.registry.first_calibration(request, rows, targets)
        constants = self.odometer.constants
        if observation is not None and constants and not constants.enforced:
            raise RecordUsedInCalibration(
                "this record is one of those that calibrated the constants which size"
                " the noise: the noise of every later deletion would depend on it."
                " Retrain without it, or use a mode that enforces its constants."
                " Nothing was spent."
            )
        return observation

    def rehearse(self, rows: Array, targets: Array) -> None:
        """Delete rows from one copy, one after the other: a refusal comes from there.

        Where noise stays in the state the copy has none, so a state that grows too
        large by the noise itself is not foreseen.
        """
        copy, silent, grid = self.mode.copy(), None, None
        if not self.mode.exact:
            silent = np.zeros(self.mode.size)
            grid = self.odometer.check_shift(self._shift(1), self.mode.size)
            grid = self._grid(grid)
        with _numeric_refusals():
            for row, target in zip(rows, targets, strict=True):
                copy.delete(row[None], target[None], silent, grid=grid)

    def execute(self, checked: CheckedRequest) -> None:
        """Rehearse on a copy, spend, draw, and take over the result.

        The mode may refuse (a certificate that is used up, weights too large for the
        grid), so the deletion is computed before it is paid for; on a copy, because
        nobody may see the model without its noise. Where noise does not enter that
        computation, the copy is the result (`Mode.publishes`).
        """
        mode, odometer, number = self.mode, self.odometer, checked.number
        records = checked.request.records
        rows, targets = checked.rows, checked.targets
        shift, silent, grid = self._shift(records), None, None
        if not mode.exact:
            silent = np.zeros(mode.size)
            grid = self._grid(
                odometer.check_shift(shift, mode.size, request=number, records=records)
            )
        copy = mode.copy()
        with _numeric_refusals():
            copy.delete(rows, targets, silent, records=records, grid=grid)
        draw = odometer.spend(number, records)
        if mode.exact:
            mode.restore(copy.state())
        else:
            noise = odometer.noise(draw, shift, mode.size)
            grid = self._grid(noise.grid)
            if mode.publishes == "output":
                copy.publish(noise.values, grid=grid)
                mode.restore(copy.state())
            else:
                mode.delete(rows, targets, noise.values, records=records, grid=grid)
        self.registry.remove(checked.request)

    def _grid(self, grid: float) -> float | None:
        """None for the seed: its weights may outgrow any grid."""
        return grid if self.mode.theorem.scopes else None

    def _shift(self, records: int) -> float:
        if self.mode.theorem.scopes:
            return self.mode.shift_bound(records)
        assert self.odometer.constants is not None
        return self.odometer.constants.shift * records

    def publish(self) -> None:
        """A new published copy, with the noise of one draw."""
        self.odometer.require_ready()
        mode, shift = self.mode, self.mode.shift_bound()
        grid = self.odometer.check_shift(shift, mode.size)
        with _numeric_refusals():
            mode.copy().publish(np.zeros(mode.size), grid=grid)
        noise = self.odometer.noise(self.odometer.spend(), shift, mode.size)
        mode.publish(noise.values, grid=noise.grid)


def statement_of(mode: Mode, odometer: PrivacyOdometer) -> str:
    """What a deletion from this model guarantees, and what it does not cover."""
    theorem, terms = mode.theorem, odometer.terms
    lines = [f"Mode {mode.name!r}, theorem {theorem.id!r}: {theorem.statement}"]
    if not odometer.private:
        lines.insert(0, "NOT PRIVATE: the noise came from a seeded source, for tests")
    if not theorem.scopes and not mode.exact:
        lines.append("Nothing is certified about any deletion.")
    elif mode.exact:
        lines.append("Epsilon is 0 and the number of deletions is not limited.")
    else:
        joint = terms.scope == "joint"
        deleted = "any deleted record" if joint else "one person's deleted records"
        lines.append(
            "After a deletion the model cannot be told apart from one that never saw"
            f" {deleted}, up to epsilon {printed_up(terms.epsilon)} and delta"
            f" {terms.delta:g} (scope {terms.scope!r}, accounting"
            f" {terms.accounting!r})."
        )
        if theorem.composition(terms.scope) == "nothing":
            limit = terms.requests_per_subject
            allowed = "any number of" if limit is None else f"at most {limit}"
            lines.append(
                f"A subject may make {allowed} requests; records deleted without an id"
                " count as different subjects."
            )
    lines.append(f"Not covered: {'; '.join(theorem.not_covered)}.")
    if odometer.ledger is None or not odometer.ledger.durable:
        lines.append("Not recorded: the ledger is in memory only.")
    return " ".join(text if text.endswith(".") else f"{text}." for text in lines)


@contextmanager
def _numeric_refusals() -> Iterator[None]:
    """A certificate that is used up leaves no capacity, for a numeric reason."""
    try:
        yield
    except CertificateExceeded as error:
        raise CapacityExhausted(
            f"{error} Nothing was spent.", reason="numeric", retrain_required=True
        ) from error
