"""Contract checks for mechanisms, estimators and plans, of demur or your package."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.testing.builders import Example as Example
    from demur.testing.discovery import discover as discover
    from demur.testing.errors import ContractBroken as ContractBroken
    from demur.testing.errors import NoExample as NoExample
    from demur.testing.result import Check as Check
    from demur.testing.result import CheckResult as CheckResult
    from demur.testing.run import check_estimator as check_estimator
    from demur.testing.run import check_mechanism as check_mechanism
    from demur.testing.run import check_plan as check_plan
    from demur.testing.run import check_selection as check_selection
    from demur.testing.run import checks_on as checks_on
    from demur.testing.run import generate_checks as generate_checks
    from demur.testing.run import run_all as run_all
    from demur.testing.selection import SelectionCase as SelectionCase
    from demur.testing.subject import Subject as Subject

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
