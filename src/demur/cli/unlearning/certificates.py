"""`demur unlearn certificates`, `certificate`, `verify`, `evidence` and `backup`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from demur.cli.ledger.options import Signer, open_to_read, read_tip
from demur.cli.shell import AsJson, Code, console, print_json, written
from demur.cli.unlearning.options import (
    MemoryKeyFile,
    PassphraseFlag,
    ServiceAddress,
    ServiceKeys,
    memory_key,
    no_ledger,
    opened_to_read,
)
from demur.cli.unlearning.requests import unlearn_app as unlearn_app
from demur.core.errors import LedgerMissing
from demur.report.text import one_line

if TYPE_CHECKING:
    from demur.unlearning import Certificate, ServiceVerification

CertificateFile = Annotated[
    Path, typer.Argument(help="A certificate of deletion (JSON).", metavar="CERT")
]
OpeningOption = Annotated[
    str | None,
    typer.Option(help="The opening, or a file of it, if it is not in CERT."),
]


@unlearn_app.command("certificates")
def certificates(
    address: ServiceAddress,
    record_id: Annotated[
        str | None,
        typer.Option("--id", help="That of this id alone (needs the memory key)."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write them to this folder.")
    ] = None,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    keys: ServiceKeys = None,
    as_json: AsJson = False,
) -> None:
    """List the certificates that a service has issued, and write them out again.

    With --id and the memory key a certificate comes with its opening. A service
    without a memory key has handed the openings out, and keeps none.
    """
    from demur.cli.unlearning.handover import Handover, check_place
    from demur.core.rounding import printed_up

    with opened_to_read(address, keys, memory_key(memory, passphrase)) as service:
        issued = (
            service.certificates()
            if record_id is None
            else [service.certificate(record_id)]
        )
    files = []
    if output is not None:
        if any(each.opening is not None for each in issued):
            check_place(output, address, keys)
        handover = Handover(output)
        with handover.prepared({}):
            files = handover.write(issued)
    if as_json:
        facts = [each.facts() for each in issued]
        print_json({"certificates": facts, "written": [str(path) for path in files]})
        return
    table = Table("no.", "time", "record", "theorem", "epsilon")
    for each in issued:
        table.add_row(
            "" if each.tip is None else str(each.tip.sequence),
            each.time[:16].replace("T", " "),
            f"{each.record[:16]}...",
            each.theorem,
            printed_up(each.epsilon),
        )
    console.print(table)
    for path in files:
        written(path)


@unlearn_app.command("certificate")
def certificate(
    file: CertificateFile,
    html: Annotated[
        Path | None, typer.Option(help="Write a page in plain words, to print.")
    ] = None,
    record_id: Annotated[
        str | None, typer.Option("--id", help="The id of the record, for the page.")
    ] = None,
    subject_id: Annotated[
        str | None, typer.Option("--subject", help="The id of the person, for it.")
    ] = None,
    opening: OpeningOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a certificate in words, or write it as an HTML page for its holder.

    An id stands on the page only if the certificate's opening ties it to that id.
    """
    stored = _loaded(file, opening)
    if html is not None:
        from demur.report import write_certificate

        if not html.parent.is_dir():
            raise ValueError(f"there is no folder {html.parent}. Nothing was written.")
        write_certificate(stored, html, record_id=record_id, subject_id=subject_id)
    elif record_id is not None or subject_id is not None:
        _check_ids(stored, record_id, subject_id)
    if as_json:
        told = stored.facts() | {"written": None if html is None else str(html)}
        print_json(told)
        return
    _print_lines(str(stored))
    if html is not None:
        written(html)


def _print_lines(text: str) -> None:
    """Print what somebody else wrote, without a terminal's control characters."""
    for line in text.split("\n"):
        console.print(one_line(line), highlight=False, soft_wrap=True, markup=False)


def _check_ids(
    stored: Certificate, record_id: str | None, subject_id: str | None
) -> None:
    if not stored.is_of(record_id, subject_id=subject_id):
        raise ValueError("this certificate is not about that id: the opening says so")


def _loaded(file: Path, opening: str | None) -> Certificate:
    from dataclasses import replace

    from demur.unlearning import Certificate
    from demur.unlearning.records.commitments import Opening

    stored = Certificate.load(file)
    if opening is None:
        return stored
    text = Path(opening).read_text() if _is_file(opening) else opening
    return replace(stored, opening=Opening.parse(text))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # too long for a name
        return False


