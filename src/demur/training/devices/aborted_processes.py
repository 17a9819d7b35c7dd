"""A process that JAX aborts because another was lost ends with a name and a code.

JAX's client ends the process by `abort()` when its coordinator is gone, when a process
has sent no sign of life for the time-out, or when the others are not there for the
shutdown; it gives Python no say. `abort()` raises SIGABRT in the thread that calls it,
so a handler of the C library's own `signal` runs before the process ends. (Python's
`signal.signal` only notes a signal for later, which does not come.) It says
`ProcessLost` and leaves by `_exit`: no stack, no core, no atexit of a half-dead run.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

EXIT_CODE = os.EX_TEMPFAIL  # "try again later", as a scheduler understands it
_TEXT = (
    "\nProcessLost: JAX has ended this process, as it does when another process of the"
    " run has died or cannot be reached (its own message is above). What was paid stays"
    " paid; with a checkpoint, start all processes again and the run is resumed where"
    " it was.\n"
)
_handler: Any = None  # as long as the process lives


def name_them() -> None:
    """From now on an abort of this process says what it is for, and exits."""
    global _handler

    def aborted(_: int) -> None:
        os.write(2, _TEXT.encode())
        os._exit(EXIT_CODE)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    _handler = kind(aborted)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = [ctypes.c_int, kind], ctypes.c_void_p
    install(signal.SIGABRT, _handler)
