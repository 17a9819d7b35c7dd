"""Audit cases: one audit of an engine, or of a broken twin of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

from demur.audit import AuditResult, Level


class Size(StrEnum):
    """How large the samples are."""

    QUICK = "quick"
    STANDARD = "standard"
    DEEP = "deep"

    def of(self, quick: int) -> int:
        """The number of runs, where `quick` are enough to refute the twins."""
        return quick * {"quick": 1, "standard": 5, "deep": 50}[self]


@dataclass(frozen=True)
class Case:
    """One audit of one engine.

    A *twin* (`broken` states its error) must be refuted, everything else must not be.
    Twins always use `Size.QUICK` samples, where the power is smallest.
    `run(size, seed)` audits; another seed is another sample. A case that is `full`
    takes too long for `Size.QUICK`.
    """

    engine: str
    name: str
    level: Level
    run: Callable[[Size, int], AuditResult]
    broken: str | None = None
    full: bool = False

    def audit(self, size: Size = Size.QUICK, random_state: int = 0) -> Outcome:
        """Run the audit."""
        return Outcome(
            self, self.run(Size.QUICK if self.broken else size, random_state)
        )

    def __str__(self) -> str:
        what = f"{self.name}, {self.broken}" if self.broken else self.name
        return f"{self.engine}: {what} ({self.level})"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    case: Case
    result: AuditResult

    @property
    def as_expected(self) -> bool:
        """Whether a correct build is not refuted, or a twin is."""
        return self.result.refuted is (self.case.broken is not None)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "engine": self.case.engine,
            "name": self.case.name,
            "broken": self.case.broken,
            "as_expected": self.as_expected,
            "result": self.result.to_json(),
        }


@contextmanager
def broken(
    module: ModuleType | type, name: str, wrong: Callable[..., Any]
) -> Iterator[None]:
    """Replace one function of a module or class inside the block, to build a twin.

    Not thread-safe: twins run one after another.
    """
    right = getattr(module, name)
    setattr(module, name, wrong)
    try:
        yield
    finally:
        setattr(module, name, right)
