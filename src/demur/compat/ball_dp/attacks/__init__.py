"""Attacks on a Gaussian release, as audits."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.compat.ball_dp.attacks.audit import gaussian_llr as gaussian_llr
    from demur.compat.ball_dp.attacks.audit import (
        llr_attack_predict as llr_attack_predict,
    )
    from demur.compat.ball_dp.attacks.audit import (
        run_llr_audit_trials as run_llr_audit_trials,
    )

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
