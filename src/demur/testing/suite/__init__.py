"""Every engine before an adversary, and broken twins that the adversary must refute."""

from demur.testing.suite.case import Case as Case
from demur.testing.suite.case import Found as Found
from demur.testing.suite.case import Size as Size
from demur.testing.suite.run import ENGINES as ENGINES
from demur.testing.suite.run import all_cases as all_cases
from demur.testing.suite.run import lacking as lacking
from demur.testing.suite.run import run_suite as run_suite
