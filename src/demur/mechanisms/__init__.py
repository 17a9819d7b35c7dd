"""Noise with a declared cost; no learning happens here."""

from demur.mechanisms.gaussian import Gaussian as Gaussian
