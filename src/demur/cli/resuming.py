"""A job that a second run of the same command takes up: its key lies beside its output.

The key is an idempotency key: the ledger knows by it that the job is paid for. It is
made before the charge and removed when the job is done or was declined.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from demur.core import validate
from demur.core.errors import BudgetExceeded, IdempotencyConflict, NoiseReuse
from demur.durable.whole_files import sync_folder, took_name, written_aside


class Job:
    """The name of one job, kept in `.OUTPUT.job` while it is unfinished."""

    def __init__(self, output: Path, *, wanted: bool) -> None:
        self._output = output
        self.path = output.with_name(f".{output.name}.job")
        self._wanted = wanted
        self._key: str | None = None

    @property
    def begun(self) -> bool:
        """Whether an earlier run was not finished."""
        return self._wanted and os.path.lexists(self.path)

    def key(self, given: str | None) -> str | None:
        """The caller's own key, the unfinished job's, or a new one."""
        if not self._wanted:
            return given
        # Another run of this job may finish, and remove its file, at any time.
        while (found := self._kept()) is None:
            self._begin()
        self._key = found
        return found

    def known(self, given: str | None) -> str | None:
        """The caller's own key, or the unfinished job's, if there is one."""
        return self._kept() if self._wanted else given

    def _kept(self) -> str | None:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            if not self.path.is_symlink():
                return None
            text = ""  # a link to nowhere holds the name, and says nothing
        try:
            found = json.loads(text)["idempotency_key"]
            validate.name(idempotency_key=found)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} is damaged: remove it to begin anew (a paid job that it"
                " named would be paid for again)"
            ) from error
        return str(found)

    def _begin(self) -> None:
        name = json.dumps({"idempotency_key": f"job {secrets.token_hex(16)}"})
        aside = written_aside(self.path, name)
        try:
            # Of two that begin at once the first one names the job: it is paid once.
            took_name(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)
        sync_folder(self.path.parent)  # what is paid for under it outlives a power cut

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._wanted and issubclass(kind, IdempotencyConflict):
            raise ValueError(
                f"{self.path} names a job that was paid for with other data or another"
                " mechanism. Give those again, or remove the file to begin a new job."
                " Nothing was spent."
            )
        if kind is not None and self._wanted and issubclass(kind, NoiseReuse):
            there = f" {self._output} is there." if self._output.exists() else ""
            raise ValueError(
                f"{self.path} names a job that is finished, or whose noise is not on"
                f" this machine.{there} Remove the job's file; another run is then a"
                " new job, which pays anew. Nothing was spent."
            )
        over = kind is None or issubclass(kind, BudgetExceeded)
        # Once another run has finished this job, the file may name the next one.
        if over and self._key is not None and self._kept() == self._key:
            self.path.unlink(missing_ok=True)
