"""`demur unlearn insert`, `delete`, `queue` and `retrain`: records by id."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from demur.cli.ledger.options import PasswordFile
from demur.cli.shell import AsJson, Code, Interrupted, console, print_json
from demur.cli.unlearning.options import (
    CERTIFICATES,
    CertificateFolder,
    CertificateKey,
    FeatureColumns,
    IdColumn,
    KeptTip,
    LabelColumn,
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
from demur.cli.unlearning.terms import unlearn_app as unlearn_app

if TYPE_CHECKING:
    from demur.cli.unlearning.handover import Handover
    from demur.cli.unlearning.record_tables import RecordRows
    from demur.unlearning import QueuedRequest, UnlearningService
    from demur.unlearning.service.requests import Answer


class WhenExhausted(StrEnum):
    """What becomes of a request that no capacity is left for."""

    RAISE = "raise"
    QUEUE = "queue"
    RETRAIN = "retrain"


DataFile = Annotated[
    Path,
    typer.Argument(help="Parquet or CSV.", metavar="DATA", show_default=False),
]
OnExhausted = Annotated[
    WhenExhausted,
    typer.Option(help="Where no capacity is left: an error, the queue, or a retrain."),
]


@unlearn_app.command("insert")
def insert(
    address: ServiceAddress,
    data: DataFile,
    id_column: IdColumn,
    label: LabelColumn,
    subject: SubjectColumn = None,
    features: FeatureColumns = None,
    batch: Annotated[
        int, typer.Option(help="Rows that are made durable together.")
    ] = 1000,
    skip_live: Annotated[
        bool,
        typer.Option(
            "--skip-live", help="Leave out rows that are live already, as they are."
        ),
    ] = False,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    tip: KeptTip = None,
    as_json: AsJson = False,
) -> None:
    """Learn the rows of DATA, in order; the whole file is checked first.

    After an interrupt, run it again with --skip-live: rows that are live are left out
    if they are the same, and refused if they are not.
    """
    from demur.core import validate

    validate.count(batch=batch)
    with opened(
        address,
        keys=keys,
        memory=memory_key(memory, passphrase),
        signing_key=signing_key,
        password_file=password_file,
        ledger=ledger,
        tip=tip,
    ) as service:
        rows = _read(service, data, id_column, label, subject, features)
        new = _not_live(service, rows, data, skip_live)
        done = 0
        try:
            for at in range(0, len(new), batch):
                part = rows.part(new[at : at + batch])
                service.insert_many(
                    part.X, part.y, record_ids=part.ids, subject_ids=part.subjects
                )
                done += len(part)
        except KeyboardInterrupt as stop:
            raise Interrupted(
                f"At least {done:,} of {len(new):,} rows were learned. Run the same"
                " command again with --skip-live."
            ) from stop
        except Exception as error:
            if not done:
                raise
            raise type(error)(
                f"{error} The first {done:,} new rows were learned; after a remedy,"
                " run the same command again with --skip-live."
            ) from error
        facts = {
            "inserted": len(new),
            "skipped": len(rows) - len(new),
            "live": service.status().live,
            "tip": str(service.flush()),
        }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)


def _read(
    service: UnlearningService,
    data: Path,
    id_column: str,
    label: str,
    subject: str | None,
    features: str | None,
) -> RecordRows:
    from demur.cli.list_options import names
    from demur.cli.unlearning.record_tables import read_records

    return read_records(
        data,
        id_column=id_column,
        label_column=label,
        subject_column=subject,
        features=names(features),
        dimension=service.terms.dimension,
        labels=service.terms.labels,
    )


def _not_live(
    service: UnlearningService, rows: RecordRows, data: Path, skip_live: bool
) -> list[int]:
    """The rows to learn; or the refusal, if some are live."""
    equal, other = service.find_live(rows.ids, rows.X, rows.y)
    if other:
        raise ValueError(
            f"{data.name}, row {other[0] + 1}: a record of this id is live with other"
            f" values ({len(other):,} such rows). Delete it first, or use another id."
            " Nothing was changed."
        )
    if equal and not skip_live:
        raise ValueError(
            f"{data.name}, row {equal[0] + 1}: this record is live already"
            f" ({len(equal):,} such rows). To go on with an interrupted insert, add"
            " --skip-live. Nothing was changed."
        )
    live = set(equal)
    return [at for at in range(len(rows)) if at not in live]


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

    wanted = list(ids or [])
    if file is not None:
        wanted += read_ids(file, id_column)
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
            rows = _read(service, data, id_column, label, None, features)
            part = rows.of(wanted, data.name)
            X, y = part.X, part.y
        with handover.prepared(service.openings(wanted, subject_id=person)):
            if person is not None:
                answers = service.delete_subject(person)
            else:
                answers = service.delete_many(wanted, X, y)
            _hand_over(service, handover, answers, wanted, as_json)


def _hand_over(
    service: UnlearningService,
    handover: Handover,
    answers: list[Answer],
    ids: list[str],
    as_json: bool,
) -> None:
    from demur.unlearning import Certificate

    done = [each for each in answers if isinstance(each, Certificate)]
    files = handover.write(done)
    waiting = [each for each in answers if not isinstance(each, Certificate)]
    facts = {
        "deleted": len(done),
        "waiting": len(waiting),
        "certificates": [str(path) for path in files],
        "ids": {
            each: str(files[at]) for at, each in enumerate(ids) if len(ids) == len(done)
        },
        "tip": str(service.status().tip),
    }
    if as_json:
        print_json(facts)
    else:
        console.print(f"deleted: {len(done)}, waiting: {len(waiting)}")
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

    Requests that a crash cut short are carried out then, too.
    """
    from demur.cli.unlearning.handover import Handover

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
            certificates=output,
        ) as service:
            with handover.prepared({}):
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
    """Train anew on DATA; every live record that is not in it is deleted by that."""
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
        records = None
        if data is not None:
            assert id_column is not None
            assert label is not None
            rows = _read(service, data, id_column, label, subject, features)
            owners = rows.subjects or [None] * len(rows)
            records = list(zip(rows.ids, rows.X, rows.y.tolist(), owners, strict=True))
        with handover.prepared({}):
            certificates = service.retrain(records)
            _hand_over(service, handover, list(certificates), [], as_json)
