"""The ledger of one run inside of a payment: a search pays, its runs do not.

A private search is one entry, which pays for a secret number of runs of mechanisms that
it declared. Each run is an engine's own fit, and an engine draws no noise without a
ledger. It is given one of these: in memory, for this run alone, and

- it takes what the search declared for the run, to the last parameter, each once and
  in order; anything else is `NotPaidFor`, so that no run costs more than was paid;
- its keys follow from the key of the search's entry and from the number of the run, so
  that a search repeated after a crash repeats its runs and nothing is drawn anew;
- its units are those of the paying ledger, without a limit: the limit was the search's.

Its entries must not leave the search: each alone states the price of one run. The entry
that a result leads to is the search's.
"""

from __future__ import annotations

from collections.abc import Sequence

from demur.core.declaration import Declaration, Mechanism, declaration_of
from demur.core.entropy import DerivedEntropy, NoiseKey, Source
from demur.core.entry import Entry
from demur.core.errors import NotPaidFor
from demur.core.promise import NO_LIMIT
from demur.ledger.ledger import Ledger
from demur.ledger.rules.budget import Budget
from demur.ledger.rules.terms import Terms

Paid = tuple[Declaration, int]  # what a run may charge, and for how many draws


class RunLedger(Ledger):
    """The ledger of one run of a paid search."""

    _secret = True  # how many runs there are is not for anybody

    def __init__(
        self, terms: Terms, key: NoiseKey, run: int, declared: Sequence[Paid]
    ) -> None:
        """For run `run` of the search whose authorised key is `key`.

        `terms` are those of the ledger that paid; `declared` is what the run may
        charge.
        """
        limits = {unit: Budget(NO_LIMIT, b.delta) for unit, b in terms.budgets}
        super().__init__(
            limits, filter=terms.filter, dataset=terms.dataset, maps=terms.maps
        )
        self._run_source = DerivedEntropy(key, f"run {run}")
        self._left = list(declared)

    def _charge(
        self,
        mechanism: Mechanism,
        count: int,
        label: str,
        digest: str | None,
        idempotency_key: str | None,
        source: Source,
        block_delta: float | None,
    ) -> Entry:
        declaration = declaration_of(mechanism)
        if not self._left or (declaration, count) != self._left[0]:
            raise NotPaidFor(
                f"{declaration.name!r} is not what the search paid for at this point of"
                " a run: the runs of a search charge what it declared, in order, and"
                " nothing else. Nothing was drawn."
            )
        del self._left[0]
        return super()._charge(
            mechanism, count, label, digest, None, self._run_source, block_delta
        )
