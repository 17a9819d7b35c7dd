"""Results in notebooks: HTML and pictures of results, a line after each charge, a bar.

What is drawn is in `demur.report` (`views`, `pictures`), above the engines. It is
looked up by its name when somebody asks for it, so that no result imports a drawing
library, and nothing down here depends on what lies above.
"""

from __future__ import annotations

import os
import sys
from html import escape
from importlib import import_module
from typing import Any

_VIEWS, _PICTURES = "demur.report.views", "demur.report.pictures"


class Displayed:
    """Mixin of results that a notebook shows as HTML, and that can be drawn."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        shown: str = import_module(_VIEWS).html(self)
        return shown

    def plot(self, axes: Any = None) -> Any:
        """Draw it with matplotlib, on `axes` or on a new figure; returns the axes."""
        return import_module(_PICTURES).plot(self, axes)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def announcing() -> bool:
    """Whether a line is printed after each charge: in notebooks, unless told otherwise.

    DEMUR_ANNOUNCE=0 switches it off, and 1 on, anywhere.
    """
    wanted = os.environ.get("DEMUR_ANNOUNCE", "")
    return wanted == "1" or (wanted != "0" and in_notebook())


class NotebookBar:
    """A progress bar in a notebook, drawn again in its place."""

    def __init__(self, total: int) -> None:
        self.total = max(1, total)
        self._handle: Any = None

    def show(self, step: int, state: str) -> None:
        """Draw the bar after `step` steps, with a few words beside it."""
        share = 100.0 * min(1.0, step / self.total)
        page = (
            f'<div role="progressbar" aria-valuenow="{share:.0f}" style="display:flex;'
            'gap:.75em;align-items:center"><div style="width:16em;height:.6em;'
            'border-radius:9em;background:#8884"><div style="height:100%;'
            f'border-radius:9em;background:#2f88c2;width:{share:.1f}%"></div></div>'
            f"<span>step {step} of {self.total}, {escape(state)}</span></div>"
        )
        tools = import_module("IPython.display")
        if self._handle is None:
            self._handle = tools.display(tools.HTML(page), display_id=True)
        else:
            self._handle.update(tools.HTML(page))
