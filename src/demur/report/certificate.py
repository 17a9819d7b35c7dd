"""Certificates of deletion as a page in plain words, for the person who asked.

The page has every fact of the certificate's JSON, in a table whose cells carry the
names of the fields (`data-fact`), and the JSON itself in the element `certificate`.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

from demur.report.document import document, write_document
from demur.report.text import attribute, day, number_up, safe
from demur.unlearning import Certificate

_MOST_IN_WORDS = 700.0  # a larger epsilon bounds nothing, and e^epsilon overflows
_WORDS = {
    "version": "version of this form",
    "service": "service",
    "record": "pseudonym of the record",
    "generation": "times the record was learned",
    "subject": "pseudonym of the person",
    "requests": "request of this person, number",
    "records": "records deleted with this request",
    "epoch": "epoch of the model",
    "tick": "records learned by then",
    "mode": "kind of model",
    "theorem": "theorem",
    "statement": "what the theorem says",
    "scope": "scope",
    "accounting": "accounting",
    "not_covered": "not covered",
    "shift_bound": "shift bound",
    "sigma": "deviation of the noise",
    "epsilon": "epsilon of this deletion",
    "delta": "delta",
    "epsilon_so_far": "epsilon of all requests so far",
    "epsilon_in_all": "epsilon of all that ever leaves the service",
    "delta_in_all": "delta of that",
    "state_digest": "digest of the model afterwards",
    "operation": "operation",
    "ledger": "ledger",
    "entry": "entry in the ledger",
    "library": "version of demur",
    "time": "time",
    "tip": "row of the journal",
    "signature": "signature",
    "opening": "opening",
}


def write_certificate(
    certificate: Certificate,
    path: str | os.PathLike[str],
    *,
    record_id: str | int | None = None,
    subject_id: str | int | None = None,
) -> None:
    """Write a certificate as an HTML page, complete or not at all.

    With an opening it is readable by its owner alone (mode 600).
    """
    page = certificate_page(certificate, record_id=record_id, subject_id=subject_id)
    write_document(page, path, private=certificate.opening is not None)


def certificate_page(
    certificate: Certificate,
    *,
    record_id: str | int | None = None,
    subject_id: str | int | None = None,
) -> str:
    """A certificate as HTML, for the person who asked for the deletion.

    `record_id` and `subject_id` stand on the page only if the opening ties them to the
    certificate; otherwise this is a ValueError.
    """
    named = {"record": record_id, "person": subject_id}
    ids = {what: value for what, value in named.items() if value is not None}
    if ids and not certificate.is_of(record_id, subject_id=subject_id):
        raise ValueError(
            "this certificate is not about that id: the opening says so. Nothing was"
            " written."
        )
    facts = certificate.facts()
    if certificate.opening is not None:
        facts["opening"] = str(certificate.opening)
    body = (
        f"<header>{_warning(certificate)}<h1>Certificate of deletion</h1>"
        f"{_lead(certificate, ids)}</header>\n<main>\n{_promise(certificate)}"
        f"{_not_covered(certificate)}{_check(certificate, ids)}{_table(facts)}</main>\n"
        "<footer class='small quiet'>This page is one file. Its facts are inside it as"
        " JSON, in the element <code>certificate</code>.</footer>"
    )
    return document(
        "Certificate of deletion", body, data_name="certificate", data=facts
    )


def _warning(certificate: Certificate) -> str:
    if not certificate.statement.startswith("NOT PRIVATE"):
        return ""
    return (
        '<p class="banner" role="alert"><strong>NOT PRIVATE</strong> This service is'
        " for tests: its noise came from a seed. This certificate is worth nothing.</p>"
    )


def _lead(certificate: Certificate, ids: dict[str, Any]) -> str:
    one = certificate.records == 1
    many = f"{certificate.records} records were deleted together."
    whose = "".join(
        f"<p>The {what}: <bdi><strong>{safe(value)}</strong></bdi></p>"
        for what, value in ids.items()
    )
    return (
        f"<p>On {day(certificate.time)} (UTC) a record was deleted from a model that"
        f" had learned from it.{'' if one else f' {many}'}</p>{whose}"
    )


def _promise(certificate: Certificate) -> str:
    if certificate.epsilon == 0.0:
        said = (
            "<p>The model is now what it would be if it had never learned this record."
            " Nothing of the record is left in it.</p>"
        )
    else:
        factor = f"e^{number_up(certificate.epsilon)}"
        if certificate.epsilon < _MOST_IN_WORDS:
            factor = number_up(math.exp(certificate.epsilon))
        said = (
            "<p>From now on the model can hardly be told apart from one that never"
            f" learned this record, up to epsilon {number_up(certificate.epsilon)} and"
            f" delta {number_up(certificate.delta)}. That means: whatever somebody"
            f" concludes from the model about this record is at most {factor} times as"
            " likely as if the model had never seen it, but for a probability of"
            f" {number_up(certificate.delta)}.</p>"
        )
        if certificate.requests > 1:
            said += (
                f"<p>It was request {certificate.requests} of this person. All of them"
                " together come to epsilon"
                f" {number_up(certificate.epsilon_so_far)}.</p>"
            )
    if certificate.epsilon_in_all is not None:
        at = number_up(certificate.delta_in_all)
        said += (
            "<p>This service answers from published copies of its model alone. Counting"
            " every copy and every request of this person, the same holds with epsilon"
            f" {number_up(certificate.epsilon_in_all)} at delta {at}.</p>"
            "<p>Until the next publication, answers come from a copy that was made"
            " while this record was in the model. This epsilon counts that.</p>"
        )
    return f"<h2>What you can rely on</h2>{said}"


def _not_covered(certificate: Certificate) -> str:
    lines = "".join(f"<li>{safe(line)}</li>" for line in certificate.not_covered)
    return f"<h2>What this does not cover</h2><ul>{lines}</ul>" if lines else ""


def _check(certificate: Certificate, ids: dict[str, Any]) -> str:
    steps = [
        "Keep the JSON file that came with this page: it is the certificate. This page"
        " repeats it in words.",
        "Ask the service for its journal or its evidence file, and type"
        " <code>demur unlearn verify CERTIFICATE JOURNAL --id ID</code>. Exit code 0"
        " means that all of it holds, but for the lines that begin with"
        " &ldquo;not known&rdquo;: these could not be checked with what was at hand.",
    ]
    if certificate.opening is not None:
        steps.append(
            "The opening below ties the certificate to"
            f" {'the id above' if ids else 'your id'}, and nobody can do that without"
            " it. Show it only to whom you want to show whose record was deleted."
        )
    if certificate.signature is None:
        steps.append("It is not signed: it shows what the journal of the service says.")
    else:
        steps.append(
            "It carries a signature, which this page has not checked. Take the public"
            " key of the service from a place that you trust, and add"
            " <code>--signer KEY</code> to the command."
        )
    listed = "".join(f"<li>{step}</li>" for step in steps)
    return f"<h2>How to check it</h2><ul>{listed}</ul>"


def _table(facts: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{safe(_WORDS.get(name, name))}</th>'
        f'<td data-fact="{attribute(name)}">{safe(_text(value))}</td></tr>'
        for name, value in facts.items()
    )
    return (
        '<h2>All facts</h2><table><thead><tr><th scope="col">fact</th>'
        f'<th scope="col">as in the JSON</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _text(value: Any) -> str:
    """A value exactly as the JSON has it; text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)
