"""`demur unlearn insert`: the rows of a file, checked before the first is learned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demur.cli.ledger.options import PasswordFile
from demur.cli.shell import AsJson, Interrupted, console, print_json
from demur.cli.unlearning.options import (
    CertificateKey,
    FeatureColumns,
    IdColumn,
    KeptTip,
    LabelColumn,
    MemoryKeyFile,
    PassphraseFlag,
    ServiceAddress,
    ServiceKeys,
    SharedLedger,
    SubjectColumn,
    memory_key,
    opened,
)
from demur.cli.unlearning.terms import unlearn_app as unlearn_app

if TYPE_CHECKING:
    from demur.cli.unlearning.record_tables import RecordRows
    from demur.unlearning import UnlearningService

DataFile = Annotated[
    Path,
    typer.Argument(help="Parquet or CSV.", metavar="DATA", show_default=False),
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
    again: Annotated[
        bool,
        typer.Option("--again", help="Learn records again that were deleted."),
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
    if they are the same, and refused if they are not. Ids that were deleted are refused
    unless --again is given; a service without a memory key cannot know them.
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
        rows = read(service, data, id_column, label, subject, features)
        new = _not_live(service, rows, data, skip_live)
        deleted = _check_new(service, rows.part(new), new, data, again)
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
            if done:
                error.add_note(
                    f"The first {done:,} new rows were learned; after a remedy, run the"
                    " same command again with --skip-live."
                )
            raise
        facts = {
            "inserted": len(new),
            "learned_again": deleted,
            "skipped": len(rows) - len(new),
            "live": service.status().live,
            "tip": str(service.flush()),
        }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        line = f"{name.replace('_', ' ')}: {value}"
        console.print(line, highlight=False, soft_wrap=True)


def read(
    service: UnlearningService,
    data: Path,
    id_column: str,
    label: str,
    subject: str | None,
    features: str | None,
) -> RecordRows:
    """The records in a file, as this service takes them."""
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
    equal, other = service.find_live(
        rows.ids, rows.X, rows.y, subject_ids=rows.subjects
    )
    if other:
        raise ValueError(
            f"{data.name}, row {other[0] + 1}: a record of this id is live with other"
            f" values, or as another person's ({len(other):,} such rows). Delete it"
            " first, or use another id. Nothing was changed."
        )
    if equal and not skip_live:
        raise ValueError(
            f"{data.name}, row {equal[0] + 1}: this record is live already"
            f" ({len(equal):,} such rows). To go on with an interrupted insert, add"
            " --skip-live. Nothing was changed."
        )
    live = set(equal)
    return [at for at in range(len(rows)) if at not in live]


def _check_new(
    service: UnlearningService,
    rows: RecordRows,
    places: list[int],
    data: Path,
    again: bool,
) -> int:
    """Refuse rows that cannot be learned; how many of them were deleted before."""
    deleted, blocked = service.find_deleted(rows.ids)
    if blocked:
        raise ValueError(
            f"{data.name}, row {places[blocked[0]] + 1}: this id was asked to be"
            f" forgotten before it was learned ({len(blocked):,} such rows). Leave it"
            " out. Nothing was changed."
        )
    if deleted and not again:
        raise ValueError(
            f"{data.name}, row {places[deleted[0]] + 1}: the record of this id was"
            f" deleted ({len(deleted):,} such rows). Leave it out; or, if its owner"
            " wants it back, add --again. Nothing was changed."
        )
    refused = service.check_rows(rows.X, rows.y, rows.subjects)
    if refused:
        raise ValueError(
            f"{data.name}, row {places[refused[0]] + 1}: the mode of this service takes"
            f" no such label or features ({len(refused):,} such rows). Nothing was"
            " changed."
        )
    return len(deleted)
