"""Sampling of BPM under the original's names; a part of a report is not private.

The original draws floats from NumPy's global generator: whoever knows the seed can
remove the noise, and the last bits of a float reveal what was added to what. Here
`bpm_sampling` draws with demur's exact sampler, from the operating system's entropy.

`sample_f1`, `sample_radius` and `sample_f2` are the parts of the paper's Algorithms 3
and 4. No part is private by itself (one never comes near its point, another never
leaves its ball), so they are for inspection alone, and a warning is logged once.
"""

from __future__ import annotations

import logging
import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.compat.bpm.mechanism import compute_lambda_2r
from demur.core.bounds import real_array
from demur.core.entropy import OsEntropy, Seeded
from demur.ledger import Ledger
from demur.mechanisms.bpm import mechanism as exact
from demur.mechanisms.bpm.two_stage import inside_radii, outside_ball

logger = logging.getLogger(__name__)

Values = NDArray[np.float64]


def bpm_sampling(
    v: ArrayLike,
    k: float,
    L: float,
    p_L: float,
    lambda_2r: float,
    *,
    ledger: Ledger | None = None,
    source: Seeded | None = None,
) -> Values:
    """Algorithm 2: the report of one point v of the unit cube.

    `p_L` and `lambda_2r` follow from (k, L) and the length of v. They are compared with
    the right values and refused if they differ: the original's `compute_p_L` gives too
    much weight to the ball, and no epsilon holds for its reports.

    With a `ledger` the report is charged there before it is drawn; without, nothing is
    recorded. `source=demur.Seeded(n)` repeats the report, for tests; NOT PRIVATE.
    """
    point = _point(v)
    bpm = exact.BPM(k, L, len(point))
    _must_be("p_L", p_L, bpm.p_L)
    _must_be("lambda_2r", lambda_2r, compute_lambda_2r(len(point), L, k))
    release = bpm.privatize(
        point[None, :], ledger=ledger, label="bpm_sampling", source=source
    )
    return np.array(release.value.values[0])


def sample_f1(v: ArrayLike, L: float, *, source: Seeded | None = None) -> Values:
    """Algorithm 3: uniform on [-L, 1 + L]^d outside the ball around v. NOT PRIVATE."""
    point = _point(v)
    exact.BPM(1.0, L, len(point)).check(point[None, :])
    if math.isinf(L):
        raise ValueError("L must be finite: nothing lies outside the ball")
    return outside_ball(point[None, :], L, _generator(source))[0]


def sample_radius(
    d: int, L: float, k: float, lambda_2r: float, *, source: Seeded | None = None
) -> float:
    """A radius of density lambda_2r r^(d-1) e^(-kr) on [0, L]."""
    _must_be("lambda_2r", lambda_2r, compute_lambda_2r(d, L, k))
    if L == 0.0:
        return 0.0
    return float(inside_radii(1, d, k, L, _generator(source))[0])


def sample_f2(
    v: ArrayLike,
    L: float,
    k: float,
    lambda_2r: float,
    *,
    source: Seeded | None = None,
) -> Values:
    """Algorithm 4: a point of the ball around v, denser towards v. NOT PRIVATE."""
    point = _point(v)
    _must_be("lambda_2r", lambda_2r, compute_lambda_2r(len(point), L, k))
    rng = _generator(source)
    direction = rng.normal(size=len(point))
    radius = inside_radii(1, len(point), k, L, rng)[0] if L else 0.0
    return np.asarray(point + radius * direction / np.linalg.norm(direction))


def _point(v: ArrayLike) -> Values:
    point = real_array("v", v, "one point")
    if point.ndim != 1 or point.size == 0:
        raise ValueError(f"v must be one point, a vector; got shape {point.shape}")
    return point


def _must_be(name: str, given: float, right: float) -> None:
    if not math.isclose(given, right, rel_tol=1e-6, abs_tol=1e-300):
        raise ValueError(
            f"{name} is {given:.6g}, and must be {right:.6g} for these k, L and d"
            " (demur.compat.bpm.mechanism computes it; the original's formula lacks a"
            " factor). Nothing was drawn."
        )


def _generator(source: Seeded | None) -> np.random.Generator:
    _say_once()
    entropy = OsEntropy() if source is None else source
    return np.random.default_rng(int.from_bytes(entropy.new_key(), "little"))


@cache
def _say_once() -> None:
    logger.warning(
        "NOT PRIVATE: a part of a report (sample_f1, sample_radius, sample_f2) reveals"
        " its point; use bpm_sampling, or demur.mechanisms.BPM.privatize"
    )
