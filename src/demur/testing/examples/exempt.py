"""Exemptions: what takes a ledger and needs no example, each with its reason.

Only helpers are exempt by package, never a mechanism, an estimator or a plan; tests
check that packages listed as readers do not charge.
"""

from __future__ import annotations

from demur.testing.discovery import Candidate, SubjectKind

_READS = "reads a ledger and never charges"
_INNER = "an inner step of a release that is checked where users call it"
_HEAD = "converts a model at the border and calls release_head, which is checked"
_JAVA = "needs a Java machine; tests/adapters/spark has its refusals"
_SEED = "a seed's spelling over a release that is checked; tests/compat has its tests"

EXEMPT = {
    "demur.adapters.equinox.release:release_equinox": _HEAD,
    "demur.adapters.linear:release_linear": _HEAD,
    "demur.adapters.spark.local_reports:privatize": _JAVA,
    "demur.adapters.spark.local_reports:write_reports": _JAVA,
    "demur.adapters.torch.release:release_torch": _HEAD,
    "demur.cluster.noisy_lloyd:run_lloyd": "run by the example of NoisyLloyd",
    "demur.cluster.files.report_job:make_reports": (
        "runs BPM over files; tests/cluster/test_report_job.py has its refusals"
    ),
    "demur.compat.ball_dp.parameter_releases:dp_release_eqx_model_gaussian": _SEED,
    "demur.compat.ball_dp.parameter_releases:dp_release_erm_params_gaussian": _SEED,
    "demur.compat.ball_dp.parameter_releases:dp_release_from_flat_params": _SEED,
    "demur.compat.ball_dp.prototype_releases:dp_release_ridge_prototypes_gaussian": (
        _SEED
    ),
    "demur.compat.ball_dp.parameter_releases:dp_release_torch_model_gaussian": _SEED,
    "demur.compat.ball_dp.releases:ReleaseOptions": "arguments; it charges nothing",
    "demur.compat.ball_dp.mechanisms:add_gaussian_noise": _SEED,
    "demur.compat.ball_dp.radius:dp_quantile_exponential_mechanism": _SEED,
    "demur.compat.bpm.sampling:bpm_sampling": _SEED,
    "demur.compat.memory_pair.src.odometer:PrivacyOdometer": _SEED,
    "demur.convex.heads.noisy_gd:descend": "run by the example of Descent",
    "demur.convex.release:head_ledger": "opens a ledger and charges nothing",
    "demur.mechanisms.reports:check_idempotency_key": (
        "checks an argument and charges nothing"
    ),
    "demur.mechanisms.reports:privatize_rows": _INNER,
    "demur.training.plans.plan:ledger_and_delta": "opens a ledger and charges nothing",
    "demur.training.plans.base_config:BasePlanConfig": (
        "the base of configs, incomplete by itself"
    ),
    "demur.training.run.charges:PaymentTerms": _INNER,
    "demur.training.run.charges:run_declaration": _READS,
    "demur.training.run.checkpoints.elastic:PaidDraws": (
        "names the lines of a paid run in its ledger and never charges"
    ),
    "demur.training.run.trainer:fit": "run by the examples of both plans",
    "demur.tuning.plan_search:search_plans": (
        "a PrivateSearch over plans, both checked; tests/tuning has its refusals"
    ),
    "demur.unlearning.records.influence_certificate:InfluenceCertificate": (
        "names a ledger by its digest and never charges"
    ),
    "demur.unlearning.records.certificate:Certificate": (
        "names a ledger by its digest and never charges"
    ),
    "demur.unlearning.service.certificate_checks:number_problems": _READS,
    "demur.unlearning.service.certificate_verification:verify_certificate": _READS,
    "demur.unlearning.service.certificate_verification:verify_evidence": _READS,
    "demur.unlearning.service.charges:is_committed": _READS,
    "demur.unlearning.service.charges:newest_committed": _READS,
    "demur.unlearning.service.charges:publication_entries": _READS,
    "demur.unlearning.service.charges:recorded_entries": _READS,
    "demur.unlearning.service.publication:left": _READS,
    "demur.unlearning.service.opening:open_to_read": _READS,
    "demur.unlearning.service.opening:open_service": (
        "a service on disk; tests/unlearning/test_service.py has its contract"
    ),
    "demur.unlearning.service.charges:DeletionCharges": (
        "a service's own; charged by its deletions alone"
    ),
}

# Packages whose functions read ledgers, or write notes into them, and never charge.
READERS = {
    "demur.audit": "writes notes on entries and never charges",
    "demur.ledger": "the ledger itself",
    "demur.report": _READS,
}
_HELPERS = {
    "demur.cli": "a step of a command; what the command calls is checked",
    "demur.testing": "the contracts themselves, which run on ledgers in memory",
}


def reason(candidate: Candidate) -> str | None:
    """Why a candidate needs no example; None if it needs one."""
    if candidate.name in EXEMPT:
        return EXEMPT[candidate.name]
    if candidate.kind is not SubjectKind.SPENDER:
        return None
    package = ".".join(candidate.name.split(".")[:2])
    return (READERS | _HELPERS).get(package)
