"""Noise with a declared cost; no learning happens here."""

from demur.mechanisms.bpm import BPM as BPM
from demur.mechanisms.gaussian import Gaussian as Gaussian
from demur.mechanisms.gaussian_reports import GaussianReports as GaussianReports
from demur.mechanisms.laplace_reports import LaplacePerDimension as LaplacePerDimension
from demur.mechanisms.reports import Reports as Reports
