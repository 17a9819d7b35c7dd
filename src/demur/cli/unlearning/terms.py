"""`demur unlearn open`, `status` and `publish`: a service, how it stands, its copy."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.ledger.options import PasswordFile
from demur.cli.shell import AsJson, console, print_json
from demur.cli.unlearning.options import (
    CertificateKey,
    MemoryKeyFile,
    PassphraseFlag,
    ServiceAddress,
    ServiceKeys,
    SharedLedger,
    memory_key,
    opened,
    opened_to_read,
)
from demur.cli.unlearning.streams import ModeName, ScopeName
from demur.cli.unlearning.streams import unlearn_app as unlearn_app
from demur.core import validate

if TYPE_CHECKING:
    from demur.unlearning import UnlearningService


class StoreName(StrEnum):
    """Whether records are kept."""

    NONE = "none"
    ENCRYPTED = "encrypted"


class ServiceAccounting(StrEnum):
    """How deletions compose."""

    GDP = "gdp"
    ZCDP = "zcdp"


class AnswersName(StrEnum):
    """What answers: the model itself, or published copies."""

    LIVE = "live"
    PUBLISHED = "published"


@unlearn_app.command("open")
def open_command(
    address: ServiceAddress,
    dimension: Annotated[int, typer.Option(help="How many features.")],
    mode: Annotated[ModeName, typer.Option(help="How to learn and forget.")] = (
        ModeName.OGD
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Budget of deletions (ridge has none); with --answers published, that"
            " of all copies as well."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Keep it well below 1/n.")] = None,
    scope: Annotated[
        ScopeName, typer.Option(help="One person's records, or all deleted.")
    ] = ScopeName.SUBJECT,
    accounting: Annotated[
        ServiceAccounting | None, typer.Option(help="Default: gdp.")
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="How many deletions noise is planned for.")
    ] = None,
    requests_per_subject: Annotated[
        int | None, typer.Option(help="Requests of one person (default: any number).")
    ] = None,
    record_store: Annotated[
        StoreName, typer.Option(help="Keep records, each under a key of its own.")
    ] = StoreName.NONE,
    answers: Annotated[
        AnswersName, typer.Option(help="The model itself, or published copies alone.")
    ] = AnswersName.LIVE,
    publications: Annotated[
        int | None, typer.Option(help="How many copies may be published.")
    ] = None,
    every: Annotated[
        int | None, typer.Option(help="Publish by itself after so many inserts.")
    ] = None,
    records_per_subject: Annotated[
        int | None, typer.Option(help="Live records of one person, with publications.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Labels, separated by commas, or the number of classes."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Of the mode itself, as in lam=0.1; may be repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Make a new deletion service. Its terms never change.

    Store the tip that is printed elsewhere: a service that was put in its place does
    not contain it, whatever its terms.
    """
    with (
        _says_what_was_made(),
        opened(
            address,
            create=True,
            keys=keys,
            memory=memory_key(memory, passphrase, new=True),
            signing_key=signing_key,
            password_file=password_file,
            ledger=ledger,
            mode=mode.value,
            dimension=dimension,
            epsilon=epsilon,
            delta=delta,
            scope=scope.value,
            accounting=accounting.value if accounting else None,
            capacity=capacity,
            requests_per_subject=requests_per_subject,
            record_store=record_store.value,
            answers=_answers(answers, publications, every, records_per_subject),
            **_mode_options(option, classes),
        ) as service,
    ):
        _print_status(service, as_json)


@contextmanager
def _says_what_was_made() -> Iterator[None]:
    """Around an opening: a refusal of the library says that nothing was created."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if "Nothing was" in str(error) or type(error) not in (ValueError, TypeError):
            raise
        said = str(error).rstrip(".")
        raise type(error)(f"{said}. Nothing was created.") from error


def _answers(
    answers: AnswersName,
    publications: int | None,
    every: int | None,
    records_per_subject: int | None,
) -> Any:
    """What `UnlearningService.open` takes as its answers."""
    from demur.unlearning.pricing.publications import Publications

    named = {
        "count": publications,
        "every": every,
        "records_per_subject": records_per_subject,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if answers is AnswersName.PUBLISHED:
        if publications is not None:
            validate.count(publications=publications)
        return Publications(**given)
    if given:
        raise ValueError(
            "--publications, --every and --records-per-subject are for --answers"
            " published. Nothing was created."
        )
    return None


def _taken() -> set[str]:
    """Keywords that are those of the service, and of no mode."""
    from demur.unlearning import UnlearningService

    return {
        name
        for function in (opened, UnlearningService.open)
        for name in inspect.signature(function).parameters
    }


def _mode_options(option: list[str] | None, classes: str | None) -> dict[str, Any]:
    """The mode's own options: numbers, words, true and false."""
    options: dict[str, Any] = {}
    for text in option or []:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--option must be like lam=0.1; got {text[:40]!r}")
        if name in _taken():
            raise ValueError(
                f"--option {name[:40]}: this is no option of a mode; the command has"
                " its own for it, or none. Nothing was created."
            )
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    if classes is not None:
        labels = [label.strip() for label in classes.split(",")]
        options["classes"] = int(classes) if classes.isdecimal() else labels
    return options


@unlearn_app.command("status")
def status(
    address: ServiceAddress,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    keys: ServiceKeys = None,
    as_json: AsJson = False,
) -> None:
    """Show records, requests, capacity and noise of a service; a running one, too."""
    with opened_to_read(address, keys, memory_key(memory, passphrase)) as service:
        _print_status(service, as_json)


@unlearn_app.command("publish")
def publish(
    address: ServiceAddress,
    memory: MemoryKeyFile = None,
    passphrase: PassphraseFlag = False,
    signing_key: CertificateKey = None,
    password_file: PasswordFile = None,
    keys: ServiceKeys = None,
    ledger: SharedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Publish a new copy of the model, where copies answer; it is paid for."""
    with opened(
        address,
        keys=keys,
        memory=memory_key(memory, passphrase),
        signing_key=signing_key,
        password_file=password_file,
        ledger=ledger,
    ) as service:
        service.publish()
        _print_status(service, as_json)


def _print_status(service: UnlearningService, as_json: bool) -> None:
    now, terms = service.status(), service.terms
    facts = asdict(now) | {
        "tip": str(now.tip),
        "signer": terms.signer,
        "terms": json.loads(terms.to_text()),
    }
    if as_json:
        print_json(facts)
        return
    table = Table("", "", show_header=False)
    for name, value in facts.items():
        if name not in ("terms", "noise", "tip") and value is not None:
            if isinstance(value, bool):
                value = "yes" if value else "no"
            table.add_row(name.replace("_", " "), escape(str(value)))
    console.print(table)
    lines = [f"tip: {now.tip}", str(now.noise)]
    if not now.remembers:
        lines.append(
            "It does not remember ids of deleted records: no second deletion is"
            " refused, and openings are handed out once, with the deletion."
        )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
