"""The bar of a run: step, epsilon so far, steps a second. Public numbers alone."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Shows where a run is, or does nothing."""

    def __init__(
        self,
        iterations: int,
        start: int,
        visible: bool,
        console: Console | None = None,
    ) -> None:
        self.visible = visible
        self._progress: Progress | None = None
        if visible:
            self._progress = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.fields[told]}"),
                TimeRemainingColumn(),
                console=console or Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(
                "training", total=iterations, completed=start, told=""
            )

    def show(self, step: int, epsilon: float, rate: float) -> None:
        """The state after `step` steps."""
        if self._progress is not None:
            told = f"epsilon {epsilon:.3g} so far, {rate:.1f} steps/s"
            self._progress.update(self._task, completed=step, told=told)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._progress is not None:
            self._progress.stop()


def bar(iterations: int, start: int, wanted: bool | None) -> Bar:
    """A bar on stderr; without a wish, only where somebody is looking."""
    visible = sys.stderr.isatty() if wanted is None else wanted
    return Bar(iterations, start, visible)
