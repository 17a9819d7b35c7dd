"""`jax_privacy.clipping`: clipped gradients, whose sum is a `ClippedSum`."""

from demur.training import Aux as AuxiliaryOutput
from demur.training import ClippedGrad as BoundedSensitivityCallable
from demur.training import clipped_grad as clipped_grad

__all__ = ["AuxiliaryOutput", "BoundedSensitivityCallable", "clipped_grad"]
