"""Deletion queues of attached services: requests that wait, read and never written.

Only the table of requests is read, which holds pseudonyms, times and reasons; no model
and no record of the deletion service is loaded. Certificates come from the ledger, in
which each deletion is noted.
"""

from __future__ import annotations

from demur.unlearning import QueuedRequest
from demur.unlearning.records import queue
from demur.unlearning.records.tables import ServiceStore


def waiting_at(address: str) -> list[QueuedRequest]:
    """The deletions that wait at a service, the most urgent first."""
    store = ServiceStore(address, read_only=True)
    try:
        if not store.exists():
            raise ValueError("there is no deletion service at the attached address")
        with store.read() as connection:
            return queue.waiting(connection)
    finally:
        store.close()
