"""One deletion, in the only order that survives a crash at any point.

    intent   pending inserts, the request and its count, in one transaction
    spend    a charge in the ledger, durable, under the operation's name
    noise    from the key of that charge, which this process's memory alone holds
    state    applied to a copy of the model, that nobody can read
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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from demur import __version__
from demur.core.entry import Entry
from demur.core.errors import DemurError
from demur.core.rounding import quotient_down, sum_up
from demur.durable.clock import now
from demur.ledger import Payment
from demur.mechanisms.gaussian import Gaussian as GaussianMechanism
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models.base import Array, Mode
from demur.unlearning.pricing.prices import Tariff, grid_slack
from demur.unlearning.records.certificate import VERSION, Certificate, stamped
from demur.unlearning.records.journal import Body
from demur.unlearning.service import intents as operations
from demur.unlearning.service.charges import Till
from demur.unlearning.service.state import Keeper


@dataclass(frozen=True)
class Target:
    """A record to forget; x and y where the mode must see them."""

    mark: str
    generation: int
    subject: str
    x: Array | None = None
    y: float | None = None


@dataclass(frozen=True)
class Quote:
    """What a deletion of several records at once takes."""

    records: dict[str, int]  # of each person
    requests: dict[str, int]  # the number of each person's request
    units: int
    mechanism: GaussianMechanism | None
    shifts: dict[str, float]


class Deletions:
    """Prices deletions and carries them out."""

    def __init__(self, keeper: Keeper, till: Till, tariff: Tariff) -> None:
        self._keeper, self._till, self._tariff = keeper, till, tariff

    def quote(self, targets: Sequence[Target]) -> Quote:
        """The noise and the cost, or `CapacityExhausted`; nothing is written."""
        keeper, tariff, mode = self._keeper, self._tariff, self._keeper.mode
        records = dict(Counter(target.subject for target in targets))
        numbers = {s: n + 1 for s, n in keeper.requests(records).items()}
        units = len(targets) if tariff.composition == "deletions" else 1
        limit = keeper.terms.capacity
        if limit is not None and keeper.paid + units > limit:
            quality = tariff.composition == "nothing"
            raise CapacityExhausted(
                f"{keeper.paid} of {limit} are used in this epoch, and {units} more"
                " are asked for: the capacity is exhausted. Nothing was spent. Retrain"
                " on the records that stay.",
                "regret" if quality else "privacy",
                retrain_required=True,
            )
        if tariff.exact:
            return Quote(records, numbers, units, None, dict.fromkeys(records, 0.0))
        if tariff.composition == "nothing":
            shifts = {s: mode.shift_bound(k) for s, k in records.items()}
            wanted = [
                (tariff.multiplier(tariff.part_of_request(numbers[s])), shifts[s])
                for s in records
            ]
        else:
            shift = mode.shift_bound(max(len(targets), 1))
            shifts = dict.fromkeys(records, shift)
            wanted = [(tariff.multiplier(tariff.part_of_units(units)), shift)]
        try:
            mechanism = tariff.mechanism(wanted)
        except ValueError as error:
            raise CapacityExhausted(
                f"no noise can be drawn for this shift: {error}. Nothing was spent.",
                "numeric",
                retrain_required=True,
            ) from error
        return Quote(records, numbers, units, mechanism, shifts)

    def carry_out(
        self, targets: Sequence[Target], deadline: str
    ) -> dict[str, Certificate]:
        """Forget these records together; their certificates, by mark."""
        quote = self.quote(targets)
        self._rehearse(targets, quote)
        operation = operations.new_name(self._keeper)
        self._keeper.flush(then=self.intent(operation, targets, quote, deadline))
        try:
            payment = self.spend(operation, quote)
            copy = self.noised(payment, targets, quote)
            issued = self.commit(operation, payment.entry, copy, targets, quote)
        except BaseException:
            self.abandon(operation)
            raise
        if issued:
            self._keeper.tidy()
        payment.commit(self._keeper.tip.hash)
        return issued

    def _rehearse(self, targets: Sequence[Target], quote: Quote) -> None:
        """Find out that a deletion cannot be made before it is paid for."""
        silence = None if quote.mechanism is None else np.zeros(self._keeper.terms.dim)
        try:
            self._apply(_copied(self._keeper.mode), targets, silence, quote)
        except (DemurError, ValueError) as error:
            raise CapacityExhausted(
                f"the model cannot certify this deletion: {error} Nothing was spent.",
                "numeric",
                retrain_required=True,
            ) from error

    def _apply(
        self,
        mode: Mode,
        targets: Sequence[Target],
        noise: Array | None,
        quote: Quote,
    ) -> None:
        grid = None if quote.mechanism is None else float(quote.mechanism.grid)
        if not targets:
            mode.publish(noise, grid=grid)
        elif mode.needs_record:
            rows = np.array([t.x for t in targets])
            mode.delete(
                rows,
                np.array([t.y for t in targets]),
                noise,
                records=len(targets),
                grid=grid,
            )
        else:
            mode.delete(noise=noise, records=len(targets), grid=grid)

    # -- the five steps ------------------------------------------------------------

    def intent(
        self, operation: str, targets: Sequence[Target], quote: Quote, deadline: str
    ) -> Body:
        """What is about to be done, and what it will cost."""
        return operations.intent(
            self._keeper,
            operation,
            records=[(t.mark, t.generation) for t in targets],
            requests=quote.requests,
            units=quote.units,
            deadline=deadline,
        )

    def spend(self, operation: str, quote: Quote) -> Payment:
        """Ledger the operation; durable when this returns."""
        tariff, cover = self._tariff, self._till.cover
        if cover is None:
            assert quote.mechanism is not None
            return self._till.paid(tariff.paid(quote.mechanism), operation)
        free = tariff.free(self._keeper.id, quote.mechanism)
        return self._till.paid(free, operation)

    def noised(self, payment: Payment, targets: Sequence[Target], quote: Quote) -> Mode:
        """A copy of the model that has forgotten; nobody sees it yet."""
        copy = _copied(self._keeper.mode)
        noise = None
        if quote.mechanism is not None:
            silence = np.zeros(self._keeper.terms.dim)
            noise = quote.mechanism.apply(silence, payment.key)
        self._apply(copy, targets, noise, quote)
        return copy

    def commit(
        self,
        operation: str,
        entry: Entry,
        copy: Mode,
        targets: Sequence[Target],
        quote: Quote,
    ) -> dict[str, Certificate]:
        """The new state and everything that speaks of it, at once; then it is seen."""
        gone = {
            t.mark: self._certificate(t, operation, entry, copy, quote) for t in targets
        }
        bodies = [
            self._keeper.row("delete", operation=operation, certificate=c.content())
            for c in gone.values()
        ]
        if not targets:
            bodies = [
                self._keeper.row(
                    "publish",
                    operation=operation,
                    entry=entry.id,
                    ledger=self._till.ledger.id,
                    time=now(),
                )
            ]
        return self._keeper.replace(copy, bodies, gone)

    def abandon(self, operation: str) -> None:
        """Close an intent that came to nothing; what it cost stays spent."""
        operations.abandon(self._keeper, self._till, operation)

    def _certificate(
        self,
        target: Target,
        operation: str,
        entry: Entry,
        after: Mode,
        quote: Quote,
    ) -> Certificate:
        keeper, tariff, terms = self._keeper, self._tariff, self._keeper.terms
        sigma, epsilon, so_far = 0.0, 0.0, 0.0
        shift, number = quote.shifts[target.subject], quote.requests[target.subject]
        if quote.mechanism is not None:
            sigma = float(quote.mechanism.sigma)
            moved = sum_up(shift, grid_slack(quote.mechanism))
            epsilon = tariff.epsilon(quotient_down(sigma, moved))
            so_far = epsilon
            if tariff.composition != "nothing":
                so_far = tariff.epsilon_of_part(tariff.part_of_units(keeper.paid))
            elif number > 1:
                so_far = tariff.epsilon_of_part(tariff.part_of_requests(number))
        plain = after.exact or after.publishes == "state"
        return Certificate(
            version=VERSION,
            service=keeper.id,
            record=target.mark,
            generation=target.generation,
            subject=target.subject,
            requests=number,
            records=quote.records[target.subject],
            epoch=keeper.epoch,
            tick=keeper.tick,
            mode=terms.mode,
            theorem=after.theorem.id,
            statement=stamped(after.theorem.statement, terms.testing),
            scope=terms.scope,
            accounting="none" if after.exact else terms.accounting,
            not_covered=after.theorem.not_covered,
            shift_bound=shift,
            sigma=sigma,
            epsilon=epsilon,
            delta=terms.delta,
            epsilon_so_far=so_far,
            digest_before=keeper.sealed(keeper.mode),
            digest_after=keeper.sealed(after),
            state_digest=after.digest() if plain else None,
            operation=operation,
            ledger=self._till.ledger.id,
            entry=entry.id,
            library=__version__,
            time=now(),
        )


def _copied(mode: Mode) -> Mode:
    copy = mode.fresh()
    copy.restore(mode.state())
    return copy
