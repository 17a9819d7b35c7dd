"""Noise with a declared cost; no learning happens here."""

from demur.mechanisms.bpm import BPM as BPM
from demur.mechanisms.gaussian import Gaussian as Gaussian
