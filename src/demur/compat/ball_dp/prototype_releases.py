"""Private ridge prototypes from their exact values and class counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from demur.compat.ball_dp.heads.prototypes import prototypes_sensitivity_l2
from demur.compat.ball_dp.releases import (
    ON_ROUNDING,
    ReleaseOptions,
    Rng,
    SigmaMethod,
    release_vector,
    source_of,
)
from demur.core.bounds import finite_matrix
from demur.core.curve import PiecewiseLinear
from demur.core.sensitivity import Sensitivity
from demur.ledger import Ledger

# For the rounding of float64 sums over many rows.
_RESERVE = 1.0 + 1e-9
_ON_THE_CLOSED_FORM = (
    "the prototypes have the closed form 2 S_c / (2 n_c + lam n) (conditional: they"
    " came without their data, so this was not checked)"
)


def dp_release_ridge_prototypes_gaussian(
    mus: ArrayLike,
    counts: ArrayLike,
    *,
    r: float,
    lam: float,
    eps: float,
    delta: float,
    sigma_method: SigmaMethod = "classic",
    rng: Rng = None,
    ledger: Ledger | None = None,
    space: str = "records",
    label: str = "ridge prototypes",
) -> dict[str, Any]:
    """Noisy prototypes, with one sigma for all classes, as in the original.

    Keys: mus_noisy (float32), Delta, sigma, eps, delta, sigma_method, r, lam, n_total,
    n_min, and private, conditional, statement. n_min is the smallest class that has a
    record: an empty one has a constant prototype. `demur.convex` gives each class the
    noise of its own size, which is less.
    """
    given = np.asarray(mus)
    means = finite_matrix("mus", given)
    sizes = np.asarray(counts)
    if sizes.shape != (means.shape[0],) or not np.array_equal(
        sizes, sizes.astype(np.int64)
    ):
        raise ValueError(
            f"counts must hold a whole number for each of {means.shape[0]} prototypes;"
            f" got {sizes!r:.80}. Nothing was spent."
        )
    if (sizes < 0).any() or not (sizes > 0).any():
        raise ValueError(
            f"counts must be at least 0, and one above 0; got {sizes!r:.80}. Nothing"
            " was spent."
        )
    n_total, n_min = int(sizes.sum()), int(sizes[sizes > 0].min())
    source = source_of(rng)
    options = ReleaseOptions(r, eps, delta, sigma_method, source, ledger, space, label)

    def moved(radius: float) -> float:
        """How far the prototypes move, with a reserve for rounding."""
        return _RESERVE * prototypes_sensitivity_l2(
            r=radius, n_min=n_min, n_total=n_total, lam=lam
        )

    conditional = [_ON_THE_CLOSED_FORM]
    if given.dtype.itemsize < 8:
        conditional.append(ON_ROUNDING)
    recorded = release_vector(
        means,
        Sensitivity.of(
            {space: PiecewiseLinear.linear(moved(1.0)), options.unit: moved(r)}
        ),
        options,
        name="ridge prototypes with Gaussian noise",
        conditional=tuple(conditional),
    )
    report = recorded.report(options, lam=float(lam), n_total=n_total, n_min=n_min)
    noisy = recorded.values.reshape(means.shape)
    return {"mus_noisy": noisy.astype(np.float32)} | report
