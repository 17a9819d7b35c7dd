"""`jax_privacy.clipping`: the sum comes back as a `ClippedSum`."""

from demur.training.clipping import clipped_grad as clipped_grad
from demur.training.types import Aux as AuxiliaryOutput
from demur.training.types import ClippedGrad as BoundedSensitivityCallable

__all__ = ["AuxiliaryOutput", "BoundedSensitivityCallable", "clipped_grad"]
