"""Many processes that begin together, for benchmarks of what they share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def in_processes(
    count: int, work: Callable[[int, Callable[[], None]], object]
) -> list[Any]:
    """What `work(number, ready)` returns in each of `count` processes.

    They wait in `ready` for each other.
    """
    waiting, start = os.pipe()
    pipes = []
    for number in range(count):
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(start)

                def ready(send: int = send) -> None:
                    os.write(send, b"ready\n")
                    os.read(waiting, 1)

                found = json.dumps(work(number, ready)).encode()
                with os.fdopen(send, "wb") as file:
                    file.write(found)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(send)
        pipes.append((pid, os.fdopen(receive)))
    for _, pipe in pipes:
        assert pipe.readline() == "ready\n", "a client failed"
    os.close(start)
    os.close(waiting)
    answers = []
    for pid, pipe in pipes:
        answers.append(json.loads(pipe.read()))
        os.waitpid(pid, 0)
        pipe.close()
    return answers
