"""Contracts that everything which spends must keep; run them on your own as well.

Names are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.checks.discovery import discover as discover
    from demur.checks.result import Check as Check
    from demur.checks.result import CheckResult as CheckResult
    from demur.checks.result import ContractBroken as ContractBroken
    from demur.checks.run import check_estimator as check_estimator
    from demur.checks.run import check_mechanism as check_mechanism
    from demur.checks.run import check_plan as check_plan
    from demur.checks.run import check_selection as check_selection
    from demur.checks.run import checks_on as checks_on
    from demur.checks.run import generate_checks as generate_checks
    from demur.checks.run import run_all as run_all
    from demur.checks.selection import Selection as Selection
    from demur.checks.subject import Subject as Subject

_HOME = {
    "discover": "discovery",
    "Check": "result",
    "CheckResult": "result",
    "ContractBroken": "result",
    "check_estimator": "run",
    "check_mechanism": "run",
    "check_plan": "run",
    "check_selection": "run",
    "checks_on": "run",
    "generate_checks": "run",
    "run_all": "run",
    "Selection": "selection",
    "Subject": "subject",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demur.checks' has no attribute {name!r}")
    value = getattr(import_module(f"demur.checks.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
