"""Limited-memory BFGS: the two-loop recursion, and the spectrum of what it stores.

The stored pairs *are* data: for squared loss y = (x . s) x, so that they hold the
feature vectors of the last records up to scale. The seed mode keeps them as the seed
does, and that is one reason why it has no guarantee.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from demur.core import validate

Array = NDArray[np.float64]
_SMALLEST_CURVATURE = 1e-10


class LimitedMemoryBFGS:
    """Up to `m_max` pairs (s, y) and the direction they give."""

    def __init__(self, m_max: int = 10) -> None:
        validate.count(m_max=m_max)
        self.m_max = int(m_max)
        self.S: deque[Array] = deque(maxlen=self.m_max)
        self.Y: deque[Array] = deque(maxlen=self.m_max)

    def __len__(self) -> int:
        return len(self.S)

    def add_pair(self, s: Array, y: Array) -> bool:
        """Store a step and its change of gradient; False where y . s <= 1e-10."""
        if not float(y @ s) > _SMALLEST_CURVATURE:
            return False
        self.S.append(np.array(s, dtype=np.float64))
        self.Y.append(np.array(y, dtype=np.float64))
        return True

    def direction(self, g: Array) -> Array:
        """-H g by the two-loop recursion, with H0 = (s . y) / (y . y) I."""
        q = np.array(g, dtype=np.float64)
        if not self.S:
            return -q
        alphas: list[float] = []
        for s, y in zip(reversed(self.S), reversed(self.Y), strict=True):
            alpha = float(s @ q) / float(y @ s)
            q -= alpha * y
            alphas.append(alpha)
        s, y = self.S[-1], self.Y[-1]
        q *= float(s @ y) / float(y @ y)
        for s, y, alpha in zip(self.S, self.Y, reversed(alphas), strict=True):
            q += (alpha - float(y @ q) / float(y @ s)) * s
        return -q

    def bounds(self) -> tuple[float, float] | None:
        """The extreme eigenvalues (c, C) of B, the matrix behind `direction`.

        B = gamma I - U M^-1 U' in the compact form of Byrd, Nocedal and Schnabel 1994,
        U = [gamma S, Y] and M = [[gamma S'S, L], [L', -D]]. Outside the span of U it is
        gamma I, and inside a matrix of order 2k: O(d k^2), whatever d is. None without
        a pair, or where rounding leaves no positive spectrum.
        """
        if not self.S:
            return None
        S, Y = np.stack(tuple(self.S), axis=1), np.stack(tuple(self.Y), axis=1)
        s, y = self.S[-1], self.Y[-1]
        gamma = float(y @ y) / float(s @ y)
        cross = S.T @ Y
        lower = np.tril(cross, -1)
        M = np.block([[gamma * (S.T @ S), lower], [lower.T, -np.diag(np.diag(cross))]])
        basis, R = np.linalg.qr(np.hstack([gamma * S, Y]))
        try:
            inner = R @ np.linalg.solve(M, R.T)
        except np.linalg.LinAlgError:
            return None
        small = gamma * np.eye(len(R)) - (inner + inner.T) / 2.0
        if not np.isfinite(small).all():
            return None
        values = eigvalsh(small)
        if basis.shape[1] < basis.shape[0]:  # a direction outside the span
            values = np.append(values, gamma)
        c, C = float(values.min()), float(values.max())
        return (c, C) if 0.0 < c <= C < np.inf else None
