"""Verification of one certificate, or of all in an evidence file.

    demur unlearn verify CERTIFICATE JOURNAL
    demur unlearn verify CERTIFICATE EVIDENCE --id "order 17" --opening opening.txt
    demur unlearn verify EVIDENCE

The certificate holds the hash of its own row, so a journal that was rewritten later
does not match it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy.engine import Connection

from demur.core.errors import LedgerMissing
from demur.ledger import Ledger, Tip
from demur.unlearning.errors import ServiceDamaged, ServiceMismatch
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import ServiceTerms
from demur.unlearning.records import evidence, journal, tables
from demur.unlearning.records.certificate import Certificate
from demur.unlearning.records.evidence import EvidenceFile, is_evidence
from demur.unlearning.records.journal_rules import History, follow
from demur.unlearning.records.read_errors import readable
from demur.unlearning.records.seals import Seals
from demur.unlearning.records.state_cipher import StateCipher
from demur.unlearning.service import certificate_checks, recovery
from demur.unlearning.service.charges import ledgers_beside, own_dataset
from demur.unlearning.service.retraining import WITHOUT_NOISE
from demur.unlearning.service.verification import (
    LedgersBefore,
    ServiceVerification,
    capacity_problems,
    certificate_problems,
    file_problems,
    payment_problems,
    read_history,
    state_problems,
    stored_problems,
)


@dataclass
class _Examined:
    """A journal that was walked, and its ledgers: of a service, or in evidence."""

    terms: ServiceTerms
    history: History
    problems: list[str]
    unknown: list[str]
    ledgers: LedgersBefore
    evidence: bool
    own: bool  # the ledgers are the service's own
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self.prices = DeletionPrices(self.terms)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise _unreadable_terms() from error
        wrong, unknown = payment_problems(
            self.history, self.ledgers, self.prices.publications
        )
        self.problems += wrong + capacity_problems(self.history, self.prices)
        self.unknown += unknown
        for ledger in self.ledgers.held if self.own else []:
            if ledger.terms.signer != self.terms.signer:
                self.problems.append("the ledger has another signer than the terms")
            if ledger.terms.dataset != own_dataset(self.history.service):
                self.problems.append("a ledger in it is another service's")

    def result(self) -> ServiceVerification:
        """What was found."""
        tip = self.history.tip
        problems, unknown = dict.fromkeys(self.problems), dict.fromkeys(self.unknown)
        return ServiceVerification(
            tip.sequence, tip, tuple(problems), tuple(unknown), tuple(self.notes)
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
        history = examined.history
        examined.problems += certificate_problems(certificate, history)
        examined.problems += certificate_checks.holder_problems(
            certificate, record_id, subject_id
        )
        _check_signer(examined, signer)
        _check_numbers(examined, certificate)
        _look_for_return(examined, certificate)
        if record_id is None and subject_id is None:
            examined.unknown.append(
                "whose record it was: give an id, and the opening that came with the"
                " certificate (--id or --subject, --opening)"
            )
        return examined.result()


def _look_for_return(examined: _Examined, certificate: Certificate) -> None:
    """Whether the record was learned again after its deletion."""
    if not examined.terms.remembers:
        examined.unknown.append(
            "whether a record of this id was learned again since: the service does not"
            " remember ids"
        )
    now, then = (
        examined.history.generations.get(certificate.record, 0),
        certificate.generation,
    )
    if abs(now) > then:
        examined.notes.append(
            f"it is about generation {then} of the record, which was learned again"
            f" since and is {'live' if now > 0 else 'deleted again'}"
        )


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
                certificate = Certificate.from_content(content, row.tip)
            except ValueError:
                examined.problems.append(f"row {row.sequence}: not a certificate")
                continue
            _check_numbers(examined, certificate)
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
    path, folder = database.path, database.keys_folder
    seals = None if folder is None else Seals(folder, 0)
    own = [url] if path is None else [str(p) for p in ledgers_beside(path)]
    held = _opened(given or own, resources, own=not given)
    with database.read() as connection:
        before = LedgersBefore.the_journal(held, tables.service_id(connection))
    with database.read() as connection:
        history = read_history(connection)
        wrong, unknown = state_problems(
            connection, terms, history, seals, StateCipher(None)
        )
        wrong += _tip_problems(connection, tip, terms, history.service)
    return _Examined(
        terms, history, history.problems + wrong, unknown, before, False, not given
    )


def _opened(addresses: list[str], resources: ExitStack, *, own: bool) -> list[Ledger]:
    """The ledgers at these addresses; a server may have none of the service's own."""
    held = []
    for address in addresses:
        with suppress(*([LedgerMissing] if own else [])):
            held.append(resources.enter_context(Ledger.open(address, read_only=True)))
    return held


