"""`jax_privacy.experimental`."""

from demur.compat.jax_privacy.experimental import compilation_utils as compilation_utils
from demur.compat.jax_privacy.experimental import execution_plan as execution_plan

__all__ = ["compilation_utils", "execution_plan"]
