"""`memory_pair.src.lbfgs`."""

from demur.unlearning.lbfgs import LimitedMemoryBFGS as LimitedMemoryBFGS
