"""Every engine before an adversary, and broken twins that the adversary must refute."""

from demur.checks.suite.case import Case as Case
from demur.checks.suite.case import Found as Found
from demur.checks.suite.case import Size as Size
from demur.checks.suite.run import ENGINES as ENGINES
from demur.checks.suite.run import all_cases as all_cases
from demur.checks.suite.run import lacking as lacking
from demur.checks.suite.run import run_suite as run_suite
