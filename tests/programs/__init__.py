"""Programs that tests start, without the seconds that imports take.

`python()` is the beginning of a command, as `[sys.executable]` is: a small client of a
server that has the large packages imported and forks for every program
(`tests.programs.server`). The client passes on its arguments, folder, environment and
open files, and ends as the program ends.

A test that kills a program needs the program's own process id: a signal to the client
is passed on a little later. Where the system has no pidfd (not Linux), programs are
started as they are.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ADDRESS = "DEMUR_TEST_PROGRAMS"  # the environment variable with the server's address
SERVER, CLIENT = (
    Path(__file__).with_name(f"{name}.py") for name in ("server", "client")
)


def offer() -> None:
    """In the process that starts the workers: let whoever needs it start a server."""
    own = str(os.getpid())
    place = Path(tempfile.gettempdir(), f"demur-programs-{own}-{time.time_ns()}", own)
    os.environ[ADDRESS] = str(place)


def python() -> list[str]:
    """The beginning of a command that runs Python."""
    # A sabotage is applied when a Python starts, and may start threads in the server.
    if not hasattr(os, "pidfd_open") or "DEMUR_SABOTAGE" in os.environ:
        return [sys.executable]
    address = Path(os.environ[ADDRESS])
    address.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        address.with_suffix(".started").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        # Nobody waits for it: it ends by itself.
        os.posix_spawn(sys.executable, [sys.executable, SERVER, address], os.environ)
    return [sys.executable, "-I", "-S", str(CLIENT)]


def commands(folder: Path) -> Path:
    """A folder for PATH with `python` and `demur`, for programs in a shell."""
    folder.mkdir()
    start = " ".join(f'"{word}"' for word in python())
    demur = Path(sys.executable).with_name("demur")
    for name, command in (("python", start), ("demur", f'{start} "{demur}"')):
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder
