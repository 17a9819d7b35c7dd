"""Audits: tests that try to refute a privacy claim, at several levels of access."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.audit.black_box import audit as audit
    from demur.audit.black_box import audit_scores as audit_scores
    from demur.audit.claim import Claim as Claim
    from demur.audit.claim import Shape as Shape
    from demur.audit.deletion import audit_deletion as audit_deletion
    from demur.audit.distributions import Law as Law
    from demur.audit.distributions import law_of as law_of
    from demur.audit.errors import NoPower as NoPower
    from demur.audit.noise_tests import draws_needed as draws_needed
    from demur.audit.noise_tests import independence_test as independence_test
    from demur.audit.noise_tests import noise_test as noise_test
    from demur.audit.noise_tests import repeat_test as repeat_test
    from demur.audit.notes import audits_of as audits_of
    from demur.audit.one_run.canaries import Canaries as Canaries
    from demur.audit.one_run.canaries import audit_canaries as audit_canaries
    from demur.audit.one_run.canaries import flip_coins as flip_coins
    from demur.audit.one_run.guesses import audit_one_run as audit_one_run
    from demur.audit.one_run.sampled_runs import audit_sampled_run as audit_sampled_run
    from demur.audit.replays import Breach as Breach
    from demur.audit.replays import ReplayResult as ReplayResult
    from demur.audit.replays import Violation as Violation
    from demur.audit.replays import replay as replay
    from demur.audit.result import AuditResult as AuditResult
    from demur.audit.result import Level as Level
    from demur.audit.sensitivity_search import search_sensitivity as search_sensitivity
    from demur.audit.shared_noise import shared_noise_test as shared_noise_test
    from demur.core.errors import DatasetsInWrongOrder as DatasetsInWrongOrder

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
