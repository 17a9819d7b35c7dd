"""Ball-DP: train a convex head on embeddings and release it once, with little noise.

Names are loaded when they are first used: the bounds need no scikit-learn.
"""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.convex.errors import DataChanged as DataChanged
    from demur.convex.errors import NotAtMinimiser as NotAtMinimiser
    from demur.convex.errors import NotConverged as NotConverged
    from demur.convex.files import load_head as load_head
    from demur.convex.files import save_head as save_head
    from demur.convex.heads.discriminant import (
        BallDiscriminantClassifier as BallDiscriminantClassifier,
    )
    from demur.convex.heads.linear import (
        BallLogisticRegression as BallLogisticRegression,
    )
    from demur.convex.heads.linear import BallSoftmaxClassifier as BallSoftmaxClassifier
    from demur.convex.heads.linear import BallSVC as BallSVC
    from demur.convex.heads.prototype_classifier import (
        BallPrototypeClassifier as BallPrototypeClassifier,
    )
    from demur.convex.heads.recommendation import Recommendation as Recommendation
    from demur.convex.heads.recommendation import recommend as recommend
    from demur.convex.privacy_report import PrivacyReport as PrivacyReport
    from demur.convex.release import release_head as release_head
    from demur.convex.rows.parquet import ParquetRows as ParquetRows
    from demur.convex.sensitivity.conventions import lam_from as lam_from
    from demur.convex.sensitivity.form import DeclaredForm as DeclaredForm
    from demur.convex.sensitivity.form import Fit as Fit
    from demur.convex.sensitivity.form import HeadForm as HeadForm
    from demur.convex.sensitivity.gradient_bounds import (
        full_replacement_bound as full_replacement_bound,
    )
    from demur.convex.sensitivity.gradient_bounds import (
        grad_diff_bound as grad_diff_bound,
    )
    from demur.convex.sensitivity.gradient_bounds import (
        minimiser_radius as minimiser_radius,
    )
    from demur.convex.sensitivity.radius import (
        compute_radius_policy as compute_radius_policy,
    )
    from demur.convex.sensitivity.radius import private_radius as private_radius
    from demur.convex.solving.objective import gradient_norm as gradient_norm
    from demur.convex.solving.objective import objective as objective
    from demur.convex.solving.solver import minimise as minimise

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
