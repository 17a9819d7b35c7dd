"""Which example belongs to which class.

Keyed by where a class is defined, so that nothing is loaded before it is needed. A
class may also say so itself, by a class method `_example` that returns an instance.
What is discovered and is in neither table is an error: nobody is left out by silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from demur.testing import builders
from demur.testing.discovery import Found, Kind
from demur.testing.errors import NoExample
from demur.testing.examples import estimators, mechanisms, plans, spenders
from demur.testing.examples.exempt import reason
from demur.testing.selection import Selection
from demur.testing.subject import Subject

EXAMPLES: dict[str, Callable[[Any], list[Any]]] = {
    "demur.core.declaration:Declaration": mechanisms.declaration,
    "demur.mechanisms.bpm.mechanism:BPM": mechanisms.bpm,
    "demur.mechanisms.gaussian:Gaussian": mechanisms.gaussian,
    "demur.mechanisms.gaussian_reports:GaussianReports": mechanisms.reports,
    "demur.mechanisms.laplace_reports:LaplacePerDimension": mechanisms.reports,
    "demur.convex.heads.noisy_gd:Descent": mechanisms.descent,
    "demur.convex.heads.estimators:BallLogisticRegression": estimators.heads,
    "demur.convex.heads.estimators:BallPrototypeClassifier": estimators.prototypes,
    "demur.convex.heads.estimators:BallSVC": estimators.svc,
    "demur.convex.heads.estimators:BallSoftmaxClassifier": estimators.heads,
    "demur.cluster.estimators.gmm:PrivateGMM": estimators.mixture,
    "demur.cluster.estimators.kmeans:PrivateKMeans": estimators.kmeans,
    "demur.cluster.estimators.tmm:PrivateTMM": estimators.mixture,
    "demur.compat.bpm.clustering.kmeans:PrivateKMeans": estimators.seed_kmeans,
    "demur.unlearning.stream.estimators:UnlearnableClassifier": estimators.classifier,
    "demur.unlearning.stream.estimators:UnlearnableRegressor": estimators.regressor,
    "demur.training.plans.config:BandMFExecutionPlanConfig": plans.banded,
    "demur.training.plans.config:ExecutionPlanConfig": plans.any_plan,
    "demur.training.plans.plan:DPExecutionPlan": plans.made_plan,
    "demur.compat.jax_privacy.experimental.execution_plan:BandMFExecutionPlanConfig": (
        plans.banded
    ),
    "demur.training.batches.selection:BMinSepSampling": plans.separated,
    "demur.training.batches.selection:BallsInBinsSampling": plans.bins,
    "demur.training.batches.selection:CyclicPoissonSampling": plans.cyclic,
    "demur.training.batches.selection:FixedBatchSampling": plans.fixed,
    "demur.training.batches.selection:UserSelectionStrategy": plans.users,
    "demur.convex.sensitivity.radius:private_radius": spenders.private_radius,
    "demur.convex.release:release_head": spenders.release_head,
    "demur.unlearning.stream.odometer:PrivacyOdometer": spenders.odometer,
}

_FROM_INSTANCE: dict[Kind, Callable[[Any], Any]] = {
    Kind.MECHANISM: builders.of_mechanism,
    Kind.ESTIMATOR: builders.of_estimator,
    Kind.PLAN: builders.of_plan,
    Kind.SELECTION: lambda made: Selection(type(made).__name__, made),
}


def subjects_of(found: Found) -> list[Subject | Selection]:
    """What the contracts are run on; nothing for what is exempt.

    A class that can be built by nobody is a `NoExample`.
    """
    example = getattr(found.what, "_example", None)
    if callable(example) and found.kind in _FROM_INSTANCE:
        return [_FROM_INSTANCE[found.kind](example())]
    if found.name in EXAMPLES:
        return EXAMPLES[found.name](found.what)
    if reason(found) is not None:
        return []
    raise NoExample(
        f"{found.name} ({found.kind}) has no example: give the class a class method"
        " _example() that returns an instance, or hand one to demur.testing yourself"
    )
