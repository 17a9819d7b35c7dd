"""A process that has imported the large packages and forks for every program.

It has one thread and has started no backend of JAX, so that a fork is a fresh process:
`main` refuses to serve otherwise.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

READ_AT_IMPORT = ("JAX_", "NUMBA_", "OMP_", "OPENBLAS_", "MPL")
LARGE = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "dp_accounting.pld.privacy_loss_distribution",
    "jax.numpy",
    "matplotlib.pyplot",
    "numba",
    "optax",
    "pandas",
    "psycopg",
    "pyarrow.parquet",
    "rich.table",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.mixture",
    "sklearn.pipeline",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "typer",
)


def main(address: str) -> Callable[[], None]:
    """Serve until the process that offered it ends; in a child, return its program."""
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    for name in LARGE:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    gc.collect()
    gc.freeze()
    offered = os.pidfd_open(int(Path(address).name))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".new")
    listener.listen(64)
    os.rename(address + ".new", address)  # a client that finds it can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for minders
    waiting: list[Any] = [listener, offered]
    while True:
        if offered in select.select(waiting, [], [])[0]:
            shutil.rmtree(Path(address).parent)
            sys.exit()
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return minded(link)
        link.close()


def minded(link: socket.socket) -> Callable[[], None]:
    """Fork once more: the child returns its program, the parent minds it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(link, 8, 3)
    left, text = int.from_bytes(size, "big"), b""
    while len(text) < left:
        text += link.recv(left - len(text))
    asked = json.loads(text)
    child = os.fork()
    if child == 0:
        link.close()
        return prepared(asked, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    while True:
        waiting: list[Any] = [link, ended]
        ready, _, _ = select.select(waiting, [], [])
        if ended in ready:
            break
        got = link.recv(1)
        os.kill(child, got[0] if got else signal.SIGKILL)
        if not got:  # the client was killed
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    link.sendall(status.to_bytes(4, "big", signed=True))
    os._exit(0)


def prepared(asked: dict[str, Any], files: list[int]) -> Callable[[], None]:
    """Become the process that the client is; returns what it has to run."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    for name in set(os.environ) | set(asked["env"]):
        if name.startswith(READ_AT_IMPORT):
            assert os.environ.get(name) == asked["env"].get(name), name
    os.environ.clear()
    os.environ.update(asked["env"])
    words = list(asked["words"])
    filters = os.environ.get("PYTHONWARNINGS", "")
    while words and words[0] == "-W":
        filters, words = words[1], words[2:]
    assert filters in ("", "error"), filters
    if filters:
        # Last in the list, as the command line's are when packages add theirs.
        kept = [f for f in warnings.filters if f[0] == "ignore" and f[1] is not None]
        warnings.resetwarnings()
        warnings.filters.extend(kept)
        warnings.simplefilter("error", append=True)
    assert words and words[0] not in ("-", "-i"), words
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        name = words[1]
        return lambda: _ignored(runpy.run_module(name, None, "__main__", True))
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        code = compile(words[1], "<string>", "exec")
        return lambda: exec(code, {"__name__": "__main__"})
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    return lambda: _ignored(runpy.run_path(words[0], None, "__main__"))


def _ignored(_: object) -> None:
    """Nothing is done with what a program leaves in its names."""


if __name__ == "__main__":
    main(sys.argv[1])()
