"""Rows of an evidence file, read and written back by whoever may write to it."""

import hashlib
import json

from demur.durable.chain import Tip, canonical
from demur.unlearning import Certificate
from tests.unlearning.service_kit import sql


def rows_of(file):
    """The bodies of the journal's rows, in order."""
    bodies = sql(file, "SELECT body FROM demur_unlearning_journal ORDER BY sequence")
    return [json.loads(text) for (text,) in bodies]


def write_rows(file, bodies, key=None):
    """Put these rows into a file, with hashes, certificates and end that fit.

    A row may be a text, as it is to be stored.
    """
    columns = "SELECT service_id, terms FROM demur_unlearning_evidence"
    begin = "\n".join(sql(file, columns)[0])
    last, number, certificates = hashlib.sha256(begin.encode()).hexdigest(), 0, {}
    for table in ("journal", "certificates"):
        sql(file, f"DELETE FROM demur_unlearning_{table}")
    for number, body in enumerate(bodies, 1):
        text = body if isinstance(body, str) else canonical(body)
        body = json.loads(text)
        last = hashlib.sha256(f"{last}\n{text}".encode()).hexdigest()
        values = (number, body["op"], text, last)
        sql(file, "INSERT INTO demur_unlearning_journal VALUES (?, ?, ?, ?)", *values)
        if "certificate" in body:
            try:
                held = Certificate.from_content(body["certificate"], Tip(number, last))
            except ValueError:  # It is one that nobody can read.
                continue
            held = held if key is None else held.signed(key)
            certificates[held.record, held.generation] = held
    for (name, generation), held in certificates.items():
        sql(
            file,
            "INSERT INTO demur_unlearning_certificates VALUES (?, ?, ?)",
            name,
            generation,
            held.to_json(),
        )
    end = "UPDATE demur_unlearning_evidence SET sequence = ?, hash = ?"
    sql(file, end, number, last)


def without_ledgers(file):
    sql(file, "DELETE FROM demur_unlearning_evidence_ledgers")
