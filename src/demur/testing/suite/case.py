"""One audit of one engine, or of a build of it that is broken on purpose."""

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
        """So many runs, where `quick` are enough to refute the twins."""
        return quick * {"quick": 1, "standard": 5, "deep": 50}[self]


@dataclass(frozen=True)
class Case:
    """What is audited, and how.

    A *twin* (`broken` says what is wrong with it) must be refuted, everything else
    must not be. Twins take `Size.QUICK` samples always: power is shown where it is
    smallest. `run(size, seed)` audits; another seed is another sample.
    """

    engine: str
    name: str
    level: Level
    run: Callable[[Size, int], AuditResult]
    broken: str | None = None

    def audit(self, size: Size = Size.QUICK, seed: int = 0) -> Found:
        """Run the audit."""
        return Found(self, self.run(Size.QUICK if self.broken else size, seed))

    def __str__(self) -> str:
        what = f"{self.name}, {self.broken}" if self.broken else self.name
        return f"{self.engine}: {what} ({self.level})"


@dataclass(frozen=True)
class Found:
    """The outcome of a case."""

    case: Case
    result: AuditResult

    @property
    def as_it_should(self) -> bool:
        """Sound builds are not refuted and twins are."""
        return self.result.refuted is (self.case.broken is not None)

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "engine": self.case.engine,
            "name": self.case.name,
            "broken": self.case.broken,
            "as_it_should": self.as_it_should,
            "result": self.result.to_json(),
        }


@contextmanager
def broken(module: ModuleType, name: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """One function of a module replaced for a while: how a twin is built.

    For this process alone, and not safe beside other threads: twins run one by one.
    """
    right = getattr(module, name)
    setattr(module, name, wrong)
    try:
        yield
    finally:
        setattr(module, name, right)