@unlearn_app.command("verify")
def verify(
    file: Annotated[
        str,  # a Path would take a slash out of postgresql://
        typer.Argument(
            help="A certificate of deletion (JSON); or, alone, a service or an"
            " evidence file, all of whose certificates are checked.",
            metavar="CERT",
        ),
    ],
    journal: Annotated[
        str | None,
        typer.Argument(
            help="The service (a file, sqlite:///... or postgresql://...) or an"
            " evidence file.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="The ledger that was charged, if it is not the service's own."
        ),
    ] = None,
    record_id: Annotated[
        str | None, typer.Option("--id", help="It should be about this record.")
    ] = None,
    subject_id: Annotated[
        str | None, typer.Option("--subject", help="It should be about this person.")
    ] = None,
    opening: OpeningOption = None,
    signer: Signer = None,
    tip: Annotated[
        str | None,
        typer.Option(
            help="Without a certificate: a tip that was kept, SEQUENCE:HASH, or a file"
            " that holds one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a certificate against journal and ledger; exits with 1 if it does not hold.

    The journal's chain, the deletion's row word for word, its signature, the entry in
    the ledger, and the epsilon that the noise comes to; with --id, that it is about
    that record. What cannot be checked from the files at hand is listed.
    """
    from demur.unlearning import verify_certificate, verify_evidence

    if ledger is not None:
        try:
            open_to_read(ledger).close()
        except LedgerMissing as error:
            raise no_ledger(ledger) from error
    if journal is None:
        if any(given is not None for given in (record_id, subject_id, opening)):
            raise ValueError("--id, --subject and --opening are about a certificate")
        found = verify_evidence(file, ledger=ledger, signer=signer, tip=read_tip(tip))
        _print_verdict(found, "Everything in it holds.", as_json)
        return
    if tip is not None:
        raise ValueError("a certificate has its own tip: leave --tip out")
    stored = _loaded(Path(file), opening)
    found = verify_certificate(
        stored,
        journal,
        ledger=ledger,
        signer=signer,
        record_id=record_id,
        subject_id=subject_id,
    )
    if not as_json:
        _print_lines(str(stored))
    holds = "The certificate holds."
    if found.notes:
        holds = f"The certificate holds, and {found.notes[0]}."
    _print_verdict(found, holds, as_json)


def _print_verdict(found: ServiceVerification, holds: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "ok": found.ok,
                "rows": found.rows,
                "tip": str(found.tip),
                "problems": found.problems,
                "notes": found.notes,
                "unknown": found.unknown,
            }
        )
    else:
        verdict = holds if found.ok else "It does NOT hold."
        if found.ok and found.unknown:
            verdict += ' Not checked: what the lines "not known" say.'
        _print_lines(f"{found}\n{verdict}")
    if not found.ok:
        raise typer.Exit(int(Code.ERROR))


@unlearn_app.command("evidence")
def evidence(
    address: ServiceAddress,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A new file; none is replaced.")
    ],
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    keys: ServiceKeys = None,
    as_json: AsJson = False,
) -> None:
    """Write journal, certificates and own ledgers to one file, for whoever checks them.

    It holds no state of the model, no key, no id and no opening. The service may run
    meanwhile.
    """
    with opened_to_read(address, keys, memory_key(memory, passphrase)) as service:
        tip = service.evidence(output)
        issued = len(service.certificates())
    if as_json:
        print_json({"written": str(output), "tip": str(tip), "certificates": issued})
        return
    written(output)
    console.print(f"tip: {tip}", highlight=False, soft_wrap=True)


@unlearn_app.command("backup")
def backup(
    address: ServiceAddress,
    folder: Annotated[
        Path, typer.Argument(help="A new folder; none is replaced.", metavar="FOLDER")
    ],
    with_keys: Annotated[
        bool,
        typer.Option("--with-keys", help="Copy the keys that it takes to open it."),
    ] = False,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    keys: ServiceKeys = None,
    as_json: AsJson = False,
) -> None:
    """Copy a service and its own ledgers to FOLDER, whole or not at all.

    The service may run meanwhile. Keys of encrypted records are never copied. A backup
    holds every record that is live now: destroy it when one of them is deleted.
    """
    with opened_to_read(address, keys, memory_key(memory, passphrase)) as service:
        tip = service.backup(folder, keys=with_keys)
    if as_json:
        print_json({"written": str(folder), "tip": str(tip), "keys": with_keys})
        return
    written(folder)
    console.print(f"tip: {tip}", highlight=False, soft_wrap=True)
