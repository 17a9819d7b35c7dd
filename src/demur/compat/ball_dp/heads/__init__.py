"""Heads of the original; a name whose framework is missing says so when it is used."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.compat.ball_dp.heads.logreg_torch import (
        predict_softmax_logreg_torch as predict_softmax_logreg_torch,
    )
    from demur.compat.ball_dp.heads.logreg_torch import (
        train_softmax_logreg_torch as train_softmax_logreg_torch,
    )
    from demur.compat.ball_dp.heads.prototypes import (
        fit_ridge_prototypes as fit_ridge_prototypes,
    )
    from demur.compat.ball_dp.heads.prototypes import (
        predict_nearest_prototype as predict_nearest_prototype,
    )
    from demur.compat.ball_dp.heads.prototypes import (
        prototypes_sensitivity_l2 as prototypes_sensitivity_l2,
    )

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