def _examine_evidence(
    url: str, given: list[str], resources: ExitStack, tip: Tip | None
) -> _Examined:
    store = EvidenceFile(url, read_only=True)
    resources.callback(store.close)
    header = evidence.read_header(store)
    try:
        terms = ServiceTerms.from_text(header.terms)
    except (ValueError, TypeError) as error:
        raise _unreadable_terms() from error
    folder = resources.enter_context(TemporaryDirectory())
    own = [str(p) for p in evidence.extract_ledgers(store, Path(folder))]
    held = _opened(given or own, resources, own=not given)
    with readable(), store.read() as connection:
        history = follow(connection, header)
        wrong = file_problems(connection) + stored_problems(connection, history)
        wrong += _tip_problems(connection, tip, terms, history.service)
    unknown = [
        "whether the model in use is the one that the journal names: an evidence file"
        " holds no state of it"
    ]
    before = LedgersBefore.the_journal(held, history.service)
    return _Examined(
        terms, history, history.problems + wrong, unknown, before, True, not given
    )


def _unreadable_terms() -> ServiceDamaged:
    return ServiceDamaged(
        "these are not terms that a deletion service can have: they were edited, or"
        " come from elsewhere. Ask for a whole copy."
    )


def _tip_problems(
    connection: Connection, tip: Tip | None, terms: ServiceTerms, service: str
) -> list[str]:
    if tip is None:
        return []
    begins = journal.genesis(service, terms.to_text())
    if journal.contains(connection, tip, begins):
        return []
    return [
        f"row {tip.sequence} is not that of the tip: rows were cut off or rewritten,"
        " or it is another service"
    ]


def _check_signer(examined: _Examined, signer: str | None) -> None:
    """Whether the terms name the signer whose public key was given."""
    named = examined.terms.signer
    signer = None if signer is None else signer.strip().lower()
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


def _check_numbers(examined: _Examined, certificate: Certificate) -> None:
    """Terms, noise and cost of one certificate, computed again."""
    problems, terms, prices = examined.problems, examined.terms, examined.prices
    problems += certificate_checks.term_problems(certificate, terms)
    problems += certificate_checks.so_far_problems(
        certificate, prices, examined.history
    )
    wrong, unknown = certificate_checks.word_problems(certificate, terms)
    problems += wrong
    examined.unknown += unknown
    if certificate.epsilon_in_all != prices.epsilon_in_all():
        problems.append("its epsilon in all is not that of the service's terms")
    if certificate.theorem in WITHOUT_NOISE:
        return
    charged = examined.ledgers.by_id.get(certificate.ledger)
    if charged is None and examined.evidence:
        examined.unknown.append(
            f"whether the cost is in the ledger {certificate.ledger:.64}, which is not"
            " in the evidence: give its address (--ledger)"
        )
    elif charged is None:
        problems.append(
            "the ledger that was charged is not beside the journal: give its address"
            " (--ledger)"
        )
    wrong, unknown = certificate_checks.number_problems(
        certificate, terms, prices, examined.history, charged
    )
    problems += wrong
    examined.unknown += unknown
