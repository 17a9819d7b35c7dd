"""Which modes standardise their features, and why the others do not.

Standardising by running means and deviations makes every later row a function of the
record. Only a mode that keeps sums of the raw features can take that back.
"""

from __future__ import annotations

from demur.core import validate

_STANDARDISES = {"ridge": "standardised_ridge"}
_WHY_NOT = {
    "ogd": (
        "its bound counts one step of the record, and behind a running scaler every"
        " later step depends on it too"
    ),
    "logistic": (
        "a new mean or deviation changes the loss of every live record, which its"
        " certificate does not count"
    ),
    "seed": "no theorem covers its deletions",
}


def mode_that_standardises(mode: str) -> str:
    """The mode that learns as `mode` does, on standardised features; or why not.

    >>> mode_that_standardises("ridge")
    'standardised_ridge'
    """
    if mode in _STANDARDISES:
        return _STANDARDISES[mode]
    if mode in _STANDARDISES.values():
        return mode
    reason = _WHY_NOT.get(mode, "no theorem is known for it")
    raise ValueError(
        f"mode {validate.shorten(mode)} cannot standardise its features: {reason}. Use"
        " mode='ridge', or scale by declared numbers (RangeScaler). Nothing was"
        " learned."
    )
