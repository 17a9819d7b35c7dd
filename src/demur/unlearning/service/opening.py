"""Opening a service: its terms, its one writer, its ledger, and the next epoch's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demur.core.entropy import Source
from demur.core.errors import NotPrivate
from demur.ledger import Ledger
from demur.unlearning.errors import ServiceMismatch
from demur.unlearning.pricing.prices import Tariff
from demur.unlearning.pricing.terms import Terms
from demur.unlearning.records import store
from demur.unlearning.service import recovery
from demur.unlearning.service.charges import Till, check_shared, ledgers_beside
from demur.unlearning.service.state import Keeper


@dataclass
class Opened:
    """What an open service consists of; the till changes with the epoch."""

    keeper: Keeper
    till: Till
    tariff: Tariff
    url: str
    folder: Path
    shared: bool


def open_service(
    url: str,
    asked: dict[str, Any],
    config: dict[str, Any],
    ledger: Ledger | None,
    keys: str | os.PathLike[str] | None,
    source: Source,
    resources: ExitStack,
) -> Opened:
    """Create or load a service, and recover it; `resources` will close it."""
    place = store.ServiceStore(url)
    resources.callback(place.close)
    folder = Path(keys) if keys is not None else place.keys_folder
    if folder is None:
        raise ValueError(
            "keys must name an owner-only folder on this machine: the secrets of a"
            " service do not belong on the server that keeps it"
        )
    if not recovery.exists(place):
        _first_terms(asked, config, source)  # Refused before anything is created.
    resources.callback(place.only_writer().close)
    there = recovery.exists(place)  # Another first opener may have been faster.
    if there:
        terms = recovery.kept_terms(place)
        exact = {"epsilon": None, "delta": None} if terms.model().exact else {}
        terms.must_equal(asked | exact, config)
        if terms.testing == source.private:
            raise NotPrivate(
                "this service is for tests: open it with a seeded source (source=)."
                " Nothing was changed."
                if terms.testing
                else "a seeded noise source is for tests, and this service is not: open"
                " another with it. Nothing was changed."
            )
    else:
        terms = _first_terms(asked, config, source)
    tariff = Tariff(terms)
    if ledger is not None:
        check_shared(ledger, terms, tariff)
    if not there:
        if ledger is None and place.path is not None and ledgers_beside(place.path):
            raise ServiceMismatch(
                "the ledger of another service lies here: remove it with that service,"
                " or choose another place. Nothing was created."
            )
        recovery.create(place, terms, folder, source)
    keeper = recovery.load(place, terms, folder, source)
    resources.callback(keeper.close)
    till = (
        Till.own_ledger(url, keeper, tariff, folder)
        if ledger is None
        else Till(ledger, tariff, keeper.id, own=False, source=source)
    )
    opened = Opened(keeper, till, tariff, url, folder, shared=ledger is not None)
    resources.callback(lambda: opened.till.close())
    recovery.recover(keeper, till)
    return opened


def _first_terms(
    asked: dict[str, Any], config: dict[str, Any], source: Source
) -> Terms:
    if asked["dim"] is None:
        raise ServiceMismatch(
            "there is no service here: the first opening needs dim=, and epsilon= and"
            " delta= for a mode that forgets by noise. Nothing was created."
        )
    defaults = {"mode": "ogd", "scope": "subject", "record_store": "none"}
    chosen: dict[str, Any] = {
        k: defaults.get(k) if v is None else v for k, v in asked.items()
    }
    return Terms.make(**chosen, config=config, testing=not source.private)


def check_next_epoch(opened: Opened) -> None:
    """Refuse a new epoch that would have no ledger."""
    if _new_ledger(opened) and opened.keeper.place.path is None:
        raise ServiceMismatch(
            "a database holds one ledger, and that of the first epoch is there: open"
            " the service with ledger= to begin another. Nothing has changed."
        )


def next_epoch(opened: Opened) -> bool:
    """Open the ledger of the epoch that has begun; whether there is a new one."""
    if not _new_ledger(opened):
        return False
    keeper, old = opened.keeper, opened.till
    opened.till = Till.own_ledger(opened.url, keeper, opened.tariff, opened.folder)
    old.close()
    return True


@contextmanager
def ledgers(opened: Opened) -> Iterator[list[Ledger]]:
    """The ledger of this epoch, and the service's own ones of earlier epochs."""
    path, current = opened.keeper.place.path, opened.till.ledger
    with ExitStack() as earlier:
        found = [current]
        for one in [] if path is None or opened.shared else ledgers_beside(path):
            ledger = earlier.enter_context(Ledger.open(one))
            if ledger.id != current.id:
                found.append(ledger)
        yield found


def _new_ledger(opened: Opened) -> bool:
    return opened.tariff.composition != "nothing" and not opened.shared
