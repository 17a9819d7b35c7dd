"""One deletion, from request to state: what is refused, and what comes after what.

    prepare   everything that can be refused is, and nothing is spent
    execute   one draw of the reservation, durable; its noise; the mode's state

Whatever fails after the draw leaves it spent: the next attempt draws anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from demur.core.bounds import real_array
from demur.unlearning.errors import (
    CalibrationRecord,
    CapacityExhausted,
    CertificateExceeded,
    RecordNeeded,
)
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.stream.odometer import PrivacyOdometer
from demur.unlearning.stream.registry import Registry, Request


@dataclass(frozen=True)
class Order:
    """A deletion that nothing speaks against.

    `observation` is the first calibration observation that it concerns, if any.
    """

    request: Request
    rows: Array | None
    targets: Array | None
    observation: int | None


@dataclass(frozen=True)
class Forgetting:
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
    ) -> Order:
        """Find what is to be deleted, or refuse.

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
        if self._promised_to_subjects():
            allowed = self.odometer.terms.requests_per_subject
            self.registry.check_requests(request, allowed, earlier)
        return Order(request, rows, targets, self._observation(request, rows, targets))

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

    def _promised_to_subjects(self) -> bool:
        """Whether a subject's own requests are what the budget was sized for."""
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
        found = self.registry.first_calibration(request, rows, targets)
        sized = self.odometer.sizing
        if found is not None and sized is not None and not sized.enforced:
            raise CalibrationRecord(
                "this record is one of those that calibrated the constants which size"
                " the noise: every later deletion would tell of it. Retrain without"
                " it, or use a mode that enforces its constants. Nothing was spent."
            )
        return found

    def execute(self, order: Order) -> None:
        """Rehearse, spend, draw, apply."""
        mode, records = self.mode, order.request.records
        rows, targets = order.rows, order.targets
        shift = self._shift(records)
        silent, grid = None, None
        if not mode.exact:
            silent = np.zeros(mode.dim)
            grid = self._grid(self.odometer.check_shift(shift, mode.dim))
        # The mode may refuse (a certificate that is used up, weights too large for the
        # grid): better now. On a copy: nobody may see this model without noise.
        with _numeric_refusals():
            _copy(mode).delete(rows, targets, silent, records=records, grid=grid)
        draw = self.odometer.spend()
        if mode.exact:
            mode.delete(rows, targets, None, records=records)
        else:
            noise = self.odometer.noise(draw, shift, mode.dim)
            grid = self._grid(noise.grid)
            mode.delete(rows, targets, noise.values, records=records, grid=grid)
        self.registry.remove(order.request)

    def _grid(self, grid: float) -> float | None:
        """The seed's weights may outgrow any grid; it promises nothing anyway."""
        return grid if self.mode.theorem.scopes else None

    def _shift(self, records: int) -> float:
        if self.mode.theorem.scopes:
            return self.mode.shift_bound(records)
        assert self.odometer.sizing is not None
        return self.odometer.sizing.shift * records

    def publish(self) -> None:
        """A new published copy, with the noise of one draw."""
        self.odometer.require_ready()
        mode, shift = self.mode, self.mode.shift_bound()
        grid = self.odometer.check_shift(shift, mode.dim)
        with _numeric_refusals():
            _copy(mode).publish(np.zeros(mode.dim), grid=grid)
        noise = self.odometer.noise(self.odometer.spend(), shift, mode.dim)
        mode.publish(noise.values, grid=noise.grid)


def statement_of(mode: Mode, odometer: PrivacyOdometer) -> str:
    """Theorem, scope, budget and fine print of a model's deletions, in plain words."""
    theorem, terms = mode.theorem, odometer.terms
    lines = [f"Mode {mode.name!r}, theorem {theorem.id!r}: {theorem.statement}"]
    if not odometer.private:
        lines.insert(0, "NOT PRIVATE: the noise came from a seeded source, for tests")
    if not theorem.scopes and not mode.exact:
        lines.append("Nothing is certified about any deletion.")
    elif mode.exact:
        lines.append("Epsilon is 0 and the number of deletions is not limited.")
    else:
        whose = (
            "the two worlds differ in one subject's records"
            if terms.scope == "subject"
            else "the two worlds differ in all deleted records"
        )
        lines.append(
            f"Scope {terms.scope!r}: {whose}. Epsilon is at most {terms.epsilon:g} at"
            f" delta {terms.delta:g} ({terms.accounting})."
        )
        if theorem.composition(terms.scope) == "nothing":
            lines.append(
                f"A subject may make {terms.requests_per_subject} request(s); records"
                " deleted without an id count as different subjects."
            )
    lines.append(f"Fine print: {'; '.join(theorem.not_covered)}.")
    if odometer.ledger is None or not odometer.ledger.durable:
        lines.append("Not recorded: the ledger is in memory only.")
    return " ".join(text if text.endswith(".") else f"{text}." for text in lines)


@contextmanager
def _numeric_refusals() -> Iterator[None]:
    """A certificate that is used up is one way to run out of capacity."""
    try:
        yield
    except CertificateExceeded as error:
        raise CapacityExhausted(
            f"{error} Nothing was spent.", reason="numeric", retrain_required=True
        ) from error


def _copy(mode: Mode) -> Mode:
    twin = mode.fresh()
    twin.restore(mode.state())
    return twin
