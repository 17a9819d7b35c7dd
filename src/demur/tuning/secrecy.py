"""While the runs of a search are under way: nothing is told, printed, logged or kept.

**Silence.** Python's streams, warnings and loggers are quiet, and the file descriptors
1 and 2 lead to the null device, for what C libraries and child processes write there.
All of that belongs to the process, not to a thread: what other threads print or log
meanwhile is lost too, a fatal crash of the interpreter included. Where several threads
search, it lasts until the last of them is done. A descriptor that a run opened by
itself, and a file that it writes, are its own affair.

**Compiled programs.** Which programs JAX compiles follows from the settings that ran.
A persistent cache that JAX was told to keep is off meanwhile, for reading and writing.

**Interrupts.** An exception leads to the frames that it passed through, and those know
how many runs there are. So whatever stops a search is caught inside; what is raised
outside is new: of the same kind, with nothing of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from demur.tuning.errors import SearchInterrupted

_EVERY_LEVEL = sys.maxsize  # of loggers: a level may be above CRITICAL
_BARE = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
_JAX_CACHE = "jax.experimental.compilation_cache.compilation_cache"
_LOCK = threading.Lock()
_STATE: dict[str, Any] = {"searches": 0, "undo": None}


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Nothing is printed, logged, warned about or cached on disk in the block."""
    with _LOCK:
        if _STATE["searches"] == 0:
            with contextlib.ExitStack() as stack:
                for quiet in (_streams, _descriptors, _loggers, _compiled_programs):
                    stack.enter_context(quiet())
                _STATE["undo"] = stack.pop_all()
        _STATE["searches"] += 1
    try:
        yield
    finally:
        with _LOCK:
            _STATE["searches"] -= 1
            if _STATE["searches"] == 0:
                _STATE.pop("undo").close()


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _descriptors() -> Iterator[None]:
    """1 and 2 lead to the null device; what was buffered before still gets out."""
    _flush()
    kept = {}
    for number in (1, 2):
        with contextlib.suppress(OSError):  # closed, as in a daemon
            kept[number] = os.dup(number)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(null, number)
        yield
    finally:
        _flush()  # into the null device
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)


def _flush() -> None:
    """Python's own buffers, and those of C libraries."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def _loggers() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(_EVERY_LEVEL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _compiled_programs() -> Iterator[None]:
    """JAX's persistent cache is off, where JAX is loaded and keeps one."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.config.jax_compilation_cache_dir:
        yield
        return
    cache = importlib.import_module(_JAX_CACHE)
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    cache.reset_cache()  # it remembers whether it was on
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        cache.reset_cache()


def told(stop: BaseException) -> BaseException:
    """What may be raised outside in place of `stop`: its kind, and no more.

    The exit code of SystemExit is kept if it is a number.
    """
    if isinstance(stop, SystemExit):
        plain = stop.code is None or type(stop.code) is int
        return SystemExit(stop.code if plain else 1)
    for kind in _BARE:
        if isinstance(stop, kind):
            return kind()
    words = (
        f"the search was stopped by {type(stop).__name__}, and nothing more is told."
        " The entry is spent; with an idempotency key the same call repeats the same"
        " runs."
    )
    return (
        RuntimeError(words) if isinstance(stop, Exception) else SearchInterrupted(words)
    )
