"""No core dumps of a process that holds a noise key or rows.

A process that is aborted writes its memory to a file where the system is set up so, and
JAX aborts the processes of a run when one of them is lost. That file has the entry's
key and the rows, outlives the process, and is often collected by a service. Two
switches are needed:

- the soft limit RLIMIT_CORE is 0. It stops dumps into files, and programs that this
  process starts inherit it; they may raise it again, as the hard limit is left alone;
- PR_SET_DUMPABLE is 0 (Linux). Dumps that are piped to a collector (a `core_pattern`
  that begins with "|": systemd-coredump, apport) ignore the limit of 0. It also keeps
  other processes of the same user from attaching (ptrace, `/proc/PID/mem`); root can.

It is done again with each key, because a library may have raised the limit since. Swap
and hibernation are not covered, nor is a debugger that runs as root. Whoever wants to
debug sets DEMUR_CORE_DUMPS=allow, and answers for the files.
"""

from __future__ import annotations

import ctypes
import os
import resource
from functools import cache
from typing import Any

_SET_DUMPABLE = 4  # PR_SET_DUMPABLE of <linux/prctl.h>
_ALLOWED = "allow"


def switch_off() -> None:
    """Let the system write no memory of this process to disk when it is aborted."""
    if os.environ.get("DEMUR_CORE_DUMPS") == _ALLOWED:
        return
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    prctl = _prctl()
    if prctl is not None:
        prctl(_SET_DUMPABLE, 0, 0, 0, 0)


@cache
def _prctl() -> Any:
    """The system call's wrapper in the C library; None where there is none."""
    return getattr(ctypes.CDLL(None), "prctl", None)
