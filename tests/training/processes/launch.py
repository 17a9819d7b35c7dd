"""Start the worker in several processes on the loopback; collect what they found."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compilation import QUICK

ROOT = Path(__file__).parents[3]
HEARTBEAT_S = 10


@dataclass(frozen=True)
class Ended:
    """One process: how it ended, and what it found by scenario."""

    code: int
    output: str
    found: dict[str, Any]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def may_dump() -> None:
    """As after `ulimit -c unlimited`, in a process that is to be started."""
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def launch(
    count: int,
    folder: Path,
    *scenarios: str,
    timeout: float = 600.0,
    sharded: bool = False,
    module: str = "worker",
) -> list[Ended]:
    """All processes to their end; none is left behind, whatever happens.

    `sharded` runs cut their parameters over eight devices, those of all processes.
    """
    flags = ["--xla_cpu_multi_thread_eigen=false", *QUICK]
    if sharded:
        flags.append(f"--xla_force_host_platform_device_count={8 // count}")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join(flags),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "DEMUR_SHARDED": "1" if sharded else "0",
    }
    port, began = free_port(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    running, outputs = [], []
    for index in range(count):
        output = folder / f"output-{index}.txt"
        command = [sys.executable, "-m", f"tests.training.processes.{module}"]
        command += [str(port), str(count), str(index), str(folder), *scenarios]
        with output.open("w") as file:
            running.append(
                subprocess.Popen(
                    command,
                    cwd=folder,  # where a core dump would be
                    preexec_fn=may_dump,
                    env=environment,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        outputs.append(output)
    ended: list[Ended] = []
    try:
        for index, (process, output) in enumerate(zip(running, outputs, strict=True)):
            left = timeout - (time.monotonic() - began)
            code = process.wait(max(1.0, left))
            found = {
                path.name.removesuffix(f"-{index}.json"): json.loads(path.read_text())
                for path in folder.glob(f"*-{index}.json")
            }
            ended.append(Ended(code, output.read_text(), found))
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return ended
