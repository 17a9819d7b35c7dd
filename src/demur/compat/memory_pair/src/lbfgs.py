"""`memory_pair.src.lbfgs`."""

from demur.unlearning.models.lbfgs import LimitedMemoryBFGS as LimitedMemoryBFGS
