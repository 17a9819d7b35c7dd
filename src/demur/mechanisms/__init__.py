"""Mechanisms: noise with a declared privacy cost."""

from typing import TYPE_CHECKING

from demur.core.lazy_imports import lazy

if TYPE_CHECKING:
    from demur.mechanisms.bpm.mechanism import BPM as BPM
    from demur.mechanisms.gaussian import Gaussian as Gaussian
    from demur.mechanisms.gaussian_reports import GaussianReports as GaussianReports
    from demur.mechanisms.grid_response import GridResponse as GridResponse
    from demur.mechanisms.laplace_reports import (
        LaplaceReports as LaplaceReports,
    )
    from demur.mechanisms.reports import Reports as Reports

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
