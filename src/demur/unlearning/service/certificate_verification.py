"""Verification of one certificate, by its holder or an auditor.

    demur unlearn verify CERTIFICATE JOURNAL

The certificate holds the hash of its own row, so a journal that was rewritten later
does not match it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from demur.core.accounting.events import GaussianEvent
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.core.rounding import quotient_up
from demur.ledger import Ledger
from demur.unlearning.errors import CapacityExhausted, ServiceMismatch
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher
from demur.unlearning.service import recovery
from demur.unlearning.service.charges import PER_PERSON, entry_name, ledgers_beside
from demur.unlearning.service.retraining import WITHOUT_NOISE
from demur.unlearning.service.verification import (
    ServiceVerification,
    certificate_problems,
    read_history,
    state_problems,
)

_LOOSE = 1.0 + 1e-9


def verify_certificate(
    certificate: Certificate,
    url: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
) -> ServiceVerification:
    """Check a certificate against the journal at `url` and the ledger that was charged.

    The journal's chain is walked from its genesis, the deletion's row compared word
    for word, the ledger verified, its entry found, the epsilon recomputed, and the
    stored state compared with the journal. Nothing is written, and no right to write is
    needed.
    """
    database = tables.ServiceStore(os.fspath(url), read_only=True)
    with ExitStack() as resources:
        resources.callback(database.close)
        if not database.exists():
            raise ServiceMismatch("there is no journal of a deletion service here")
        terms = recovery.stored_terms(database)
        prices = DeletionPrices(terms)
        folder = database.keys_folder
        seals = None if folder is None else Seals(folder, 0)
        with database.read() as connection:
            history = read_history(connection)
            wrong, unknown = state_problems(
                connection, terms, history, seals, StateCipher(None)
            )
        problems = history.problems + certificate_problems(certificate, history)
        problems += _term_problems(certificate, terms) + wrong
        if history.generations.get(certificate.record, 0) > certificate.generation:
            unknown.append(
                "the record was learned again after this deletion, as a new generation"
            )
        if certificate.theorem not in WITHOUT_NOISE:
            charged = _charged_ledger(
                certificate, database.path, os.fspath(url), ledger, resources
            )
            if charged is None:
                problems.append(
                    "the ledger that was charged is not beside the journal: give its"
                    " address (--ledger)"
                )
            else:
                problems += [f"the ledger: {p}" for p in charged.verify().problems]
                problems += _number_problems(certificate, terms, prices, charged)
        return ServiceVerification(
            history.tip.sequence, history.tip, tuple(problems), tuple(unknown)
        )


def _charged_ledger(
    certificate: Certificate,
    path: Path | None,
    url: str,
    ledger: str | os.PathLike[str] | None,
    resources: ExitStack,
) -> Ledger | None:
    """The ledger that the certificate names, if it is found."""
    addresses = [os.fspath(ledger)] if ledger is not None else []
    if ledger is None and path is not None:
        addresses = [str(p) for p in ledgers_beside(path)]
    elif ledger is None:
        addresses = [url]
    for address in addresses:
        charged = resources.enter_context(Ledger.open(address, read_only=True))
        if charged.id == certificate.ledger:
            return charged
    return None


def _term_problems(certificate: Certificate, terms: ServiceTerms) -> list[str]:
    """Whether it is about this service's mode, budget and theorem."""
    problems = [
        f"its {name} is not that of the service"
        for name in ("mode", "scope", "delta")
        if getattr(certificate, name) != getattr(terms, name)
    ]
    if terms.testing:
        problems.append("the service is for tests: its noise has a seed, NOT PRIVATE")
    if certificate.theorem in WITHOUT_NOISE:
        if (certificate.entry, certificate.epsilon) != ("", 0.0):
            problems.append("a model that never saw the record costs nothing")
    elif certificate.theorem != terms.model().theorem.id:
        problems.append("its theorem is not that of the service's mode")
    if certificate.epsilon_so_far > terms.epsilon * _LOOSE:
        problems.append("its epsilon so far exceeds the budget of the service")
    return problems


def _number_problems(
    certificate: Certificate,
    terms: ServiceTerms,
    prices: DeletionPrices,
    ledger: Ledger,
) -> list[str]:
    """Cost and shift, computed again; numbers that no service has are wrong, too."""
    try:
        problems = _cost_problems(certificate, prices, ledger)
        return problems + _shift_problems(certificate, terms)
    except (ValueError, ArithmeticError, CapacityExhausted):
        return ["its numbers are none that this service can give"]


def _shift_problems(certificate: Certificate, terms: ServiceTerms) -> list[str]:
    """The bound is the theorem's at that tick; grids of earlier deletions may add."""
    model = terms.model()
    state = model.state()
    if "ticks" in state:
        model.restore(state | {"ticks": np.array(certificate.tick)})
    least = model.shift_bound(certificate.records)
    if certificate.shift_bound * _LOOSE < least:
        return ["its shift bound is below that of the theorem at its tick"]
    return []


def _cost_problems(
    certificate: Certificate, prices: DeletionPrices, ledger: Ledger
) -> list[str]:
    """The entry is there, and the noise is as large as the epsilon says."""
    service = certificate.service
    entry = ledger.find(entry_name(service, certificate.operation))
    if entry is None or entry.id != certificate.entry:
        return ["the cost of this deletion is not in the ledger"]
    if prices.exact:
        claimed = (certificate.epsilon, certificate.shift_bound, certificate.sigma)
        return [] if claimed == (0.0, 0.0, 0.0) else ["an exact deletion costs nothing"]
    if certificate.epsilon > prices.budget.epsilon * _LOOSE:
        return ["its epsilon exceeds the budget of the service"]
    if not certificate.shift_bound > 0.0 or not certificate.sigma > 0.0:
        return ["it claims no shift or no noise"]
    needed = prices.epsilon(certificate.sigma / certificate.shift_bound)
    problems = []
    if certificate.epsilon * _LOOSE < needed:
        problems.append("its noise is too small for the epsilon that it claims")
    payer: Entry | None = entry
    if prices.per_person:
        payer = ledger.find(entry_name(service, PER_PERSON))
    event = None if payer is None else payer.declaration.cost.at(Erasure())
    if not isinstance(event, GaussianEvent):
        problems.append("the ledger has no entry that pays for this deletion")
    elif prices.per_person:
        limit = prices.epsilon(event.multiplier)
        if certificate.epsilon > limit * _LOOSE:
            problems.append("the ledger's entry pays for less than it claims")
        needed = prices.price(certificate.requests).multiplier
        least = needed * certificate.shift_bound
        if certificate.sigma * _LOOSE < least:
            problems.append(
                f"its noise is too small for request {certificate.requests} of one"
                " person: together they would exceed the budget"
            )
    elif quotient_up(certificate.sigma, certificate.shift_bound) < event.multiplier:
        problems.append("the ledger's entry is for more noise than it claims")
    return problems
