"""What can be taken away: the report, an export, the tip, a backup."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from demur.ledger import backup_ledger, export_ledger
from demur.report import evidence_pack, gather, render
from demur.report.text import json_data
from demur.serve.deletion_services import certificates_of
from demur.serve.visit import Reply, Visit, download

# The report is one file with its style inside, and runs nothing.
_REPORT = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; sandbox"
)


def report(visit: Visit) -> Reply:
    """The printable report."""
    page = render(gather(visit.ledger))
    return Reply(page, headers={"Content-Security-Policy": _REPORT})


def export(visit: Visit) -> Reply:
    """The ledger as JSON, without names of people."""
    text = json.dumps(json_data(export_ledger(visit.ledger)), indent=2, allow_nan=False)
    return download(text, "application/json", f"{visit.path['name']}.json")


def tip(visit: Visit) -> Reply:
    """The tip of the chain, to be kept elsewhere."""
    return download(f"{visit.ledger.tip()}\n", "text/plain", "tip.txt")


def evidence(visit: Visit) -> Reply:
    """The evidence pack, signed where the ledger is."""
    attached = visit.house.services.get(visit.path["name"], ())
    content = evidence_pack(visit.ledger, certificates=certificates_of(attached))
    return download(content, "application/zip", f"{visit.path['name']}-evidence.zip")


def backup(visit: Visit) -> Reply:
    """A whole copy of a ledger in a file, taken while it is used."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "backup.db"
        backup_ledger(visit.ledger, place)
        content = place.read_bytes()
    kind = "application/vnd.sqlite3"
    return download(content, kind, f"{visit.path['name']}-backup.db")
