"""One deletion of a service: intent, charge, noise, state, commit, in crash-safe order.

    intent   pending inserts, the request and its count, in one transaction
    spend    a charge in the ledger, durable, under the operation's name
    noise    from the key of that charge, which this process's memory alone holds
    state    applied to a copy of the model that nobody can read
    commit   the noised state, the certificate and the record's end, in one transaction
    seen     only now the copy takes the model's place, and the caller is answered

*Killed before the commit*: nothing of the copy was ever on disk or visible, and its
noise cannot be made again, by anyone, because the key died with the process. The state
on disk is the one from before. The charge stays spent and the person's count stays
raised; the request waits in the queue and is carried out as a new operation, with new
noise that is paid for anew. *Killed after the commit*: the deletion is in force, and
asking again returns its certificate. So no noise is ever drawn twice for a state that
may have been read (two noisy copies of one state could be averaged), and none is drawn
that was not paid for.

Why not complete it with the same noise? That takes the key on disk between charge and
commit, where it could be read and subtracted later. Paying twice in a rare crash is the
cheaper side.

**Before the intent** the deletion is computed on a copy with silent noise, so that one
which cannot be carried out is refused before it is paid for. An exact mode takes no
noise, and a mode that noises its output adds it last: there that copy becomes the
result, and nothing is computed twice. A mode that noises its state goes on computing
with the noise (`ogd` projects), so its copy is thrown away.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from demur import __version__
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.core.rounding import quotient_down
from demur.durable.clock import now
from demur.ledger import Payment
from demur.mechanisms.gaussian import Gaussian as GaussianMechanism
from demur.unlearning.errors import (
    CapacityExhausted,
    DuplicateStaysLive,
    NoiseGrows,
)
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.noise import NoiseNeed, moved_by
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.records.certificate import VERSION, Certificate, stamped
from demur.unlearning.records.journal import Body
from demur.unlearning.service import intents
from demur.unlearning.service.charges import DeletionCharges
from demur.unlearning.service.forecast import forecast
from demur.unlearning.service.limits import (
    ServiceLimits,
    check_noise,
    check_persons,
    strictest,
)
from demur.unlearning.service.state import ServiceState

_NOTICEABLE = 0.02  # of all answers


@dataclass(frozen=True)
class RecordToDelete:
    """A record to delete; x and y where the mode must see them."""

    pseudonym: str
    generation: int
    subject: str
    x: Array | None = None
    y: float | None = None


@dataclass(frozen=True)
class DeletionPlan:
    """The noise and the cost of deleting several records at once."""

    records: dict[str, int]  # how many, of each person
    requests: dict[str, int]  # the number of each person's request
    used: int  # of the capacity
    used_by: dict[str, int]  # what each person's part would take by itself
    mechanism: GaussianMechanism | None
    shifts: dict[str, float]

    @property
    def grid(self) -> float | None:
        """The grid of the noise; None for exact deletions."""
        return None if self.mechanism is None else float(self.mechanism.grid)


class Deletions:
    """Prices deletions and carries them out."""

    def __init__(
        self,
        state: ServiceState,
        charges: DeletionCharges,
        prices: DeletionPrices,
        limits: ServiceLimits | None = None,
    ) -> None:
        self._state, self._charges, self._prices = state, charges, prices
        self._named = limits  # by the owner, at this opening
        self._limits = ServiceLimits() if limits is None else limits
        self._warn_from = _NOTICEABLE

    @property
    def named_limits(self) -> str | None:
        """The limits that hold for a request by name, to be kept with it."""
        return None if self._named is None else self._named.to_text()

    @contextmanager
    def under(self, kept: Iterable[str | None]) -> Iterator[None]:
        """Around requests that waited: the limits that were kept with them.

        Limits that this opening names hold instead.
        """
        texts = list(kept)
        if self._named is not None or not any(texts):
            yield
            return
        before = self._limits
        self._named = self._limits = strictest(
            before if text is None else ServiceLimits.from_text(text) for text in texts
        )
        try:
            yield
        finally:
            self._named, self._limits = None, before

    def plan(self, records: Sequence[RecordToDelete]) -> DeletionPlan:
        """The noise and the cost, or `CapacityExhausted`; nothing is written."""
        state, prices, mode = self._state, self._prices, self._state.mode
        counts = dict(Counter(record.subject for record in records))
        numbers = {s: n + 1 for s, n in state.request_counts(counts).items()}
        together = max(len(records), 1)  # a publication has none
        if prices.per_person:
            priced = {s: prices.price(numbers[s], k) for s, k in counts.items()}
            shifts = {s: mode.shift_bound(k) for s, k in counts.items()}
        else:
            priced = dict.fromkeys(counts or ("",), prices.price(records=together))
            shifts = dict.fromkeys(counts or ("",), mode.shift_bound(together))
        used = max(price.used for price in priced.values())  # one noise serves all
        used_by = {
            s: price.used if prices.per_person else counts[s]
            for s, price in priced.items()
            if s in counts
        }
        if not prices.exact:
            check_persons(
                self._limits, state, numbers, used_by, shared=not prices.per_person
            )
        limit = state.terms.capacity
        if limit is not None and state.used + used > limit:
            raise CapacityExhausted(
                f"{state.used} of {limit} are used in this epoch, and {used} more"
                " are asked for: the capacity is exhausted. Retrain on the records"
                " that stay. Nothing was spent.",
                "regret" if prices.per_person else "privacy",
                retrain_required=True,
            )
        check_noise(self._limits, state, prices, used)
        if prices.exact:
            return DeletionPlan(counts, numbers, used, used_by, None, shifts)
        needs = [NoiseNeed(priced[s].multiplier, shifts[s]) for s in priced]
        try:
            mechanism = prices.mechanism(needs)
        except ValueError as error:
            raise CapacityExhausted(
                f"no noise can be drawn for this shift: {error}. Nothing was spent.",
                "numeric",
                retrain_required=True,
            ) from error
        return DeletionPlan(counts, numbers, used, used_by, mechanism, shifts)

    def grouped(
        self, records: Sequence[RecordToDelete]
    ) -> list[Sequence[RecordToDelete]]:
        """Records of one person that waited, as the requests that take least noise.

        Together, k records of request j take (j k)^2; one by one, the sum of
        (j + i)^2. Where all deletions add up, one by one as many as the capacity has
        room for.
        """
        if self._prices.composition == "deletions":  # The same noise either way.
            return [[record] for record in records]
        if self._prices.exact or not self._prices.per_person or len(records) < 2:
            return [records]
        (made,) = self._state.request_counts([records[0].subject]).values()
        together = self._prices.price(made + 1, len(records)).used
        try:
            singly = sum(
                self._prices.price(made + 1 + at).used for at in range(len(records))
            )
        except CapacityExhausted:  # so many requests are not allowed
            return [records]
        return [records] if together <= singly else [[record] for record in records]

    def carry_out(
        self, records: Sequence[RecordToDelete], deadline: str
    ) -> dict[str, Certificate]:
        """Delete these records together; their certificates, by pseudonym."""
        plan = self.plan(records)
        rehearsed = self.rehearsed(records, plan)
        copies = self._state.live_copies(record.pseudonym for record in records)
        operation = intents.new_name(self._state)
        self._state.flush(then=self.intent(operation, records, plan, deadline))
        try:
            payment = self.spend(operation, plan)
            copy = self.noised(payment, rehearsed, records, plan)
            issued = self.commit(operation, payment.entry, copy, records, plan)
        except BaseException:
            self.abandon(operation)
            raise
        if issued:
            self._state.clean_up()
        payment.commit(self._state.tip.hash)
        # A warning would say something about live records.
        if copies and not self._state.mode.secret:
            _warn_of(copies)
        self._warn_of_noise()
        return issued

    def _warn_of_noise(self) -> None:
        """Offer a retrain in time: once when noise is noticed, and as it doubles."""
        if self._prices.exact:
            return
        expected = forecast(self._state.mode, self._prices, self._state.used)
        if expected.flipped >= self._warn_from:
            self._warn_from = 2.0 * expected.flipped
            with suppress(Warning):
                warnings.warn(
                    NoiseGrows(
                        f"{expected}. Retraining on the records that stay takes the"
                        " noise out (`retrain`)."
                    ),
                    stacklevel=6,
                )

    def rehearsed(self, records: Sequence[RecordToDelete], plan: DeletionPlan) -> Mode:
        """A copy of the model after the deletion, without noise, or the refusal.

        What cannot be carried out is found out before it is paid for.
        """
        copy = self._state.mode.copy()
        silent = None if plan.mechanism is None else np.zeros(copy.size)
        try:
            self._apply(copy, records, silent, plan.grid)
        except (DemurError, ValueError) as error:
            raise CapacityExhausted(
                f"the model cannot certify this deletion: {error} Nothing was spent.",
                "numeric",
                retrain_required=True,
            ) from error
        return copy

    @staticmethod
    def _apply(
        mode: Mode,
        records: Sequence[RecordToDelete],
        noise: Array | None,
        grid: float | None,
    ) -> None:
        """The deletion of these records; of none, a new published copy."""
        if not records:
            mode.publish(noise, grid=grid)
        elif mode.needs_record:
            mode.delete(
                np.array([record.x for record in records]),
                np.array([record.y for record in records]),
                noise,
                records=len(records),
                grid=grid,
            )
        else:
            mode.delete(noise=noise, records=len(records), grid=grid)

    # -- the five steps ------------------------------------------------------------

    def intent(
        self,
        operation: str,
        records: Sequence[RecordToDelete],
        plan: DeletionPlan,
        deadline: str,
    ) -> Body:
        """The journal's row of what is about to be done, and what it will cost."""
        return intents.intent(
            self._state,
            operation,
            records=[(record.pseudonym, record.generation) for record in records],
            requests=plan.requests,
            used=plan.used,
            used_by=plan.used_by,
            deadline=deadline,
            limits=self.named_limits if records else None,
        )

    def spend(self, operation: str, plan: DeletionPlan) -> Payment:
        """Charge the operation; durable when this returns."""
        prices = self._prices
        if self._charges.budget_per_person is None:
            assert plan.mechanism is not None
            return self._charges.paid(prices.added_up(plan.mechanism), operation)
        free = prices.within_budget_per_person(self._state.id, plan.mechanism)
        return self._charges.paid(free, operation)

    def noised(
        self,
        payment: Payment,
        rehearsed: Mode,
        records: Sequence[RecordToDelete],
        plan: DeletionPlan,
    ) -> Mode:
        """A copy of the model that has forgotten; nobody sees it yet."""
        if plan.mechanism is None:
            return rehearsed
        noise = plan.mechanism.apply(np.zeros(rehearsed.size), payment.key)
        if rehearsed.publishes == "output":
            rehearsed.publish(noise, grid=plan.grid)
            return rehearsed
        copy = self._state.mode.copy()
        self._apply(copy, records, noise, plan.grid)
        return copy

    def commit(
        self,
        operation: str,
        entry: Entry,
        copy: Mode,
        records: Sequence[RecordToDelete],
        plan: DeletionPlan,
    ) -> dict[str, Certificate]:
        """Write the new state and everything about it at once; then it is seen."""
        certificates = {
            record.pseudonym: self._certificate(record, operation, entry, copy, plan)
            for record in records
        }
        bodies = [
            self._state.row(
                "delete", operation=operation, certificate=certificate.content()
            )
            for certificate in certificates.values()
        ]
        if not records:
            bodies = [
                self._state.row(
                    "publish",
                    operation=operation,
                    entry=entry.id,
                    ledger=self._charges.ledger.id,
                    time=now(),
                )
            ]
        return self._state.replace(copy, bodies, certificates)

    def abandon(self, operation: str) -> None:
        """Close an intent that came to nothing; what it cost stays spent."""
        intents.abandon(self._state, self._charges, operation)

    def _certificate(
        self,
        record: RecordToDelete,
        operation: str,
        entry: Entry,
        after: Mode,
        plan: DeletionPlan,
    ) -> Certificate:
        state, prices, terms = self._state, self._prices, self._state.terms
        sigma, epsilon, so_far = 0.0, 0.0, 0.0
        shift, number = plan.shifts[record.subject], plan.requests[record.subject]
        if plan.mechanism is not None:
            sigma = float(plan.mechanism.sigma)
            epsilon = prices.epsilon(
                quotient_down(sigma, moved_by(plan.mechanism, shift))
            )
            so_far = epsilon
            if not prices.per_person:
                so_far = prices.epsilon_of(state.used)
            elif number > 1:
                so_far = prices.epsilon_of_requests(number)
        noisy = not after.exact and not after.secret
        return Certificate(
            version=VERSION,
            service=state.id,
            record=record.pseudonym,
            generation=record.generation,
            subject=record.subject,
            requests=number,
            records=plan.records[record.subject],
            epoch=state.epoch,
            tick=state.tick,
            mode=terms.mode,
            theorem=after.theorem.id,
            statement=stamped(after.theorem.statement, terms.testing),
            scope=terms.scope,
            accounting="none" if after.exact else terms.accounting,
            not_covered=terms.not_covered(after),
            shift_bound=shift,
            sigma=sigma,
            epsilon=epsilon,
            delta=terms.delta,
            epsilon_so_far=so_far,
            epsilon_in_all=prices.epsilon_in_all(),
            delta_in_all=terms.delta_in_all,
            state_digest=after.digest() if noisy else None,
            operation=operation,
            ledger=self._charges.ledger.id,
            entry=entry.id,
            library=__version__,
            time=now(),
        )


def _warn_of(copies: int) -> None:
    """Point out live copies; the deletion stands, also where warnings are errors."""
    with suppress(Warning):
        warnings.warn(
            DuplicateStaysLive(
                f"{copies} live records have the same x and y as a record that was"
                " deleted, under other ids, and are still learned. Delete them too if"
                " they are the same person's."
            ),
            stacklevel=6,
        )
