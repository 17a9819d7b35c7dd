"""`demur train CONFIG.toml`: a private MLP, CNN or transformer on a file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli.shell import AsJson, console, print_json, written

if TYPE_CHECKING:
    from demur.core.entry import Entry


def train(
    config: Annotated[
        Path,
        typer.Argument(help="What to train, and on what.", metavar="CONFIG.toml"),
    ],
    as_json: AsJson = False,
) -> None:
    """Train a private model as CONFIG.toml says, and write its parameters.

    The file has the tables data, model, privacy, training and output; examples and
    classes in it are public numbers. A run with a ledger can be interrupted: the same
    command takes it up at its last checkpoint and pays nothing more.
    """
    from demur.cli.spending import told_on_interrupt
    from demur.core.errors import BudgetExceeded
    from demur.ledger import Ledger

    try:
        from demur.training.command import read_config, run
    except ModuleNotFoundError as error:
        raise ValueError(
            f"training needs JAX ({error.name} is missing): pip install 'demur[jax]'"
        ) from error
    said = read_config(config)
    own = _own_checkpoint(said, config.parent)
    ledger = _ledger(said, config.parent)

    def go_on(new: list[Entry]) -> str:
        if ledger is None:
            return "Nothing was recorded, and the steps made are lost. Run it again."
        return (
            "The same command goes on from the last checkpoint with the noise it would"
            " have had, and pays nothing more: run it again."
        )

    with told_on_interrupt(
        None if ledger is None else lambda: Ledger.open(ledger), go_on
    ):
        new = own is not None and not own.exists()
        try:
            done = run(said, config.parent)
        except BudgetExceeded:
            if own is not None and new:
                shutil.rmtree(own, ignore_errors=True)
            raise
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
    if as_json:
        print_json(
            {
                "written": str(done.model),
                "digest": done.digest,
                "statement": done.statement,
                "test_accuracy": done.test_accuracy,
            }
        )
        return
    console.print(done.statement, highlight=False, markup=False)
    written(f"{done.model} ({done.digest[:12]})")
    if done.test_accuracy is not None:
        console.print(f"accuracy on the test file: {done.test_accuracy:.4f}")


def _own_checkpoint(said: dict[str, dict[str, Any]], home: Path) -> Path | None:
    """Where a run with a ledger is kept, if the file names no place; gone when done."""
    output = said["output"]
    if "ledger" not in output or "checkpoint" in output:
        return None
    output["checkpoint"] = f"{output['model']}.run"
    return home / str(output["checkpoint"])


def _ledger(said: dict[str, dict[str, Any]], home: Path) -> str | None:
    named = said["output"].get("ledger")
    if not isinstance(named, str):
        return None
    return named if "://" in named else str(home / named)
