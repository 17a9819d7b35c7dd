"""Opening a deletion service: terms, writer's lock, state and ledger; new epochs.

A service that is opened to be read takes no lock, makes no file and claims no folder;
its ledgers are opened to be read as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demur.core.entropy import Source
from demur.core.errors import KeysExposed, LedgerMissing, NotPrivate
from demur.durable import chain
from demur.durable.store import shown_address
from demur.ledger import Ledger, Tip
from demur.unlearning.errors import ServiceMismatch
from demur.unlearning.pricing.service_prices import DeletionPrices
from demur.unlearning.pricing.service_terms import RequestedTerms, ServiceTerms
from demur.unlearning.records import tables
from demur.unlearning.records.memory_key import MemoryKey, check_place
from demur.unlearning.service import publication, recovery
from demur.unlearning.service.charges import (
    DeletionCharges,
    check_shared,
    ledger_path,
    ledgers_beside,
)
from demur.unlearning.service.state import ServiceState


@dataclass
class OpenService:
    """The parts of a service that is open for writing; `charges` follows the epoch."""

    state: ServiceState
    charges: DeletionCharges
    prices: DeletionPrices
    url: str
    folder: Path
    shared: bool


@dataclass
class ServiceToRead:
    """The parts of a service that is open for reading; `own` ledgers by address."""

    state: ServiceState
    prices: DeletionPrices
    url: str
    given: Ledger | None
    own: dict[str, Ledger]

    def close(self) -> None:
        """Close the ledgers that were opened on the way."""
        for ledger in self.own.values():
            ledger.close()


def open_service(
    url: str,
    requested_terms: RequestedTerms,
    config: dict[str, Any],
    *,
    ledger: Ledger | None,
    keys: str | os.PathLike[str] | None,
    memory_key: MemoryKey | None,
    source: Source,
    resources: ExitStack,
    signer: Ed25519PrivateKey | None = None,
    tip: Tip | None = None,
) -> OpenService:
    """Create or load a service, and recover it; `resources` will close it."""
    database = tables.ServiceStore(url)
    resources.callback(database.close)
    folder = Path(keys) if keys is not None else database.keys_folder
    if folder is None:
        raise ValueError(
            "keys must name an owner-only folder on this machine: the secrets of a"
            " service do not belong on the server that keeps it"
        )
    shared = ledger is not None

    def checked() -> tuple[bool, ServiceTerms, DeletionPrices]:
        """Whether there is a service, and its terms; or the refusal."""
        exists = database.exists()
        if exists:
            terms = recovery.stored_terms(database)
            terms.must_equal(requested_terms, config)
            _check_source(terms, source)
            _check_memory(terms, memory_key)
            _check_signer(terms, signer)
        else:
            terms = ServiceTerms.make(
                config,
                remembers=memory_key is not None,
                testing=not source.private,
                signer=None if signer is None else chain.public_hex(signer),
                **requested_terms,
            )
            recovery.check_empty(database, folder, shared=shared)
            if memory_key is not None:
                check_place(memory_key, recovery.own_folders(database, folder))
        prices = DeletionPrices(terms)
        if shared:
            check_shared(ledger, terms, prices)
        return exists, terms, prices

    checked()  # before any file is made
    resources.callback(database.only_writer().close)
    exists, terms, prices = checked()  # another first opener may have been faster
    if not exists:
        service_id = None
        if ledger is not None:  # It may decline, and then nothing is created.
            service_id = recovery.new_id(source)
            DeletionCharges(ledger, prices, service_id, own=False, source=source)
        recovery.create(database, terms, folder, source, service_id, memory_key)
    state = recovery.load(database, terms, folder, source, memory_key)
    state.signer = signer
    resources.callback(state.close)
    recovery.check_tip(state, tip)
    charges = (
        DeletionCharges.own_ledger(url, state, prices, folder)
        if ledger is None
        else DeletionCharges(ledger, prices, state.id, own=False, source=source)
    )
    opened = OpenService(state, charges, prices, url, folder, shared)
    resources.callback(lambda: opened.charges.close())
    recovery.recover(state, charges)
    return opened


def open_to_read(
    url: str,
    requested_terms: RequestedTerms,
    config: dict[str, Any],
    *,
    ledger: Ledger | None,
    keys: str | os.PathLike[str] | None,
    memory_key: MemoryKey | None,
    resources: ExitStack,
) -> ServiceToRead:
    """Load a service without a right to write, and change nothing."""
    database = tables.ServiceStore(url, read_only=True)
    resources.callback(database.close)
    if not database.exists():
        raise ServiceMismatch(
            f"there is no deletion service at {shown_address(url)}. To create one, open"
            " it to write. Nothing was created."
        )
    terms = recovery.stored_terms(database)
    terms.must_equal(requested_terms, config)
    if memory_key is not None:
        _check_memory(terms, memory_key)
    prices = DeletionPrices(terms)
    if ledger is not None:
        check_shared(ledger, terms, prices)
    if keys is not None:  # A folder that was named must have the secret.
        state = recovery.load_to_read(database, terms, Path(keys), memory_key)
    else:
        folder: Path | None = database.keys_folder
        try:
            state = recovery.load_to_read(database, terms, folder, memory_key)
        except (OSError, KeysExposed):  # not there, or for its owner alone
            state = recovery.load_to_read(database, terms, None)
    resources.callback(state.close)
    opened = ServiceToRead(state, prices, url, ledger, {})
    resources.callback(opened.close)
    return opened


def _check_source(terms: ServiceTerms, source: Source) -> None:
    """A service for tests has a seeded source, at every opening, and no other has."""
    if terms.testing == source.private:
        raise NotPrivate(
            "this service is for tests: open it with a seeded source (source=)."
            " Nothing was changed."
            if terms.testing
            else "a seeded noise source is for tests, and this service is not: open"
            " another with it. Nothing was changed."
        )


def _check_memory(terms: ServiceTerms, memory_key: MemoryKey | None) -> None:
    """A service that remembers ids needs its key, and no other takes one."""
    if terms.remembers and memory_key is None:
        raise ServiceMismatch(
            "this service remembers ids under a key outside of its folder: give it"
            " (memory_key=). Nothing was changed."
        )
    if memory_key is not None and not terms.remembers:
        raise ServiceMismatch(
            "this service does not remember ids of deleted records, and its terms never"
            " change: open it without a key for that (memory_key=), or open another."
            " Nothing was changed."
        )


def _check_signer(terms: ServiceTerms, signer: Ed25519PrivateKey | None) -> None:
    """A signed service takes its key to write, and no service takes another's."""
    public = None if signer is None else chain.public_hex(signer)
    if terms.signer == public:
        return
    if public is None:
        raise ServiceMismatch(
            "the certificates of this service are signed: to write, give their key"
            " (signing_key=). Nothing was changed."
        )
    raise ServiceMismatch(
        f"the certificates of this service are signed by {terms.signer or 'nobody'};"
        f" this key (signing_key=) is that of {public}, and terms never change. Nothing"
        " was changed."
    )


