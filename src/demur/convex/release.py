"""Release a head once: sensitivity, noise for it, the charge, and the noisy head."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.convex.errors import NotAtMinimiser
from demur.convex.sensitivity.curves import (
    TAU,
    HeadSensitivity,
    declared_sensitivity,
    erm_sensitivity,
)
from demur.convex.sensitivity.losses import HUBER_WIDTH, check_loss
from demur.core import validate
from demur.core.adjacency import Ball
from demur.core.bounds import Bound, BoundSource, real_array
from demur.core.entropy import Source
from demur.core.release import Release
from demur.ledger import Budget, Ledger, LedgerLeftBehind, ledger_or_in_memory
from demur.mechanisms import Gaussian

Array = NDArray[np.float64]

UNPROTECTED = (
    "under a ball: labels, the number of records of each class and n",
    "hyper-parameters and the norm bound, which are public",
)
FIXED_IN_ADVANCE = (
    "lam, tau, the radius, the norm bound and every other hyper-parameter were fixed"
    " without looking at the data, or charged to the ledger"
)
UNCERTIFIED = (
    "the released parameters minimise the stated objective to a gradient norm of at"
    " most tau (conditional: the data were not given, so this was not checked)"
)
DECLARED_LOSS = (
    "the declared Lipschitz constant holds for the caller's own loss, which is convex"
    " with every coordinate regularised"
)


def head_ledger(
    ledger: Ledger | LedgerLeftBehind | None,
    *,
    radius: float,
    space: str,
    epsilon: float,
    delta: float,
) -> Ledger:
    """The ledger given, or one in memory for this release alone ("not recorded")."""
    unit = Ball(radius, space=space)
    return ledger_or_in_memory(ledger, Budget(epsilon, delta), unit=unit)


def head_mechanism(
    sensitivity: HeadSensitivity,
    *,
    dimension: int,
    radius: float,
    space: str,
    epsilon: float,
    delta: float,
    name: str,
    bounds: tuple[Bound, ...],
    assumptions: tuple[str, ...],
    unprotected: tuple[str, ...] = UNPROTECTED,
) -> Gaussian:
    """The least Gaussian noise that is (epsilon, delta)-private at the radius."""
    return Gaussian.calibrated(
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity.table,
        unit=Ball(radius, space=space),
        dimension=dimension,
        name=name,
        bounds=bounds,
        unprotected=unprotected,
        assumptions=assumptions,
    )


def release_head(
    theta: ArrayLike,
    *,
    loss: str,
    n: int,
    lam: float,
    norm_bound: float,
    radius: float,
    epsilon: float,
    delta: float,
    ledger: Ledger | None = None,
    space: str = "records",
    num_classes: int = 2,
    bias_scale: float = 1.0,
    huber_width: float = HUBER_WIDTH,
    tau: float = TAU,
    gradient_norm: float | None = None,
    lz: float | None = None,
    gradient_bound: float | None = None,
    norm_source: BoundSource | str = BoundSource.DECLARED,
    replace_one: bool = True,
    bounds: tuple[Bound, ...] = (),
    assumptions: tuple[str, ...] = (),
    label: str = "a convex head",
    idempotency_key: str | None = None,
    source: Source | None = None,
) -> Release[Array]:
    """A noisy copy of `theta`, the minimiser of the stated objective, and its entry.

    The noise is calibrated to (`epsilon`, `delta`) at Ball(`radius`, `space`); the
    entry also says what it costs at every other radius and at a full replacement.
    `gradient_norm` is the norm measured on the data (`objective.gradient_norm`): above
    `tau` the head is refused, and without it the statement is conditional on that.
    `loss="declared"` with `lz` is for a convex loss of one's own.

    With a bias the last coordinate of theta multiplies the feature `bias_scale`.
    Without a ledger the charge goes to a ledger in memory, and the statement says "not
    recorded".

    >>> private = release_head([0.5, -0.2, 0.1], loss="logistic", n=5000, lam=0.01,
    ...     norm_bound=1.0, radius=0.3, epsilon=1.0, delta=1e-6, gradient_norm=2e-10)
    >>> private.value.shape
    (3,)
    >>> "Not recorded" in private.statement()
    True
    """
    value = real_array("theta", theta)
    if not value.size:
        raise ValueError("theta must not be empty. Nothing was spent.")
    validate.positive(tau=tau)
    if gradient_norm is not None:
        validate.non_negative(gradient_norm=gradient_norm)
        if gradient_norm > tau:
            raise NotAtMinimiser(
                f"the gradient norm of the stated objective is {gradient_norm:.3g} at"
                f" this head, above tau={tau:g}: it is not the minimiser that the noise"
                " is calibrated for. Train longer in float64 with the bias regularised,"
                " check lam, or declare a larger tau in advance. Nothing was released,"
                " nothing was charged."
            )
    if loss == "declared":
        if lz is None:
            raise ValueError("loss='declared' needs lz, its Lipschitz-in-data constant")
        found = declared_sensitivity(
            lz,
            n=n,
            lam=lam,
            norm_bound=norm_bound,
            radius=radius,
            space=space,
            tau=tau,
            gradient_bound=gradient_bound if replace_one else None,
        )
        bounds = (*bounds, Bound(lz, BoundSource.DECLARED, what="Lz of the loss"))
        assumptions = (*assumptions, DECLARED_LOSS)
    else:
        check_loss(loss, num_classes)
        if lz is not None:
            raise ValueError(f"lz is for loss='declared'; got lz={lz} with {loss!r}")
        found = erm_sensitivity(
            loss,
            n=n,
            lam=lam,
            norm_bound=norm_bound,
            radius=radius,
            space=space,
            tau=tau,
            num_classes=num_classes,
            bias_scale=bias_scale,
            huber_width=huber_width,
            replace_one=replace_one,
        )
    conditional = () if gradient_norm is not None else (UNCERTIFIED,)
    mechanism = head_mechanism(
        found,
        dimension=value.size,
        radius=radius,
        space=space,
        epsilon=epsilon,
        delta=delta,
        name=f"a {loss} head with Gaussian noise",
        bounds=(Bound(norm_bound, BoundSource(norm_source)), *bounds),
        assumptions=(FIXED_IN_ADVANCE, *conditional, *assumptions),
    )
    ledger = head_ledger(
        ledger, radius=radius, space=space, epsilon=epsilon, delta=delta
    )
    return mechanism.release(
        value,
        ledger=ledger,
        label=label,
        idempotency_key=idempotency_key,
        source=source,
    )
