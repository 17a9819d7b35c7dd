"""`demur train CONFIG.toml`: DP training of a network, or of a text classifier."""

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
from demur.cli.tuning import HeldBack, Tune, check_options, parse_grid

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
    tune: Tune = None,
    held_back: HeldBack = 0.2,
    as_json: AsJson = False,
) -> None:
    """Train a private model by CONFIG.toml, and write its parameters.

    With --tune training.learning_rate=0.5,2,8 it trains a secret number of times, for
    one payment of [privacy] epsilon, and writes the best run.

    With kind = "text" it is a classifier of texts, from a Hugging Face encoder in a
    local folder; the result is a folder that transformers loads. The file has the
    tables data, model, privacy, training and output; examples and classes in it are
    public. A run with a ledger can be interrupted: the same command resumes it at its
    last checkpoint and pays nothing more.
    """
    from demur.cli.interrupts import explain_interrupt
    from demur.core.errors import BudgetExceeded

    check_options(held_back)
    try:
        from demur.training.config_file import kind_of_model, read_config, run
    except ModuleNotFoundError as error:
        raise ValueError(
            f"training needs JAX ({error.name} is missing): pip install 'demur[jax]'"
        ) from error
    if kind_of_model(config) == "text":
        if tune:
            raise ValueError(
                '--tune is not for kind = "text" yet: leave it out. Nothing was spent.'
            )
        try:
            from demur.adapters.huggingface.text_jobs import read_text_job, run_text_job
        except ImportError as error:
            raise ValueError(str(error)) from error
        tables, run = read_text_job(config), run_text_job
    else:
        tables = read_config(config)
    # A search writes nothing before it is done: checkpoints would tell its runs.
    own = None if tune else _own_checkpoint(tables, config.parent)
    ledger = ChargedLedger.of(
        _ledger(tables, config.parent), create, budget, signing_key, password_file, keys
    )

    def go_on(new: list[Entry]) -> str:
        if ledger is None:
            return "Nothing was recorded, and the steps so far are lost. Run it again."
        if tune:
            return "A search that was paid for stays spent; another is charged again."
        return (
            "Run the same command again: it resumes from the last checkpoint with the"
            " noise it would have had, and pays nothing more."
        )

    with explain_interrupt(None if ledger is None else ledger.read, go_on):
        new = own is not None and not own.exists()
        try:
            opening = partial(_open, ledger)
            if tune:
                from demur.tuning.config_search import search_config

                result = search_config(
                    tables,
                    config.parent,
                    parse_grid(tune),
                    open_ledger=opening,
                    share=held_back,
                )
            else:
                result = run(tables, config.parent, open_ledger=opening)
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
