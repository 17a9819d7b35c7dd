"""`demur unlearn delete`, `queue` and `retrain`: requests by id."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from demur.cli.ledger.options import PasswordFile
from demur.cli.shell import AsJson, Code, console, print_json
from demur.cli.unlearning.inserts import read
from demur.cli.unlearning.inserts import unlearn_app as unlearn_app
from demur.cli.unlearning.options import (
    CERTIFICATES,
    CertificateFolder,
    CertificateKey,
    FeatureColumns,
    KeptTip,
    LimitDays,
    LimitNoise,
    LimitPerson,
    MemoryKeyFile,
    PassphraseFlag,
    ServiceAddress,
    ServiceKeys,
    SharedLedger,
    SubjectColumn,
    limits,
    memory_key,
    opened,
    opened_to_read,
)

if TYPE_CHECKING:
    from demur.cli.unlearning.handover import Handover
    from demur.cli.unlearning.record_tables import RecordRows
    from demur.unlearning import Certificate, QueuedRequest, UnlearningService
    from demur.unlearning.records.commitments import Opening
    from demur.unlearning.service.requests import Answer


class WhenExhausted(StrEnum):
    """What becomes of a request that no capacity is left for."""

    RAISE = "raise"
    QUEUE = "queue"
    RETRAIN = "retrain"


OnExhausted = Annotated[
    WhenExhausted,
    typer.Option(help="Where no capacity is left: an error, the queue, or a retrain."),
]


@unlearn_app.command("delete")
def delete(
    address: ServiceAddress,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of records.", metavar="[ID]...")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--from", help="Ids in a text file, one in a line, or a table."),
    ] = None,
    person: Annotated[
        str | None, typer.Option(help="All records of the person with this id.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A table with the records, for a mode that must see them."),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of ids in these files.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of y in --data.")
    ] = None,
    features: FeatureColumns = None,
    on_exhausted: OnExhausted = WhenExhausted.RAISE,
    limit_person: LimitPerson = None,
    limit_days: LimitDays = None,
    limit_noise: LimitNoise = None,
    output: CertificateFolder = CERTIFICATES,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    tip: KeptTip = None,
    as_json: AsJson = False,
) -> None:
    """Delete records by id, together: all or none, with one noise.

    Writes one certificate for each into the folder, with its opening. Exits with 3 if
    a request has to wait in the queue.
    """
    from demur.cli.unlearning.handover import Handover
    from demur.cli.unlearning.record_tables import read_ids
    from demur.unlearning import RecordNeeded

    wanted = list(ids or [])
    if file is not None:
        wanted += read_ids(file, id_column)
    wanted = list(dict.fromkeys(wanted))
    if bool(wanted) == (person is not None):
        raise ValueError(
            "say what to delete: ids, --from a file of ids, or --person with the id of"
            " a person. Nothing was changed."
        )
    if data is not None and (id_column is None or label is None or not wanted):
        raise ValueError(
            "--data needs ids, --id and --label: the columns of ids and of y. Nothing"
            " was changed."
        )
    handover = Handover(output)
    with opened(
        address,
        keys=keys,
        memory=memory_key(memory, passphrase),
        signing_key=signing_key,
        password_file=password_file,
        ledger=ledger,
        tip=tip,
        on_exhausted=on_exhausted.value,
        limits=limits(limit_person, limit_days, limit_noise),
        certificates=output,
    ) as service:
        X = y = None
        if data is not None:
            assert id_column is not None
            assert label is not None
            rows = read(service, data, id_column, label, None, features)
            part = rows.of(wanted, data.name)
            X, y = part.X, part.y
        openings = service.openings(wanted, subject_id=person)
        waiting: dict[str, Opening] = {}
        if on_exhausted is WhenExhausted.RETRAIN:  # It answers those that wait, too.
            waiting = service.openings_of_leaving()
        if on_exhausted is WhenExhausted.RETRAIN:
            _require_store(service, "--on-exhausted retrain takes it")
        with handover.prepared(openings | waiting):
            try:
                if person is not None:
                    answers = service.delete_subject(person)
                else:
                    answers = service.delete_many(wanted, X, y)
            except RecordNeeded as error:
                raise RecordNeeded(
                    f"mode {service.terms.mode!r} must see a record to forget it, and"
                    " the service keeps none: name a table that has it (--data, --id,"
                    " --label), with the ids. Nothing was spent."
                ) from error
            handover.write(_answered_too(service, answers, waiting))
            _hand_over(service, handover, answers, wanted, as_json)


def _answered_too(
    service: UnlearningService, answers: list[Answer], waiting: dict[str, Opening]
) -> list[Certificate]:
    """Certificates of requests that had waited, and that a retrain has answered."""
    still = {each.record for each in (*answers, *service.queue())}
    done = waiting.keys() - still
    if not done:
        return []
    newest = {c.record: c for c in service.certificates() if c.record in done}
    return [replace(c, opening=waiting[c.record]) for c in newest.values()]


def _hand_over(
    service: UnlearningService,
    handover: Handover,
    answers: list[Answer],
    ids: list[str],
    as_json: bool,
    **more: int,
) -> None:
    from demur.unlearning import Certificate

    done = [each for each in answers if isinstance(each, Certificate)]
    files = handover.write(done)
    waiting = [each for each in answers if not isinstance(each, Certificate)]
    facts = {
        "deleted": len(done),
        "waiting": len(waiting),
        **more,
        "certificates": [str(path) for path in files],
        "ids": {
            each: str(files[at]) for at, each in enumerate(ids) if len(ids) == len(done)
        },
        "tip": str(service.status().tip),
    }
    if as_json:
        print_json(facts)
    else:
        counts = {"deleted": len(done), "waiting": len(waiting), **more}
        console.print(", ".join(f"{name}: {value}" for name, value in counts.items()))
        for path in files:
            console.print(f"written: {path}", markup=False, soft_wrap=True)
        console.print(f"tip: {facts['tip']}", highlight=False, soft_wrap=True)
    if waiting:
        raise typer.Exit(int(Code.DECLINED))


@unlearn_app.command("queue")
def queue(
    address: ServiceAddress,
    process: Annotated[
        bool, typer.Option("--process", help="Try the requests that wait again.")
    ] = False,
    limit_person: LimitPerson = None,
    limit_days: LimitDays = None,
    limit_noise: LimitNoise = None,
    output: CertificateFolder = CERTIFICATES,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    tip: KeptTip = None,
    as_json: AsJson = False,
) -> None:
    """List the requests that wait, the most urgent first; --process tries them again.

    Requests that a crash cut short are carried out then, too. Each keeps the limits
    that it was made under, unless --limit-... names others.
    """
    from demur.cli.unlearning.handover import Handover

    named = limits(limit_person, limit_days, limit_noise)
    if named is not None and not process:
        raise ValueError("--limit-... is for --process. Nothing was changed.")
    files: list[Path] = []
    if process:
        handover = Handover(output)
        with opened(
            address,
            keys=keys,
            memory=memory_key(memory, passphrase),
            signing_key=signing_key,
            password_file=password_file,
            ledger=ledger,
            tip=tip,
            limits=named,
            certificates=output,
        ) as service:
            with handover.prepared(service.openings_of_leaving()):
                files = handover.write(service.process_queue())
            waiting = service.queue()
    else:
        with opened_to_read(address, keys, memory_key(memory, passphrase)) as service:
            waiting = service.queue()
    _print_queue(waiting, files, as_json)


def _print_queue(
    waiting: list[QueuedRequest], files: list[Path], as_json: bool
) -> None:
    if as_json:
        facts = [asdict(each) | {"overdue": each.overdue} for each in waiting]
        print_json({"waiting": facts, "certificates": [str(path) for path in files]})
        return
    for path in files:
        console.print(f"written: {path}", markup=False, soft_wrap=True)
    if not waiting:
        console.print("No request waits.")
        return
    table = Table("record", "requested", "deadline", "overdue", "reason")
    for each in waiting:
        table.add_row(
            f"{each.record[:16]}...",
            each.requested[:10],
            each.deadline[:10],
            "yes" if each.overdue else "",
            each.reason,
        )
    console.print(table)


@unlearn_app.command("retrain")
def retrain(
    address: ServiceAddress,
    data: Annotated[
        Path | None,
        typer.Argument(
            help="The records that stay (default: the encrypted store).",
            metavar="[DATA]",
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of record ids.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of y.")] = None,
    subject: SubjectColumn = None,
    features: FeatureColumns = None,
    new: Annotated[
        bool, typer.Option("--new", help="Learn rows of DATA that are not live.")
    ] = False,
    output: CertificateFolder = CERTIFICATES,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    tip: KeptTip = None,
    as_json: AsJson = False,
) -> None:
    """Train anew on DATA; every live record that is not in it is deleted by that.

    Rows that are not live are refused unless --new is given: a record that was deleted
    would come back with an old file.
    """
    from demur.cli.unlearning.handover import Handover

    if data is not None and (id_column is None or label is None):
        raise ValueError("DATA needs --id and --label. Nothing was changed.")
    handover = Handover(output)
    with opened(
        address,
        keys=keys,
        memory=memory_key(memory, passphrase),
        signing_key=signing_key,
        password_file=password_file,
        ledger=ledger,
        tip=tip,
        certificates=output,
    ) as service:
        if data is None:
            _require_store(service, "name the records that stay (DATA, --id, --label)")
        records, unknown = None, []
        leaving = service.openings_of_leaving()
        if data is not None:
            assert id_column is not None
            assert label is not None
            rows = read(service, data, id_column, label, subject, features)
            unknown = _not_known(service, rows, data, new)
            leaving = service.openings_of_leaving(rows.ids)
            owners = rows.subjects or [None] * len(rows)
            records = list(zip(rows.ids, rows.X, rows.y.tolist(), owners, strict=True))
        with handover.prepared(leaving):
            issued: list[Answer] = [*service.retrain(records)]
            _hand_over(service, handover, issued, [], as_json, new=len(unknown))


def _require_store(service: UnlearningService, what: str) -> None:
    """Refuse to train anew from records that the service does not keep."""
    if service.terms.record_store != "encrypted":
        raise ValueError(
            f"this service has no encrypted store: {what}. Nothing was changed."
        )


def _not_known(
    service: UnlearningService, rows: RecordRows, data: Path, new: bool
) -> list[int]:
    """The rows that are not live, if they may be learned."""
    equal, other = service.find_live(rows.ids, rows.X, rows.y)
    live = {*equal, *other}
    unknown = [at for at in range(len(rows)) if at not in live]
    if unknown and not new:
        raise ValueError(
            f"{data.name}, row {unknown[0] + 1}: no record of this id is live"
            f" ({len(unknown):,} such rows). If it was deleted, leave it out; if it is"
            " new, add --new. Nothing was changed."
        )
    return unknown
