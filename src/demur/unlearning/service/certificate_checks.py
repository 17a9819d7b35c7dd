"""Checks of one certificate: its terms, words, noise and cost, computed again."""

from __future__ import annotations

import math

import numpy as np

from demur import __version__
from demur.core.accounting.events import GaussianEvent
from demur.core.adjacency import Erasure
from demur.core.entry import PAYS_PER_PERSON, Entry, deletion_key
from demur.core.rounding import quotient_up
from demur.ledger import Ledger
from demur.unlearning.errors import CapacityExhausted
from demur.unlearning.models import make_mode
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records.certificate import Certificate, stamped
from demur.unlearning.records.journal_rules import History
from demur.unlearning.service.retraining import WITHOUT_NOISE

_LOOSE = 1.0 + 1e-9
_GRID = 1.0 + 2e-4  # more than the grid of any noise adds to its shift


def holder_problems(
    certificate: Certificate,
    record_id: str | int | None,
    subject_id: str | int | None,
) -> list[str]:
    """Whether the opening ties the certificate to the ids that were given."""
    problems = []
    if record_id is not None and not certificate.is_of(record_id):
        problems.append("it is not about the record of this id: the opening says so")
    if subject_id is not None and not certificate.is_of(subject_id=subject_id):
        problems.append("it is not about a record of this person: the opening says so")
    return problems


def so_far_problems(
    certificate: Certificate, prices: DeletionPrices, history: History
) -> list[str]:
    """Whether the epsilon of all that composes is not understated."""
    if not 0 <= certificate.requests <= history.tip.sequence:
        return ["its requests are none, or more than the journal has rows"]
    if prices.exact:
        free = certificate.epsilon_so_far == 0.0
        return [] if free else ["an exact mode costs nothing"]
    if certificate.theorem in WITHOUT_NOISE:
        spent = prices.epsilon_of_requests(certificate.requests)
        equal = math.isclose(certificate.epsilon_so_far, spent, rel_tol=_LOOSE - 1.0)
        return [] if equal else ["its epsilon so far is not that of its requests"]
    if certificate.epsilon_so_far * _LOOSE < certificate.epsilon:
        return ["its epsilon so far is less than its own epsilon"]
    if prices.per_person:
        least = prices.epsilon_of_requests(certificate.requests)
        if certificate.requests <= 1:
            least = min(least, certificate.epsilon)
    else:
        least = prices.epsilon_of(history.used_at.get(certificate.operation, 0))
    if certificate.epsilon_so_far * _LOOSE < least:
        return ["its epsilon so far is less than its requests come to"]
    return []


def word_problems(
    certificate: Certificate, terms: ServiceTerms
) -> tuple[list[str], list[str]]:
    """Whether statement and limits are those of the theorem; and what is not known."""
    if certificate.library != __version__:
        return [], [
            "whether statement and limits are worded as version"
            f" {certificate.library:.20} of demur words them"
        ]
    model = terms.model()
    statement = WITHOUT_NOISE.get(certificate.theorem, model.theorem.statement)
    exact = certificate.theorem in WITHOUT_NOISE or model.exact
    words = {
        "statement": stamped(statement, terms.testing),
        "not_covered": terms.not_covered(model),
        "accounting": "none" if exact else terms.accounting,
    }
    wrong = [
        f"its {name} is not that of the theorem"
        for name, value in words.items()
        if getattr(certificate, name) != value
    ]
    return wrong, []


def term_problems(certificate: Certificate, terms: ServiceTerms) -> list[str]:
    """Whether it is about this service's mode, budget and theorem."""
    problems = [
        f"its {name} is not that of the service"
        for name in ("mode", "scope", "delta", "delta_in_all")
        if getattr(certificate, name) != getattr(terms, name)
    ]
    if terms.testing:
        problems.append("the service is for tests: its noise has a seed, NOT PRIVATE")
    model = terms.model()
    noisy = not model.exact and not model.secret
    if certificate.theorem in WITHOUT_NOISE:
        noisy = False
        if (certificate.entry, certificate.epsilon) != ("", 0.0):
            problems.append("a model that never saw the record costs nothing")
    elif certificate.theorem != model.theorem.id:
        problems.append("its theorem is not that of the service's mode")
    if (certificate.state_digest is not None) is not noisy:
        problems.append("it names a state that is secret, or no state where noise is")
    if certificate.epsilon_so_far > terms.epsilon * _LOOSE:
        problems.append("its epsilon so far exceeds the budget of the service")
    return problems


