"""Options of commands that read or charge a ledger, and how they open it.

A command that only reads opens the ledger to be read. One that charges makes a ledger
only if `--create` says so together with its `--budget`: a ledger that nobody decided on
is a second budget.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from demur.cli.shell import errors
from demur.core.errors import LedgerMismatch, LedgerMissing, LedgerUnreachable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from demur.cli.interrupts import InterruptGuard
    from demur.core.adjacency import Unit
    from demur.ledger import Budget, Ledger

Address = Annotated[
    str,
    typer.Argument(
        help="A file, sqlite:///..., postgresql://... or https://HOST/ledgers/NAME.",
        metavar="LEDGER",
    ),
]
TipOption = Annotated[
    str | None,
    typer.Option(help="An exported tip, SEQUENCE:HASH, or a file that holds one."),
]
Signer = Annotated[
    str | None, typer.Option(help="The signer's public key, in hexadecimal.")
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Price every sampled plan anew, which takes longer."),
]
LedgerOption = Annotated[
    str | None, typer.Option("--ledger", help="Charge this ledger.")
]
Create = Annotated[
    bool,
    typer.Option("--create", help="Make the ledger if there is none, with --budget."),
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        help="Of the new ledger, as in replace-one:2:1e-6; may be repeated.",
        metavar="UNIT:EPSILON[:DELTA]",
    ),
]
SigningKey = Annotated[
    Path | None,
    typer.Option("--signing-key", help="The ledger's Ed25519 key, a PEM file."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="Holds the password of the signing key; default: ask for it."),
]
KeysFolder = Annotated[
    Path | None,
    typer.Option("--keys", help="Folder of noise keys (default: beside the ledger)."),
]


def open_to_read(address: str, budgets: Any = None) -> Ledger:
    """The ledger at this address, opened to be read."""
    from demur.durable.store import shown_address
    from demur.ledger import Ledger

    try:
        return Ledger.open(address, budgets=budgets, read_only=True)
    except LedgerMissing as error:
        raise LedgerMissing(
            f"there is no ledger at {shown_address(address)}. `demur ledger create`"
            " makes one. Nothing was created."
        ) from error
    except LedgerUnreachable as error:
        if not _was_cut_off(error):
            raise
    # A writer was killed in its commit. What it did not finish was never acknowledged,
    # and whoever opens the file to write undoes it.
    Ledger.open(address).close()
    return Ledger.open(address, budgets=budgets, read_only=True)


def _was_cut_off(error: LedgerUnreachable) -> bool:
    driver = getattr(error.__cause__, "orig", None)
    code = getattr(driver, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_READONLY_ROLLBACK


def read_tip(tip: str | None) -> str | None:
    """A tip as text; `tip` may also be the name of a file that holds one."""
    if tip is not None and Path(tip).is_file():
        return Path(tip).read_text()
    return tip


def load_key(
    signing_key: Path | None, password_file: Path | None
) -> Ed25519PrivateKey | None:
    """The signing key in a file, with its password from a file or from a prompt."""
    from demur.durable import private_files
    from demur.ledger import load_signing_key

    if signing_key is None:
        if password_file is not None:
            raise ValueError("--password-file needs --signing-key. Nothing was spent.")
        return None
    if password_file is not None:
        password = private_files.read_file(password_file).rstrip(b"\r\n")
        return load_signing_key(signing_key, password)
    try:
        return load_signing_key(signing_key)
    except ValueError as error:
        # cryptography's TypeError: there is a password, and none was given.
        if not isinstance(error.__cause__, TypeError):
            raise
    try:
        asked = typer.prompt(f"password of {signing_key}", hide_input=True, err=True)
    except typer.Abort as error:
        raise ValueError(
            f"the signing key {signing_key} needs a password: give --password-file, or"
            " type it when asked. Nothing was spent."
        ) from error
    return load_signing_key(signing_key, str(asked))


@dataclass(frozen=True)
class ChargedLedger:
    """The ledger that a command charges; with `budgets` it may make it."""

    address: str
    budgets: Mapping[Unit, Budget] | None
    signer: Ed25519PrivateKey | None
    keys: Path | None

    @classmethod
    def of(
        cls,
        ledger: str | None,
        create: bool,
        budget: list[str] | None,
        signing_key: Path | None,
        password_file: Path | None,
        keys: Path | None,
    ) -> ChargedLedger | None:
        """What the options name, checked before the command begins its work."""
        from demur.cli.ledger.terms import parse_budgets

        if ledger is None:
            if create or budget or signing_key or password_file or keys:
                raise ValueError(
                    "--create, --budget, --signing-key, --password-file and --keys are"
                    " about a ledger: name it. Nothing was spent."
                )
            return None
        if create and not budget:
            raise ValueError(
                "--create needs the budget of the new ledger: --budget UNIT:EPSILON or"
                " UNIT:EPSILON:DELTA, as in --budget add-or-remove-one:2:1e-6. Nothing"
                " was created or spent."
            )
        if budget and not create:
            raise ValueError(
                "--budget is that of a ledger to be made: give --create as well."
                " Nothing was created or spent."
            )
        budgets = parse_budgets(budget) if budget else None
        charged = cls(ledger, budgets, load_key(signing_key, password_file), keys)
        charged._check()
        return charged

    def _check(self) -> None:
        """Refuse what `open` would refuse, before hours of work."""
        try:
            opened = open_to_read(self.address, self.budgets)
        except LedgerMissing as error:
            if self.budgets is None:
                raise self._missing() from error
            return
        with opened:
            signs_here = opened.terms.signer is not None and not opened._store.remote
            if signs_here and self.signer is None:
                raise LedgerMismatch(
                    "this ledger is signed: give its key with --signing-key. Nothing"
                    " was spent."
                )

    def _missing(self) -> LedgerMissing:
        from demur.durable.store import shown_address

        return LedgerMissing(
            f"there is no ledger at {shown_address(self.address)}. Make one with `demur"
            " ledger create`, or let this command make it: --create --budget"
            " UNIT:EPSILON:DELTA. Nothing was created or spent."
        )

    def read(self) -> Ledger:
        """The ledger, opened to be read: for what was charged so far."""
        return open_to_read(self.address)

    def open(
        self,
        *,
        dataset: str,
        filter: str | None = None,
        guard: InterruptGuard | None = None,
    ) -> Ledger:
        """The ledger, or a new one, which is announced.

        A new ledger keeps its budgets even if the command fails later. Whoever repeats
        the command with another epsilon must know that.
        """
        from demur.cli.interrupts import GuardedLedger
        from demur.core.rounding import printed_down
        from demur.durable.store import shown_address
        from demur.ledger import Ledger

        kind = Ledger if guard is None else GuardedLedger
        own: dict[str, Any] = {"signing_key": self.signer, "keys": self.keys}
        try:
            opened = kind.open(self.address, **own)
        except LedgerMissing as error:
            if self.budgets is None:
                raise self._missing() from error
            terms: dict[str, Any] = {"dataset": dataset, "budgets": self.budgets}
            opened = kind.open(self.address, filter=filter, **terms, **own)
            for unit, budget in self.budgets.items():
                errors.print(
                    f"a new ledger, {escape(shown_address(self.address))}: epsilon"
                    f" {printed_down(budget.epsilon)} at delta"
                    f" {printed_down(budget.delta)} for {escape(str(unit))}",
                    highlight=False,
                    soft_wrap=True,
                )
        if guard is not None:
            assert isinstance(opened, GuardedLedger)
            opened.guard = guard
        return opened
