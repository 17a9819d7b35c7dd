"""Checks and their results: one contract on one subject."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from demur.testing.errors import ContractBroken

_LONGEST_REASON = 3000


def require(holds: object, why: str) -> None:
    """Raise `ContractBroken` with the reason unless `holds`."""
    if not holds:
        raise ContractBroken(why)


@dataclass(frozen=True)
class CheckResult:
    """One contract on one subject: whether it holds, and if not, why."""

    name: str
    subject: str
    ok: bool
    why: str = ""

    def __str__(self) -> str:
        outcome = "ok" if self.ok else f"BROKEN: {self.why}"
        return f"{self.subject}: {self.name}: {outcome}"


@dataclass(frozen=True)
class Check:
    """A contract that is not yet run; calling it raises if the contract is broken."""

    name: str
    subject: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Run the contract, and raise `ContractBroken` if it does not hold."""
        self.run()

    def result(self) -> CheckResult:
        """Run the contract; whatever it raises becomes the reason."""
        try:
            self.run()
        except ContractBroken as broken:
            return CheckResult(self.name, self.subject, False, _short(str(broken)))
        except Exception as error:  # a subject may fail in any way
            why = f"{type(error).__name__}: {error}"
            return CheckResult(self.name, self.subject, False, _short(why))
        return CheckResult(self.name, self.subject, True)

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"


def checks_of(
    name: str, contracts: Iterable[Callable[[Any], None]], subject: Any
) -> list[Check]:
    """A check for each contract, named after its function."""
    return [
        Check(_words(contract.__name__), name, functools.partial(contract, subject))
        for contract in contracts
    ]


def run_checks(
    checks: Iterable[Check], *, raise_on_failure: bool = False
) -> tuple[CheckResult, ...]:
    """The results in order; `raise_on_failure` raises all broken contracts at once."""
    results = tuple(check.result() for check in checks)
    if raise_on_failure:
        raise_broken(results)
    return results


def raise_broken(results: Iterable[CheckResult]) -> None:
    """Raise one `ContractBroken` that lists every broken contract, if any."""
    broken = [str(result) for result in results if not result.ok]
    if broken:
        raise ContractBroken("\n".join(broken))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."