def number_problems(
    certificate: Certificate,
    terms: ServiceTerms,
    prices: DeletionPrices,
    history: History,
    ledger: Ledger | None,
) -> tuple[list[str], list[str]]:
    """Cost and shift, computed again, and what is not known.

    Numbers that no service has are wrong, too.
    """
    unknown: list[str] = []
    records = certificate.records
    intent = history.intents.get(certificate.operation)
    if intent is not None and not prices.per_person:
        records = sum(intent.records.values())  # One noise for all of them.
    try:
        problems = _noise_problems(certificate, prices, records)
        if ledger is not None and not problems:
            shift = history.shifts.get(certificate.operation, certificate.shift_bound)
            problems, unknown = _cost_problems(certificate, prices, ledger, shift)
        return problems + _shift_problems(certificate, terms, records), unknown
    except (ValueError, ArithmeticError, CapacityExhausted):
        return ["its numbers are none that this service can give"], []


def _shift_problems(
    certificate: Certificate, terms: ServiceTerms, records: int
) -> list[str]:
    """The bound is the theorem's at that tick; grids of earlier deletions may add."""
    model = make_mode(terms.mode, terms.dimension, **terms.config)
    state = model.state()
    if "ticks" in state:
        model.restore(state | {"ticks": np.array(certificate.tick)})
    least = model.shift_bound(records)
    if certificate.shift_bound * _LOOSE < least:
        return ["its shift bound is below that of the theorem at its tick"]
    return []


def _noise_problems(
    certificate: Certificate, prices: DeletionPrices, records: int
) -> list[str]:
    """Whether the noise is as large as the epsilon says."""
    if prices.exact:
        claimed = (certificate.epsilon, certificate.shift_bound, certificate.sigma)
        return [] if claimed == (0.0, 0.0, 0.0) else ["an exact deletion costs nothing"]
    if certificate.epsilon > prices.budget.epsilon * _LOOSE:
        return ["its epsilon exceeds the budget of the service"]
    if not certificate.shift_bound > 0.0 or not certificate.sigma > 0.0:
        return ["it claims no shift or no noise"]
    problems = []
    needed = prices.epsilon(certificate.sigma / certificate.shift_bound)
    if certificate.epsilon * _LOOSE < needed:
        problems.append("its noise is too small for the epsilon that it claims")
    request, who = certificate.requests, f"request {certificate.requests} of one person"
    if not prices.per_person:
        request, who = 1, f"one of {prices.capacity} that share the budget"
    needed = prices.price(request, records).multiplier
    if certificate.sigma * _LOOSE < needed * certificate.shift_bound:
        problems.append(
            f"its noise is too small for {who}: together they would exceed the budget"
        )
    return problems


def _cost_problems(
    certificate: Certificate, prices: DeletionPrices, ledger: Ledger, shift: float
) -> tuple[list[str], list[str]]:
    """Whether the entry is there, and pays for this noise; what is not known.

    `shift` is the largest of its operation's certificates: the noise is declared for
    that.
    """
    service = certificate.service
    entry = ledger.find(deletion_key(service, certificate.operation))
    if entry is None or entry.id != certificate.entry:
        return ["the cost of this deletion is not in the ledger"], []
    if prices.exact:
        return [], []
    payer: Entry | None = entry
    if prices.per_person:
        payer = ledger.find(deletion_key(service, PAYS_PER_PERSON))
    event = None if payer is None else payer.declaration.cost.at(Erasure())
    if not isinstance(event, GaussianEvent):
        return ["the ledger has no entry that pays for this deletion"], []
    if prices.per_person:
        if certificate.epsilon > prices.epsilon(event.multiplier) * _LOOSE:
            return ["the ledger's entry pays for less than it claims"], []
    elif quotient_up(certificate.sigma, certificate.shift_bound) < event.multiplier:
        return ["the ledger's entry is for more noise than it claims"], []
    elif certificate.sigma > event.multiplier * certificate.shift_bound * _GRID:
        return ["the ledger's entry is for less noise than it claims"], []
    if certificate.library != __version__:
        return [], [
            f"whether the ledger's entry names this noise as version"
            f" {certificate.library:.20} of demur names it"
        ]
    noise = prices.drawn_for(certificate.sigma, shift)
    if entry.declaration.fingerprint != noise.fingerprint:
        return ["the ledger's entry is for other noise than it claims"], []
    return [], []
