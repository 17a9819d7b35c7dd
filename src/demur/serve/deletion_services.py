"""Attached deletion services: requests that wait, and certificates that were issued.

Two tables are read and never written: that of requests, which holds pseudonyms, times
and reasons, and that of certificates, without their openings. No model and no record
of a deletion service is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from demur.unlearning import Certificate, QueuedRequest
from demur.unlearning.records import queue, rows
from demur.unlearning.records.tables import ServiceStore

# Why a request waits (`Reason` in `demur.unlearning.errors`), for people.
REASONS = {
    "privacy": "no deletion is left in the budget: retrain the model",
    "regret": "the noise of deletions is at its limit: retrain the model",
    "numeric": "the model cannot certify it: retrain the model",
    "rate": "this person asked too often lately",
    "interrupted": "it was interrupted, and is taken up again",
}


@dataclass(frozen=True)
class AttachedService:
    """What a deletion service shows: what waits, the most urgent first, and what was
    deleted, the newest first."""

    name: str
    waiting: list[QueuedRequest]
    certificates: list[Certificate]


def attached_service(address: str) -> AttachedService:
    """The state of the deletion service at an address."""
    store = ServiceStore(address, read_only=True)
    try:
        if not store.exists():
            raise ValueError("there is no deletion service at the attached address")
        with store.read() as connection:
            return AttachedService(
                _name(address),
                queue.waiting(connection),
                rows.certificates(connection)[::-1],
            )
    finally:
        store.close()


def certificates_of(addresses: Iterable[str]) -> dict[str, list[Certificate]]:
    """What deletion services have certified, by their names, in order."""
    issued: dict[str, list[Certificate]] = {}
    for address in addresses:
        service = attached_service(address)
        issued.setdefault(service.name, []).extend(service.certificates[::-1])
    return issued


def _name(address: str) -> str:
    """The last part of an address: no user, password or option of a database."""
    return PurePosixPath(urlsplit(address).path).name or "a deletion service"
