"""Ball-DP: train a convex head on embeddings, release it once, with little noise.

Names are loaded when they are first used: the bounds need no scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demur.convex.errors import DataChanged as DataChanged
    from demur.convex.errors import NotAtMinimiser as NotAtMinimiser
    from demur.convex.errors import NotConverged as NotConverged
    from demur.convex.estimators import BallLogisticRegression as BallLogisticRegression
    from demur.convex.estimators import (
        BallPrototypeClassifier as BallPrototypeClassifier,
    )
    from demur.convex.estimators import BallSoftmaxClassifier as BallSoftmaxClassifier
    from demur.convex.estimators import BallSVC as BallSVC
    from demur.convex.files import load_head as load_head
    from demur.convex.files import save_head as save_head
    from demur.convex.losses import full_replacement_bound as full_replacement_bound
    from demur.convex.losses import grad_diff_bound as grad_diff_bound
    from demur.convex.losses import lam_from as lam_from
    from demur.convex.losses import minimiser_radius as minimiser_radius
    from demur.convex.objective import gradient_norm as gradient_norm
    from demur.convex.parquet_rows import ParquetRows as ParquetRows
    from demur.convex.radius import compute_radius_policy as compute_radius_policy
    from demur.convex.radius import private_radius as private_radius
    from demur.convex.release import release_head as release_head
    from demur.convex.report import PrivacyReport as PrivacyReport
    from demur.convex.solver import minimise as minimise

_HOME = {
    "DataChanged": "errors",
    "NotAtMinimiser": "errors",
    "NotConverged": "errors",
    "BallLogisticRegression": "estimators",
    "BallPrototypeClassifier": "estimators",
    "BallSVC": "estimators",
    "BallSoftmaxClassifier": "estimators",
    "load_head": "files",
    "save_head": "files",
    "full_replacement_bound": "losses",
    "grad_diff_bound": "losses",
    "lam_from": "losses",
    "minimiser_radius": "losses",
    "gradient_norm": "objective",
    "ParquetRows": "parquet_rows",
    "compute_radius_policy": "radius",
    "private_radius": "radius",
    "release_head": "release",
    "PrivacyReport": "report",
    "minimise": "solver",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demur.convex' has no attribute {name!r}")
    value = getattr(import_module(f"demur.convex.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
