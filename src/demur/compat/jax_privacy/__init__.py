"""The interface of `jax_privacy` (release 2.0.0 and its newest sources), over demur.

Change the import lines and keep the code. `docs/compat_jax_privacy.md` lists what
behaves differently and why; in short: a clipped gradient is an object that only the
noise accepts, the noise of a plan is fresh in every run whatever seed is given, and a
plan whose parts do not fit each other is refused.
"""

from demur.compat.jax_privacy import batch_selection as batch_selection
from demur.compat.jax_privacy import clipping as clipping
from demur.compat.jax_privacy import execution_plan as execution_plan
from demur.compat.jax_privacy import experimental as experimental
from demur.compat.jax_privacy import matrix_factorization as matrix_factorization
from demur.compat.jax_privacy import noise_addition as noise_addition
from demur.compat.jax_privacy.clipping import clipped_grad as clipped_grad

__all__ = [
    "batch_selection",
    "clipped_grad",
    "clipping",
    "execution_plan",
    "experimental",
    "matrix_factorization",
    "noise_addition",
]
