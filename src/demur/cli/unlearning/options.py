"""Options of commands about a deletion service, and how they open it.

Secrets are never arguments: a passphrase is asked for, or comes from the environment.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from demur.cli.ledger.options import load_key
from demur.cli.shell import errors
from demur.core import validate
from demur.core.errors import DemurError, LedgerMissing

if TYPE_CHECKING:
    from demur.unlearning import ServiceLimits, UnlearningService
    from demur.unlearning.records.memory_key import MemoryKey
    from demur.unlearning.records.tables import ServiceStore

PASSPHRASE = "DEMUR_PASSPHRASE"
CERTIFICATES = Path("certificates")

ServiceAddress = Annotated[
    str,
    typer.Argument(help="A file, sqlite:///... or postgresql://...", metavar="SERVICE"),
]
MemoryKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--memory-key",
        help="Remember ids of deleted records under this key file, which lies outside"
        " of the service's folder and is made by `open`.",
    ),
]
PassphraseFlag = Annotated[
    bool,
    typer.Option(
        "--passphrase",
        help=f"The same with a passphrase: from {PASSPHRASE}, or asked for.",
    ),
]
ServiceKeys = Annotated[
    Path | None,
    typer.Option("--keys", help="Folder of the service's secrets (default: beside)."),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option("--signing-key", help="Ed25519 key of certificates, a PEM file."),
]
KeptTip = Annotated[
    str | None,
    typer.Option(
        "--tip",
        help="A tip that was kept, SEQUENCE:HASH, or a file of one: an older copy is"
        " refused.",
    ),
]
SharedLedger = Annotated[
    str | None,
    typer.Option("--ledger", help="Charge this ledger instead of the service's own."),
]
IdColumn = Annotated[str, typer.Option("--id", help="The column of record ids.")]
LabelColumn = Annotated[str, typer.Option("--label", help="The column of y.")]
SubjectColumn = Annotated[
    str | None,
    typer.Option("--subject", help="The column of ids of persons."),
]
FeatureColumns = Annotated[
    str | None,
    typer.Option(help="Feature columns, separated by commas (default: all others)."),
]
CertificateFolder = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="Folder for certificates with openings: hand them over."
    ),
]


LimitPerson = Annotated[
    int | None,
    typer.Option(
        help="Noise that one person may cause in a period, in first requests of one"
        " record; 0: any."
    ),
]
LimitDays = Annotated[float | None, typer.Option(help="The days of that period.")]
LimitNoise = Annotated[
    float | None,
    typer.Option(help="The most noise of deletions in a score (default: any)."),
]


def limits(
    person: int | None, days: float | None, score_noise: float | None
) -> ServiceLimits | None:
    """The owner's limits, with the library's own where one is not named.

    None if none is: a request that waits then keeps those that it was made under.
    """
    from demur.unlearning import ServiceLimits

    if person is None and days is None and score_noise is None:
        return None
    named: dict[str, Any] = {}
    if person is not None:
        if person:  # in the words of the options, not of `ServiceLimits`
            validate.count(limit_person=person)
        named["noise"] = None if person == 0 else person
    if days is not None:
        validate.positive(limit_days=days)
    if score_noise is not None:
        validate.positive(limit_noise=score_noise)
    if days is not None:
        named["days"] = days
    return ServiceLimits(score_noise=score_noise, **named)


def memory_key(
    file: Path | None, passphrase: bool, *, new: bool = False
) -> MemoryKey | None:
    """The key of a service's memory that the options name."""
    from demur.unlearning import Passphrase

    if file is not None and passphrase:
        raise ValueError("give --memory-key or --passphrase, not both")
    if not passphrase:
        return file
    text = os.environ.get(PASSPHRASE)
    if text is None:
        try:
            text = str(
                typer.prompt(
                    "passphrase of the service's memory",
                    hide_input=True,
                    confirmation_prompt=new,
                    err=True,
                )
            )
        except typer.Abort as error:
            raise ValueError(
                f"--passphrase needs one: type it when asked, or set {PASSPHRASE}."
                " Nothing was changed."
            ) from error
    return Passphrase(text)


