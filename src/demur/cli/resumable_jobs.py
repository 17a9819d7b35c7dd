"""Resumable jobs: an idempotency key stored beside the output file.

By this key the ledger finds the entry that paid for the job, when the same command is
run again. It is written before the charge and removed when the job is done or was
declined.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from demur.core import validate
from demur.core.errors import BudgetExceeded, IdempotencyConflict, NoiseReuse
from demur.durable.atomic_files import link_if_free, sync_folder, written_aside


class Job:
    """The idempotency key of one job, in `.OUTPUT.job` until the job is finished."""

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
        while (key := self._stored()) is None:
            self._begin()
        self._key = key
        return key

    def known(self, given: str | None) -> str | None:
        """The caller's own key, or the unfinished job's, if there is one."""
        return self._stored() if self._wanted else given

    def _stored(self) -> str | None:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            if not self.path.is_symlink():
                return None
            text = ""  # a link to nowhere has the name, and no content
        try:
            key = json.loads(text)["idempotency_key"]
            validate.name(idempotency_key=key)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} is damaged: remove it to begin a new job. A job that it"
                " named, if paid for, would be paid for again."
            ) from error
        return str(key)

    def _begin(self) -> None:
        name = json.dumps({"idempotency_key": f"job {secrets.token_hex(16)}"})
        aside = written_aside(self.path, name)
        try:
            # Of two runs that begin at once the first sets the key: it is paid once.
            link_if_free(aside, self.path)
        finally:
            aside.unlink(missing_ok=True)
        sync_folder(self.path.parent)  # durable before anything is paid for under it

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._wanted and issubclass(kind, IdempotencyConflict):
            raise ValueError(
                f"{self.path} belongs to a job that was paid for with other data or"
                " another mechanism. Give those again, or remove the file to begin a"
                " new job. Nothing was spent."
            )
        if kind is not None and self._wanted and issubclass(kind, NoiseReuse):
            there = f" {self._output} is there." if self._output.exists() else ""
            raise ValueError(
                f"{self.path} belongs to a job that is finished, or whose noise is not"
                f" on this machine.{there} Remove the file; another run is then a new"
                " job, with a new charge. Nothing was spent."
            )
        over = kind is None or issubclass(kind, BudgetExceeded)
        # Once another run has finished this job, the file may belong to the next one.
        if over and self._key is not None and self._stored() == self._key:
            self.path.unlink(missing_ok=True)
