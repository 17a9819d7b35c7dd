"""Export of a ledger as plain data: for programs, and for the deployments registry.

Nothing in an export is secret: labels, costs, times, keyed digests. No noise key, no
exact value and no plain digest of an input is in the ledger to begin with.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from demur.core.adjacency import (
    AddOrRemoveOne,
    Ball,
    Erasure,
    ReplaceOne,
    ZeroOut,
)
from demur.core.entry import PAYS_PER_PERSON, Entry, deletion_key
from demur.ledger.ledger import Ledger
from demur.ledger.reading import Reading

FORMAT = 1

# Words of the public register for what a unit compares.
_NEIGHBOURS = {
    AddOrRemoveOne: "unbounded (add or remove)",
    ReplaceOne: "bounded (replace)",
    ZeroOut: "zero out",
    Ball: "metric (a ball around the record)",
    Erasure: "erasure",
}


def export_ledger(ledger: Ledger, *, actors: bool = False) -> dict[str, Any]:
    """Terms, budgets, entries, readings and tip of a ledger, ready for JSON.

    With `actors` it also says who charged each entry.
    """
    return {
        "format": FORMAT,
        "dataset": ledger.terms.dataset,
        "filter": str(ledger.terms.filter),
        "private": all(entry.private for entry in ledger.entries()),
        "budgets": [
            {
                "unit": status.unit.to_json(),
                "epsilon": status.budget.epsilon,
                "delta": status.budget.delta,
                "spent_epsilon": status.spent_epsilon,
                "tight_epsilon": reading.epsilon,
                "protects": reading.protects,
            }
            for status in ledger.status()
            for reading in [ledger.reading(status.unit)]
        ],
        "entries": [
            {
                "sequence": entry.sequence,
                "id": entry.id,
                "label": entry.label,
                "time": entry.time,
                "count": entry.count,
                "noise": entry.noise,
                "declaration": entry.declaration.to_json(),
                "statement": entry.statement(paid_by=entry_that_pays(ledger, entry)),
            }
            | ({"actor": entry.actor} if actors else {})
            for entry in ledger.entries()
        ],
        "notes": [asdict(note) for note in ledger.notes()],
        "tip": str(ledger.tip()),
    }


def entry_that_pays(ledger: Ledger, entry: Entry) -> Entry:
    """The entry whose epsilon holds for this one: itself, or what paid for a deletion.

    A deletion service may pay once for all deletions of a person. Its deletions have
    no cost of their own, and their statements name that entry.

    >>> import demur as dm
    >>> from demur.mechanisms import Gaussian
    >>> presence = dm.AddOrRemoveOne()
    >>> ledger = dm.Ledger(dm.Budget(1.0, 1e-6), unit=presence)
    >>> count = Gaussian(12.0, {presence: 1.0}).release([7.0], ledger=ledger, label="a")
    >>> entry_that_pays(ledger, count.entry) is count.entry
    True
    """
    if not entry.covered(Erasure()):
        return entry
    _, _, service = entry.label.rpartition(" of service ")
    return ledger.find(deletion_key(service, PAYS_PER_PERSON)) or entry


def registry_records(
    ledger: Ledger, *, product: str, organisation: str, description: str = ""
) -> list[dict[str, Any]]:
    """One record for each privacy budget, in the columns of the deployments registry.

    The register's columns are product and organisation, description, year, flavour,
    privacy loss (unit, epsilon, delta), model, accounting and implementation.
    """
    entries = ledger.entries()
    years = sorted({entry.time[:4] for entry in entries})
    records = []
    for status in ledger.status():
        if isinstance(status.unit, Erasure):
            continue
        reading = ledger.reading(status.unit)
        records.append(
            {
                "product": {"name": product, "organisation": organisation},
                "description": description or f"Releases about {ledger.terms.dataset}",
                "year": years[-1] if years else None,
                "flavour": "Approximate DP" if status.budget.delta else "Pure DP",
                "privacy_loss": {
                    "privacy_unit": _level(reading),
                    "neighbouring_relation": _NEIGHBOURS[type(status.unit)],
                    "unit": status.unit.to_json(),
                    "epsilon": reading.epsilon,
                    "delta": reading.delta,
                    "budget_epsilon": status.budget.epsilon,
                },
                "model": "Central",
                "accounting": {
                    "enforced_by": str(ledger.terms.filter),
                    "releases": reading.entries,
                    "mechanisms": sorted({e.declaration.name for e in entries}),
                    "not_protected": sorted(
                        {text for e in entries for text in e.declaration.unprotected}
                    ),
                },
                "implementation": {"library": "demur", "private": reading.private},
            }
        )
    return records


def _level(reading: Reading) -> str:
    """Record-level; person-level where entries count persons, or so many records."""
    many = reading.unit.records_per_person
    if many > 1:
        return f"person-level (up to {many} records)"
    return {"one record": "record-level", "one person": "person-level"}.get(
        reading.one, f"mixed: {reading.protects}"
    )
