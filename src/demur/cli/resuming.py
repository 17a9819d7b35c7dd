"""A job that a second run of the same command takes up: its key lies beside its output.

The key is an idempotency key: the book knows by it that the job is paid for. It is made
before the charge and removed when the job is done or was declined.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from demur.core import validate
from demur.core.errors import BudgetExceeded, IdempotencyConflict, NoiseReuse


class Job:
    """The name of one job, kept in `.OUTPUT.job` while it is unfinished."""

    def __init__(self, output: Path, *, wanted: bool) -> None:
        self.path = output.with_name(f".{output.name}.job")
        self._wanted = wanted

    @property
    def begun(self) -> bool:
        """Whether an earlier run was not finished."""
        return self._wanted and self.path.exists()

    def key(self, given: str | None) -> str | None:
        """The caller's own key, the unfinished job's, or a new one."""
        if not self._wanted:
            return given
        if not self.path.exists():
            made = f"job {secrets.token_hex(16)}"
            part = self.path.with_suffix(".part")
            with part.open("w") as file:
                json.dump({"idempotency_key": made}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
            return made
        try:
            found = json.loads(self.path.read_text())["idempotency_key"]
            validate.name(idempotency_key=found)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.path} is damaged: remove it to begin anew (a paid job that it"
                " named would be paid for again)"
            ) from error
        return str(found)

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
            raise ValueError(
                f"{self.path} names a job that is finished, or whose noise is not on"
                " this machine. Remove the file to begin a new job, which pays anew."
                " Nothing was spent."
            )
        if kind is None or issubclass(kind, BudgetExceeded):
            self.path.unlink(missing_ok=True) if self._wanted else None
