"""`jax_privacy.clipping`: the sum comes back as a `ClippedSum`."""

from demur.training.clipping.clipped_grad import clipped_grad as clipped_grad
from demur.training.clipping.types import Aux as AuxiliaryOutput
from demur.training.clipping.types import ClippedGrad as BoundedSensitivityCallable

__all__ = ["AuxiliaryOutput", "BoundedSensitivityCallable", "clipped_grad"]
