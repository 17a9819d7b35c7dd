"""Choices and checks of `demur reports` before the work, and bars of its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from demur.cli.ledger.options import ChargedLedger
from demur.cli.shell import progress_console

if TYPE_CHECKING:
    from demur.core.adjacency import Unit


class Algorithm(StrEnum):
    """Which model is fitted to the reports."""

    KMEANS = "kmeans"
    GMM = "gmm"
    TMM = "tmm"


class DecoderName(StrEnum):
    """How the server undoes the noise."""

    NOISE_AWARE = "noise_aware"
    CLIP = "clip"
    PLAIN = "plain"


def units_of(charged: ChargedLedger | None, price: float | None) -> tuple[Unit, ...]:
    """The units of the ledger that is charged, where a price is to be met at one."""
    if charged is None or price is None:
        return ()
    if charged.budgets is not None:
        return tuple(charged.budgets)
    with charged.read() as opened:
        return tuple(unit for unit, _ in opened.terms.budgets)


def must_have_room(*files: Path | None) -> None:
    """Refuse a place that cannot be written to before the work, not after it."""
    for path in files:
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"there is no folder {path.parent}")
        if path is not None and path.is_dir():
            raise ValueError(f"{path} is a folder")


def must_be_picture(path: Path | None) -> None:
    """Refuse a file whose name is not that of a picture."""
    if path is not None:
        from demur.cli.local_report_plots import kind_of_picture

        kind_of_picture(path)


def charged_before(charged: ChargedLedger | None, key: str | None) -> bool:
    """Whether a job of this key has been paid for, so that its output may be there."""
    from demur.core.errors import LedgerMissing

    if charged is None or key is None:
        return False
    try:
        with charged.read() as opened:
            return opened.find(key) is not None
    except LedgerMissing:
        return False


@contextmanager
def stage_bars() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each stage of the work."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=progress_console(), transient=True) as progress:

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield tell
