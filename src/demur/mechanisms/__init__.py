"""Noise with a declared cost; no learning happens here."""

from typing import TYPE_CHECKING

from demur.core.lazy import lazy

if TYPE_CHECKING:
    from demur.mechanisms.bpm.mechanism import BPM as BPM
    from demur.mechanisms.gaussian import Gaussian as Gaussian
    from demur.mechanisms.gaussian_reports import GaussianReports as GaussianReports
    from demur.mechanisms.laplace_reports import (
        LaplacePerDimension as LaplacePerDimension,
    )
    from demur.mechanisms.reports import Reports as Reports

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
