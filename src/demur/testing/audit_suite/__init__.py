"""Audit suite: audits of every engine, and of broken twins that must be refuted."""

from demur.testing.audit_suite.case import Case as Case
from demur.testing.audit_suite.case import Outcome as Outcome
from demur.testing.audit_suite.case import Size as Size
from demur.testing.audit_suite.run import ENGINES as ENGINES
from demur.testing.audit_suite.run import all_cases as all_cases
from demur.testing.audit_suite.run import lacking as lacking
from demur.testing.audit_suite.run import left_out as left_out
from demur.testing.audit_suite.run import run_suite as run_suite