@contextmanager
def opened(
    address: str,
    *,
    keys: Path | None = None,
    memory: MemoryKey | None = None,
    signing_key: Path | None = None,
    password_file: Path | None = None,
    ledger: str | None = None,
    tip: str | None = None,
    create: bool = False,
    certificates: Path | None = None,
    **terms: Any,
) -> Iterator[UnlearningService]:
    """The service at an address, to write; `create` alone makes one.

    A request that a crash cut short is carried out by this opening, and its certificate
    goes to the folder `certificates`: nobody else will get its opening. So the folder
    is looked at before.
    """
    from demur.cli.ledger.options import read_tip
    from demur.cli.unlearning.handover import Handover, check_place
    from demur.durable import private_files
    from demur.durable.store import shown_address
    from demur.ledger import Ledger
    from demur.unlearning import ServiceMismatch, UnlearningService
    from demur.unlearning.records.tables import ServiceStore

    refuse_evidence(address)
    store = ServiceStore(address, read_only=True)
    try:
        exists = store.exists()
        interrupted = exists and _interrupted(store)
    finally:
        store.close()
    if exists and create:
        raise ServiceMismatch(
            f"there is a service at {shown_address(address)} already: `demur unlearn"
            " status` shows it. Nothing was changed."
        )
    if not create:
        _require(address, exists)
    place = certificates or CERTIFICATES
    if interrupted or certificates is not None:
        try:
            check_place(place, address, keys)
            if interrupted:
                private_files.make_folder(place)
        except (ValueError, DemurError, OSError) as error:
            if certificates is None:
                error.add_note(
                    "A request that was interrupted is to be carried out first: run"
                    " `demur unlearn queue SERVICE --process -o FOLDER`."
                )
            raise
    with ExitStack() as resources, warnings.catch_warnings():
        warnings.showwarning = _show_warning
        charged = None
        if ledger is not None:
            try:
                charged = resources.enter_context(Ledger.open(ledger))
            except LedgerMissing as error:
                raise no_ledger(ledger) from error
        service = resources.enter_context(
            UnlearningService.open(
                address,
                keys=keys,
                memory_key=memory,
                signing_key=load_key(signing_key, password_file),
                tip=read_tip(tip),
                ledger=charged,
                **terms,
            )
        )
        if service.recovered:
            for path in Handover(place).write(service.recovered):
                _show_warning(
                    "an interrupted request was carried out; its certificate, for"
                    f" whoever asked: {path}"
                )
        yield service


def no_ledger(address: str) -> LedgerMissing:
    """There is no ledger at an address, and no command here makes one."""
    from demur.durable.store import shown_address

    return LedgerMissing(
        f"there is no ledger at {shown_address(address)} (--ledger). `demur ledger"
        " create` makes one. Nothing was changed."
    )


def refuse_evidence(address: str) -> None:
    """Refuse an evidence file where a service is to be named."""
    from demur.unlearning import ServiceMismatch
    from demur.unlearning.records.evidence import is_evidence

    if is_evidence(address):
        raise ServiceMismatch(
            "this is an evidence file, which has no model: `demur unlearn verify`"
            " checks it. Name the service. Nothing was changed."
        )


def _require(address: str, exists: bool) -> None:
    """Refuse an address without a service."""
    from demur.durable.store import shown_address
    from demur.unlearning import ServiceMismatch

    if not exists:
        raise ServiceMismatch(
            f"there is no deletion service at {shown_address(address)}: `demur unlearn"
            " open` makes one. Nothing was created."
        )


def _interrupted(store: ServiceStore) -> bool:
    """Whether opening this service to write would carry out a request."""
    from demur.unlearning.records import journal, queue
    from demur.unlearning.records.read_errors import readable

    with readable(), store.read() as connection:
        if journal.open_intent(connection) is not None:
            return True
        return any(q.reason == queue.INTERRUPTED for q in queue.waiting(connection))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning of the service as one line, without a place in the code."""
    line = f"[bold yellow]warning:[/] {escape(' '.join(str(message).split()))}"
    errors.print(line, highlight=False, soft_wrap=True)


def opened_to_read(
    address: str, keys: Path | None = None, memory: MemoryKey | None = None
) -> UnlearningService:
    """The service at an address, to read; a running one is not disturbed."""
    from demur.unlearning import UnlearningService
    from demur.unlearning.records.tables import ServiceStore

    refuse_evidence(address)
    store = ServiceStore(address, read_only=True)
    try:
        _require(address, store.exists())
    finally:
        store.close()
    return UnlearningService.open(address, keys=keys, memory_key=memory, read_only=True)
