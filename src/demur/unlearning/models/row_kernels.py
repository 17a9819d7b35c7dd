"""Kernels for a row that many records pass through: they leave it empty.

Whoever writes record after record into one array must not leave one in it. Emptied by
the kernel that has read it, that takes a tenth of the time that Python needs.
"""

from __future__ import annotations

from numba import njit

from demur.unlearning.models import kernels
from demur.unlearning.models.kernels import Floats


@njit(cache=True, fastmath=False, nogil=True)
def predict(w: Floats, x: Floats, bound: float, kind: float, emptied: int) -> float:
    """`kernels.predict`; the first `emptied` numbers of x are 0 then."""
    answer = kernels.predict(w, x, bound, kind)
    for j in range(emptied):
        x[j] = 0.0
    return answer


@njit(cache=True, fastmath=False, nogil=True)
def ogd_step(
    state: Floats, x: Floats, constants: Floats, emptied: int, y: float
) -> float:
    """`kernels.ogd_step`; the first `emptied` numbers of x are 0 then."""
    answer = kernels.ogd_step(state, x, constants, y)
    for j in range(emptied):
        x[j] = 0.0
    return answer
