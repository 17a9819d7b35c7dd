"""Regularisation in other conventions, as the lam of mean loss + lam/2 |theta|^2.

The sensitivity is G / (lam n), so a lam read in the wrong convention is a wrong amount
of noise. Whatever the convention, *every* coordinate has to be regularised: without
strong convexity in the bias no bound holds.
"""

from __future__ import annotations

from collections.abc import Callable

from demur.core import validate

_CONVENTIONS: dict[str, Callable[[float, int], float]] = {
    # mean loss + lam/2 |theta|^2: ours.
    "lam": lambda value, n: value,
    # mean loss + lambda_frob |theta|^2, as stochax and others write it.
    "lambda_frob": lambda value, n: 2.0 * value,
    # C * (sum of losses) + 1/2 |w|^2: divide by C n. (Its intercept is not penalised.)
    "sklearn_C": lambda value, n: 1.0 / (value * n),
    # The step adds weight_decay * theta to the gradient of the *mean* loss.
    "weight_decay": lambda value, n: value,
}


def lam_from(convention: str, value: float, n: int) -> float:
    """The lam that means what `value` means in another convention.

    `convention` is "lam", "lambda_frob", "sklearn_C" or "weight_decay" (torch, with a
    mean loss); `n` is the number of records, which only "sklearn_C" needs.

    >>> lam_from("lambda_frob", 0.005, n=1000)
    0.01
    >>> lam_from("sklearn_C", 10.0, n=1000)
    0.0001
    """
    validate.positive(value=value)
    validate.count(n=n)
    try:
        return _CONVENTIONS[convention](float(value), int(n))
    except KeyError:
        raise ValueError(
            f"convention must be one of {', '.join(_CONVENTIONS)}; got {convention!r}"
        ) from None
