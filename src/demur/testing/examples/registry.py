"""Table of examples: how each discovered class or function is built for the contracts.

Keys are "module:name", so that nothing is loaded before it is needed. A class may have
a class method `_example` that returns an instance instead. Whatever is discovered and
has neither an example nor an exemption is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demur.testing import builders
from demur.testing.discovery import Candidate, SubjectKind
from demur.testing.errors import NoExample
from demur.testing.examples import estimators, mechanisms, plans, searches, spenders
from demur.testing.examples.exempt import reason
from demur.testing.selection import SelectionCase
from demur.testing.subject import Subject

EXAMPLES: dict[str, Callable[[Any], list[Any]]] = {
    "demur.core.declaration:Declaration": mechanisms.declaration,
    "demur.mechanisms.bpm.mechanism:BPM": mechanisms.bpm,
    "demur.mechanisms.exponential:GridQuantile": mechanisms.grid_quantile,
    "demur.mechanisms.gaussian:Gaussian": mechanisms.gaussian,
    "demur.mechanisms.gaussian_reports:GaussianReports": mechanisms.reports,
    "demur.mechanisms.grid_response:GridResponse": mechanisms.reports,
    "demur.mechanisms.laplace_reports:LaplaceReports": mechanisms.reports,
    "demur.convex.heads.noisy_gd:Descent": mechanisms.descent,
    "demur.convex.heads.discriminant:BallDiscriminantClassifier": (
        estimators.discriminant
    ),
    "demur.convex.heads.linear:BallLogisticRegression": estimators.heads,
    "demur.convex.heads.prototype_classifier:BallPrototypeClassifier": (
        estimators.prototypes
    ),
    "demur.convex.heads.linear:BallSVC": estimators.svc,
    "demur.convex.heads.linear:BallSoftmaxClassifier": estimators.heads,
    "demur.preprocessing.private_maps:PrivatePCA": estimators.private_map,
    "demur.preprocessing.private_maps:PrivateStandardScaler": estimators.private_map,
    "demur.cluster.noisy_lloyd:NoisyLloyd": mechanisms.lloyd,
    "demur.cluster.estimators.central_kmeans:CentralKMeans": estimators.central,
    "demur.cluster.estimators.gmm:PrivateGMM": estimators.mixture,
    "demur.cluster.estimators.kmeans:PrivateKMeans": estimators.kmeans,
    "demur.cluster.estimators.tmm:PrivateTMM": estimators.mixture,
    "demur.compat.bpm.clustering.kmeans:PrivateKMeans": estimators.seed_kmeans,
    "demur.unlearning.estimators.linear:UnlearnableClassifier": estimators.classifier,
    "demur.unlearning.estimators.linear:UnlearnableRegressor": estimators.regressor,
    "demur.training.plans.config:BandMFExecutionPlanConfig": plans.banded,
    "demur.training.plans.config:ExecutionPlanConfig": plans.any_plan,
    "demur.training.plans.plan:DPExecutionPlan": plans.made_plan,
    "demur.compat.jax_privacy.experimental.execution_plan:BandMFExecutionPlanConfig": (
        plans.banded
    ),
    "demur.compat.jax_privacy.execution_plan:BandMFConfig": plans.banded_by_count,
    "demur.training.batches.selection:BMinSepSampling": plans.separated,
    "demur.training.batches.selection:BallsInBinsSampling": plans.bins,
    "demur.training.batches.selection:CyclicPoissonSampling": plans.cyclic,
    "demur.training.batches.selection:FixedBatchSampling": plans.fixed,
    "demur.training.batches.selection:RandomAllocationSampling": plans.allocated,
    "demur.training.batches.user_selection:UserSelectionStrategy": plans.users,
    "demur.convex.sensitivity.radius:private_radius": spenders.private_radius,
    "demur.convex.release:release_head": spenders.release_head,
    "demur.unlearning.stream.odometer:PrivacyOdometer": spenders.odometer,
    "demur.tuning.grid_search:PrivateGridSearch": searches.grid_search,
    "demur.tuning.kmeans_search:search_kmeans": searches.kmeans,
    "demur.tuning.scores:NoisyScore": searches.score,
    "demur.tuning.search:PrivateSearch": searches.search,
    "demur.tuning.service_search:search_services": searches.services,
}

_FROM_INSTANCE: dict[SubjectKind, Callable[[Any], Any]] = {
    SubjectKind.MECHANISM: builders.of_example,
    SubjectKind.ESTIMATOR: builders.of_estimator,
    SubjectKind.PLAN: builders.of_plan,
    SubjectKind.SELECTION: lambda strategy: SelectionCase(
        type(strategy).__name__, strategy
    ),
}


def subjects_of(candidate: Candidate) -> list[Subject | SelectionCase]:
    """The subjects that the contracts run on; none if the candidate is exempt.

    Raises `NoExample` if there is neither an example nor an exemption.
    """
    name, kind = candidate.name, candidate.kind
    example = getattr(candidate.definition, "_example", None)
    if callable(example) and kind in _FROM_INSTANCE:
        return [_FROM_INSTANCE[kind](example())]
    if name in EXAMPLES:
        return EXAMPLES[name](candidate.definition)
    if reason(candidate) is not None:
        return []
    raise NoExample(
        f"{name} ({kind}) has no example: add a class method _example() that returns an"
        " instance, or pass an instance to demur.testing"
    )
