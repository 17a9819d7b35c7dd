"""Logs of a service: one of requests, one of who came in and who was refused.

Both are lines of JSON. They hold names of people, routes, ledgers and outcomes, and no
token, label, reason, body or query: those may be private, and what matters of them is
in the chain.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import traceback
from pathlib import Path
from typing import Any

from demur.durable import clock, private_files

requests = logging.getLogger("demur.serve")


def log_request(**facts: Any) -> None:
    """One line of the request log."""
    requests.info(json.dumps({"time": clock.now()} | facts, ensure_ascii=True))


def log_defect(error: BaseException) -> None:
    """One line about an error of demur's own: its kind and where, without its words.

    The words of an error of a library may repeat what it was given.
    """
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    where = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    facts = {"time": clock.now(), "defect": type(error).__name__, "where": where}
    requests.error(json.dumps(facts, ensure_ascii=True))


class AccessLog:
    """Sign-ins and refusals, in a private file or nowhere."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Add a line."""
        if self._path is None:
            return
        line = json.dumps({"time": clock.now(), "event": event} | facts) + "\n"
        with self._lock:
            descriptor = private_files.open_to_append(self._path)
            try:
                os.write(descriptor, line.encode("ascii", "replace"))
            finally:
                os.close(descriptor)

    def tail(self, lines: int = 200) -> list[dict[str, Any]]:
        """The last lines, newest first."""
        if self._path is None or not self._path.exists():
            return []
        content = private_files.read(self._path, most=400 * lines)
        whole = content.splitlines()[-lines:]
        parsed = []
        for line in reversed(whole):
            try:
                parsed.append(json.loads(line))
            except ValueError:
                continue  # the first one may be cut off
        return parsed
