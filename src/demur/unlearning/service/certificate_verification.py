"""Verification of one certificate, or of all in an evidence file.

    demur unlearn verify CERTIFICATE JOURNAL
    demur unlearn verify CERTIFICATE EVIDENCE --id "order 17" --opening opening.txt
    demur unlearn verify EVIDENCE

The certificate holds the hash of its own row, so a journal that was rewritten later
does not match it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from sqlalchemy.engine import Connection

from demur.core.accounting.events import GaussianEvent
from demur.core.adjacency import Erasure
from demur.core.entry import Entry
from demur.core.rounding import quotient_up
from demur.ledger import Ledger, Tip
from demur.unlearning.errors import (
    CapacityExhausted,
    ServiceDamaged,
    ServiceMismatch,
)
from demur.unlearning.models import make_mode
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import evidence, journal, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.evidence import EvidenceFile, is_evidence
from demur.unlearning.records.journal_rules import History, follow
from demur.unlearning.records.read_errors import readable
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher
from demur.unlearning.service import recovery
from demur.unlearning.service.charges import PER_PERSON, entry_name, ledgers_beside
from demur.unlearning.service.publication import publication_problems
from demur.unlearning.service.retraining import WITHOUT_NOISE
from demur.unlearning.service.verification import (
    ServiceVerification,
    certificate_problems,
    read_history,
    state_problems,
    stored_problems,
)

_LOOSE = 1.0 + 1e-9


@dataclass
class _Examined:
    """A journal that was walked: of a service, or in an evidence file."""

    terms: ServiceTerms
    history: History
    problems: list[str]
    unknown: list[str]
    ledgers: list[str]  # where to look for those that were charged
    evidence: bool = False

    def __post_init__(self) -> None:
        self.prices = DeletionPrices(self.terms)
        self._verified: dict[str, Ledger] = {}

    def verified(self, resources: ExitStack) -> dict[str, Ledger]:
        """The ledgers by id, opened and verified once; their problems are noted."""
        if not self._verified:
            for address in self.ledgers:
                ledger = resources.enter_context(Ledger.open(address, read_only=True))
                self._verified[ledger.id] = ledger
                self.problems += [f"the ledger: {p}" for p in ledger.verify().problems]
        return self._verified

    def result(self) -> ServiceVerification:
        """What was found."""
        tip = self.history.tip
        unknown = tuple(dict.fromkeys(self.unknown))
        return ServiceVerification(
            tip.sequence, tip, tuple(dict.fromkeys(self.problems)), unknown
        )


def verify_certificate(
    certificate: Certificate,
    url: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
    signer: str | None = None,
    record_id: str | int | None = None,
    subject_id: str | int | None = None,
) -> ServiceVerification:
    """Check a certificate against the journal at `url` and the ledger that was charged.

    `url` is a service or an evidence file. The journal's chain is walked from its
    genesis, the deletion's row compared word for word, the ledger verified, its entry
    found, the epsilon recomputed, and the stored state compared with the journal.
    `signer` is the public key of whoever should have signed; `record_id` and
    `subject_id` are the ids that the certificate should be about, which takes its
    opening. Nothing is written, and no right to write is needed.
    """
    with ExitStack() as resources:
        examined = _examine(os.fspath(url), ledger, resources)
        history, unknown = examined.history, examined.unknown
        examined.problems += certificate_problems(certificate, history)
        examined.problems += _holder_problems(certificate, record_id, subject_id)
        _check_signer(examined, signer)
        _check_numbers(examined, certificate, resources)
        if history.generations.get(certificate.record, 0) > certificate.generation:
            unknown.append(
                "the record was learned again after this deletion, as a new generation"
            )
        if record_id is None and subject_id is None:
            unknown.append(
                "whose record it was: give an id, and the opening that came with the"
                " certificate (--id or --subject, --opening)"
            )
        return examined.result()


def verify_evidence(
    url: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
    signer: str | None = None,
    tip: Tip | str | None = None,
) -> ServiceVerification:
    """Check every certificate in an evidence file, or of a service, and its journal.

    `tip` is one that was noted earlier: a journal without that row was cut off or
    rewritten.
    """
    wanted = Tip.parse(tip) if isinstance(tip, str) else tip
    with ExitStack() as resources:
        examined = _examine(os.fspath(url), ledger, resources, wanted)
        history = examined.history
        _check_signer(examined, signer)
        for row, content in history.certified.values():
            try:
                certificate = Certificate(**content, tip=row.tip)
            except TypeError:
                examined.problems.append(f"row {row.sequence}: not a certificate")
                continue
            _check_numbers(examined, certificate, resources)
        if wanted is None:
            examined.unknown.append(
                "whether rows were cut off the end, or the whole journal rewritten:"
                " compare with a tip, or a certificate, from elsewhere"
            )
        return examined.result()


def _examine(
    url: str,
    ledger: str | os.PathLike[str] | None,
    resources: ExitStack,
    tip: Tip | None = None,
) -> _Examined:
    given = [] if ledger is None else [os.fspath(ledger)]
    if is_evidence(url):
        return _examine_evidence(url, given, resources, tip)
    database = tables.ServiceStore(url, read_only=True)
    resources.callback(database.close)
    if not database.exists():
        raise ServiceMismatch(
            "there is no journal of a deletion service here, and no evidence file"
        )
    terms = recovery.stored_terms(database)
    folder = database.keys_folder
    seals = None if folder is None else Seals(folder, 0)
    with database.read() as connection:
        history = read_history(connection)
        wrong, unknown = state_problems(
            connection, terms, history, seals, StateCipher(None)
        )
        wrong += _tip_problems(connection, tip, terms)
    if not given:
        path = database.path
        given = [url] if path is None else [str(p) for p in ledgers_beside(path)]
    return _Examined(terms, history, history.problems + wrong, unknown, given)


def _examine_evidence(
    url: str, given: list[str], resources: ExitStack, tip: Tip | None
) -> _Examined:
    store = EvidenceFile(url, read_only=True)
    resources.callback(store.close)
    header = evidence.read_header(store)
    try:
        terms = ServiceTerms.from_text(header.terms)
    except ValueError as error:
        raise ServiceDamaged(f"the terms cannot be read: {error}") from error
    with readable(), store.read() as connection:
        history = follow(connection, header)
        wrong = stored_problems(connection, history)
        wrong += _tip_problems(connection, tip, terms)
    folder = resources.enter_context(TemporaryDirectory())
    given = given or [str(p) for p in evidence.extract_ledgers(store, Path(folder))]
    unknown = [
        "whether the model in use is the one that the journal names: an evidence file"
        " holds no state of it"
    ]
    return _Examined(terms, history, history.problems + wrong, unknown, given, True)


def _tip_problems(
    connection: Connection, tip: Tip | None, terms: ServiceTerms
) -> list[str]:
    if tip is None or journal.contains(connection, tip, terms.to_text()):
        return []
    return [
        f"row {tip.sequence} is not that of the tip: rows were cut off or rewritten,"
        " or it is another service"
    ]


def _check_signer(examined: _Examined, signer: str | None) -> None:
    """Whether the terms name the signer whose public key was given."""
    named = examined.terms.signer
    if signer is not None and signer != named:
        examined.problems.append(
            f"the service names {named or 'no signer'}, not the signer {signer}"
        )
    elif signer is None and named is not None:
        examined.unknown.append(
            "whether the signer is the right one: give its public key (--signer)"
        )
    elif named is None:
        examined.unknown.append(
            "who wrote the journal: the service has no signing key, so that whoever"
            " could write to it could have rewritten it before this was issued"
        )


def _holder_problems(
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


def _check_publications(examined: _Examined, resources: ExitStack) -> None:
    """What `epsilon_in_all` rests on, where answers are published."""
    prices = examined.prices.publications
    if prices is not None:
        ledgers = examined.verified(resources)
        wrong, unknown = publication_problems(prices, examined.history, ledgers)
        examined.problems += wrong
        examined.unknown += unknown


def _check_numbers(
    examined: _Examined, certificate: Certificate, resources: ExitStack
) -> None:
    """Terms, noise and cost of one certificate, computed again."""
    problems, terms = examined.problems, examined.terms
    problems += _term_problems(certificate, terms)
    if certificate.epsilon_in_all != examined.prices.epsilon_in_all():
        problems.append("its epsilon in all is not that of the service's terms")
    _check_publications(examined, resources)
    if certificate.theorem in WITHOUT_NOISE:
        return
    charged = examined.verified(resources).get(certificate.ledger)
    if charged is None and examined.evidence:
        examined.unknown.append(
            f"whether the cost is in the ledger {certificate.ledger}, which is not in"
            " the evidence: give its address (--ledger)"
        )
    elif charged is None:
        problems.append(
            "the ledger that was charged is not beside the journal: give its address"
            " (--ledger)"
        )
    problems += _number_problems(certificate, terms, examined.prices, charged)


def _term_problems(certificate: Certificate, terms: ServiceTerms) -> list[str]:
    """Whether it is about this service's mode, budget and theorem."""
    problems = [
        f"its {name} is not that of the service"
        for name in ("mode", "scope", "delta", "delta_in_all")
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
    ledger: Ledger | None,
) -> list[str]:
    """Cost and shift, computed again; numbers that no service has are wrong, too."""
    try:
        problems = _noise_problems(certificate, prices)
        if ledger is not None and not problems:
            problems = _cost_problems(certificate, prices, ledger)
        return problems + _shift_problems(certificate, terms)
    except (ValueError, ArithmeticError, CapacityExhausted):
        return ["its numbers are none that this service can give"]


