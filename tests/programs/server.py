"""A process that has imported the large packages and forks for every program.

It has one thread and has started no backend of JAX, so that a fork is a fresh process:
`main` refuses to serve otherwise.
"""

from __future__ import annotations

import contextlib
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who offered it
    offered = os.pidfd_open(int(Path(address).name))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".new")
    listener.listen(64)
    os.rename(address + ".new", address)  # a client that finds it can connect
    clients: dict[int, socket.socket] = {}  # by what tells that their program ended
    processes: dict[int, int] = {}
    while True:
        waiting: list[Any] = [listener, offered, *clients, *clients.values()]
        ready, _, _ = select.select(waiting, [], [])
        if offered in ready:
            shutil.rmtree(Path(address).parent)
            sys.exit()
        for ended, link in list(clients.items()):
            if ended in ready:
                told_the_end(link, processes.pop(ended))
                os.close(ended)
                clients.pop(ended).close()
            elif link in ready and not passed_on(link, processes[ended]):
                # The client was killed, and its program with it: nobody is told.
                os.waitpid(processes.pop(ended), 0)
                os.close(ended)
                clients.pop(ended).close()
        if listener in ready:
            link, _ = listener.accept()
            asked, files = request(link)
            if asked is None:
                link.close()
                continue
            child = os.fork()
            if child == 0:
                for number in [listener, offered, link, *clients, *clients.values()]:
                    os.close(number if isinstance(number, int) else number.detach())
                return prepared(asked, files)
            for file in files:
                os.close(file)
            ended = os.pidfd_open(child)
            clients[ended], processes[ended] = link, child


def request(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A client's arguments, folder and environment, if it lives, and its open files."""
    size, files, _, _ = socket.recv_fds(link, 8, 3)
    left, text = int.from_bytes(size, "big"), b""
    while len(text) < left and (more := link.recv(left - len(text))):
        text += more
    if text and len(text) == left:
        return json.loads(text), files
    for file in files:
        os.close(file)
    return None, []


def passed_on(link: socket.socket, process: int) -> bool:
    """Pass a signal on; without a client the process is killed."""
    got = link.recv(1)
    os.kill(process, got[0] if got else signal.SIGKILL)
    return bool(got)


def told_the_end(link: socket.socket, process: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # the client was killed just now
        link.sendall(status.to_bytes(4, "big", signed=True))


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
    if words[:1] == ["-u"]:
        words = words[1:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
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
