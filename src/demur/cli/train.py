"""`demur train CONFIG.toml`: DP training of an MLP, a CNN or a transformer."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli.ledger.options import (
    BudgetOption,
    ChargedLedger,
    Create,
    KeysFolder,
    PasswordFile,
    SigningKey,
)
from demur.cli.shell import AsJson, console, print_json, written

if TYPE_CHECKING:
    from demur.core.entry import Entry
    from demur.ledger import Ledger


def train(
    config: Annotated[
        Path,
        typer.Argument(help="Model, data and privacy.", metavar="CONFIG.toml"),
    ],
    create: Create = False,
    budget: BudgetOption = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Train a private model by CONFIG.toml, and write its parameters.

    The file has the tables data, model, privacy, training and output; examples and
    classes in it are public numbers. A run with a ledger can be interrupted: the same
    command resumes it at its last checkpoint and pays nothing more.
    """
    from demur.cli.interrupts import explain_interrupt
    from demur.core.errors import BudgetExceeded

    try:
        from demur.training.config_file import read_config, run
    except ModuleNotFoundError as error:
        raise ValueError(
            f"training needs JAX ({error.name} is missing): pip install 'demur[jax]'"
        ) from error
    tables = read_config(config)
    own = _own_checkpoint(tables, config.parent)
    ledger = ChargedLedger.of(
        _ledger(tables, config.parent), create, budget, signing_key, password_file, keys
    )

    def go_on(new: list[Entry]) -> str:
        if ledger is None:
            return "Nothing was recorded, and the steps so far are lost. Run it again."
        return (
            "Run the same command again: it resumes from the last checkpoint with the"
            " noise it would have had, and pays nothing more."
        )

    with explain_interrupt(None if ledger is None else ledger.read, go_on):
        new = own is not None and not own.exists()
        try:
            result = run(tables, config.parent, open_ledger=partial(_open, ledger))
        except BudgetExceeded:
            if own is not None and new:
                shutil.rmtree(own, ignore_errors=True)
            raise
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
    if as_json:
        print_json(
            {
                "written": str(result.model),
                "digest": result.digest,
                "statement": result.statement,
                "test_accuracy": result.test_accuracy,
            }
        )
        return
    console.print(result.statement, highlight=False, markup=False)
    written(f"{result.model} ({result.digest[:12]})")
    if result.test_accuracy is not None:
        console.print(f"accuracy on the test file: {result.test_accuracy:.4f}")


def _own_checkpoint(tables: dict[str, dict[str, Any]], home: Path) -> Path | None:
    """The checkpoint of a run whose file names none; deleted when the run is done."""
    output = tables["output"]
    if "ledger" not in output or "checkpoint" in output:
        return None
    output["checkpoint"] = f"{output['model']}.run"
    return home / str(output["checkpoint"])


def _ledger(tables: dict[str, dict[str, Any]], home: Path) -> str | None:
    named = tables["output"].get("ledger")
    if not isinstance(named, str):
        return None
    return named if "://" in named else str(home / named)


def _open(charged: ChargedLedger | None, dataset: str) -> Ledger | None:
    if charged is None:
        return None
    # A plan is one (epsilon, delta) block, and a pure filter adds blocks up.
    return charged.open(dataset=dataset, filter="pure")
