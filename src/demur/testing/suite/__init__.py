"""Audit suite: audits of every engine, and of broken twins that must be refuted."""

from demur.testing.suite.case import Case as Case
from demur.testing.suite.case import Outcome as Outcome
from demur.testing.suite.case import Size as Size
from demur.testing.suite.run import ENGINES as ENGINES
from demur.testing.suite.run import all_cases as all_cases
from demur.testing.suite.run import lacking as lacking
from demur.testing.suite.run import run_suite as run_suite