def check_next_epoch(opened: OpenService) -> None:
    """Refuse a new epoch that would have no ledger."""
    if _new_ledger(opened) and opened.state.database.path is None:
        raise ServiceMismatch(
            "a database holds one ledger, and that of the first epoch is there: open"
            " the service with ledger= to begin another. Nothing has changed."
        )


def next_epoch(opened: OpenService) -> bool:
    """Open the ledger of the epoch that has begun; whether there is a new one."""
    if not _new_ledger(opened):
        return False
    old = opened.charges
    opened.charges = DeletionCharges.own_ledger(
        opened.url, opened.state, opened.prices, opened.folder
    )
    old.close()
    return True


def current_ledger(opened: OpenService | ServiceToRead) -> Ledger:
    """The ledger of this epoch; a reader's is opened when it is asked for."""
    if isinstance(opened, OpenService):
        return opened.charges.ledger
    if opened.given is not None:
        return opened.given
    state, composes = opened.state, not opened.prices.per_person
    with state.lock:
        state.require_usable()  # and knows the epoch
        path = state.database.path
        place = opened.url
        if path is not None:
            place = str(ledger_path(path, state.epoch, composes))
        if place not in opened.own:
            opened.own[place] = Ledger.open(place, read_only=True)
        return opened.own[place]


def publications_left(opened: OpenService | ServiceToRead) -> int:
    """How many copies a service with published answers may still publish."""
    prices = opened.prices.publications
    assert prices is not None
    return publication.left(opened.state, prices, current_ledger(opened))


@contextmanager
def ledgers(opened: OpenService | ServiceToRead) -> Iterator[list[Ledger]]:
    """The ledger of this epoch, and the service's own ones of earlier epochs.

    A reader has those that are there: a copy may have come without them.
    """
    path = opened.state.database.path
    all_epochs: list[Ledger] = []
    if isinstance(opened, OpenService):
        shared = opened.shared
    else:
        shared = opened.given is not None
    with suppress(LedgerMissing):
        all_epochs.append(current_ledger(opened))
    with ExitStack() as earlier:
        for file in [] if path is None or shared else ledgers_beside(path):
            ledger = earlier.enter_context(Ledger.open(file, read_only=True))
            if ledger.id not in {known.id for known in all_epochs}:
                all_epochs.append(ledger)
        yield all_epochs


def _new_ledger(opened: OpenService) -> bool:
    return not opened.prices.per_person and not opened.shared
