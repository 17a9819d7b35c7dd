"""Processes that an audit starts, and what they bring back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TIMEOUT_S = 900.0
FOUND = "found.npz"  # what the first process writes into the folder


def results_of(
    module: str, arguments: list[list[str]], **environment: str
) -> dict[str, NDArray[np.float64]]:
    """The arrays that the first of these processes wrote; one for each of `arguments`.

    A process is `python -m demur.testing.audit_suite.layouts.MODULE FOLDER ...`. One
    that fails is an error with the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="demur-audit-") as folder:
        with _started(module, folder, arguments, environment) as children:
            told = [child.communicate(timeout=TIMEOUT_S)[0] for child in children]
        for child, output in zip(children, told, strict=True):
            if child.returncode != 0:
                raise RuntimeError(
                    f"an audited process ended with code {child.returncode}:"
                    f" {output[-600:]}"
                )
        with np.load(Path(folder) / FOUND) as found:
            return dict(found)


@contextmanager
def _started(
    module: str,
    folder: str,
    arguments: list[list[str]],
    environment: dict[str, str],
) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes; whatever happens, none is left behind."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # No program that was compiled before a sabotage.
    own |= {"DEMUR_PROGRAMS": os.devnull} | environment
    children: list[subprocess.Popen[str]] = []
    try:
        for each in arguments:
            name = f"demur.testing.audit_suite.layouts.{module}"
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", name, folder, *each],
                    env=own,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        yield children
    finally:
        for child in children:
            with suppress(OSError):
                child.kill()
            child.wait()