def _shift_problems(certificate: Certificate, terms: ServiceTerms) -> list[str]:
    """The bound is the theorem's at that tick; grids of earlier deletions may add."""
    model = make_mode(terms.mode, terms.dimension, **terms.config)
    state = model.state()
    if "ticks" in state:
        model.restore(state | {"ticks": np.array(certificate.tick)})
    least = model.shift_bound(certificate.records)
    if certificate.shift_bound * _LOOSE < least:
        return ["its shift bound is below that of the theorem at its tick"]
    return []


def _noise_problems(certificate: Certificate, prices: DeletionPrices) -> list[str]:
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
    if prices.per_person:
        needed = prices.price(certificate.requests).multiplier
        if certificate.sigma * _LOOSE < needed * certificate.shift_bound:
            problems.append(
                f"its noise is too small for request {certificate.requests} of one"
                " person: together they would exceed the budget"
            )
    return problems


def _cost_problems(
    certificate: Certificate, prices: DeletionPrices, ledger: Ledger
) -> list[str]:
    """Whether the entry is there, and pays for this noise."""
    service = certificate.service
    entry = ledger.find(entry_name(service, certificate.operation))
    if entry is None or entry.id != certificate.entry:
        return ["the cost of this deletion is not in the ledger"]
    if prices.exact:
        return []
    payer: Entry | None = entry
    if prices.per_person:
        payer = ledger.find(entry_name(service, PER_PERSON))
    event = None if payer is None else payer.declaration.cost.at(Erasure())
    if not isinstance(event, GaussianEvent):
        return ["the ledger has no entry that pays for this deletion"]
    if prices.per_person:
        if certificate.epsilon > prices.epsilon(event.multiplier) * _LOOSE:
            return ["the ledger's entry pays for less than it claims"]
    elif quotient_up(certificate.sigma, certificate.shift_bound) < event.multiplier:
        return ["the ledger's entry is for more noise than it claims"]
    return []
