"""Progress bar of a run: step, epsilon so far, steps a second; public numbers alone."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from demur.core.display import NotebookBar, in_notebook


class ProgressBar:
    """A bar on the console, or nothing if it is not visible."""

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
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=console or Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(
                "training", total=iterations, completed=start, state=""
            )

    def show(self, step: int, epsilon: float, rate: float) -> None:
        """The state after `step` steps."""
        if self._progress is not None:
            state = f"epsilon {epsilon:.3g} so far, {rate:.1f} steps/s"
            self._progress.update(self._task, completed=step, state=state)

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._progress is not None:
            self._progress.stop()


class NotebookProgress(ProgressBar):
    """The same bar in a notebook."""

    def __init__(self, iterations: int, start: int) -> None:
        super().__init__(iterations, start, visible=False)
        self.visible, self._bar, self._drawn = True, NotebookBar(iterations), 0.0

    def show(self, step: int, epsilon: float, rate: float) -> None:
        """The state after `step` steps, drawn twice a second at most."""
        now = time.monotonic()
        if step == self._bar.total or now - self._drawn > 0.5:
            self._drawn = now
            state = f"epsilon {epsilon:.3g} so far, {rate:.1f} steps/s"
            self._bar.show(step, state)


def progress_bar(iterations: int, start: int, wanted: bool | None) -> ProgressBar:
    """A bar on stderr or in a notebook; if `wanted` is None, on a terminal or there."""
    if in_notebook() and wanted is not False:
        return NotebookProgress(iterations, start)
    visible = sys.stderr.isatty() if wanted is None else wanted
    return ProgressBar(iterations, start, visible)
