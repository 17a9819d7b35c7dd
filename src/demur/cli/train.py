"""`demur train CONFIG.toml`: a private MLP, CNN or transformer on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[
        Path,
        typer.Argument(help="What to train, and on what.", metavar="CONFIG.toml"),
    ],
) -> None:
    """Train a private model as CONFIG.toml says, and write its parameters.

    The file has the tables data, model, privacy, training and output; examples and
    classes in it are public numbers.
    """
    from demur.cli.main import _plain_errors, console
    from demur.training.command import read_config, run

    with _plain_errors():
        done = run(read_config(config), config.parent)
        console.print(done.statement, highlight=False)
        console.print(f"written: {done.model} ({done.digest[:12]})", soft_wrap=True)
        if done.test_accuracy is not None:
            console.print(f"accuracy on the test file: {done.test_accuracy:.4f}")
