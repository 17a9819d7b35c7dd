"""Where a radius comes from: a number that was read off data says so.

So does every number that is computed from it. A head at such a radius says in its
statement what that means: a radius that was estimated makes it conditional, and one
that was paid for is another release of the same data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ON_ESTIMATED = "the radius is public (conditional: it was estimated from the data)"
ON_PAID = (
    "the radius, which private_radius read off the data, was paid for: where that was"
    " in another ledger, its epsilon adds to this one"
)

# Radii that were estimated in this process. A caller writes `r=float(r)`, so they can
# be recognised by the number alone. A declared radius that equals one of them to the
# last bit counts as estimated too, which is harmless.
_ESTIMATED_RADII: set[float] = set()


class RadiusFromData(float):
    """A radius that was read off data, and so is every number computed from it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (float(self),)

    def __add__(self, other: Any) -> Any:
        return _derived(float.__add__(self, other), self, other)

    def __sub__(self, other: Any) -> Any:
        return _derived(float.__sub__(self, other), self, other)

    def __mul__(self, other: Any) -> Any:
        return _derived(float.__mul__(self, other), self, other)

    def __truediv__(self, other: Any) -> Any:
        return _derived(float.__truediv__(self, other), self, other)

    def __pow__(self, other: Any, mod: None = None) -> Any:
        return _derived(float.__pow__(self, other), self, other)

    def __rsub__(self, other: Any) -> Any:
        return _derived(float.__rsub__(self, other), self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _derived(float.__rtruediv__(self, other), self, other)

    def __round__(self, digits: Any = None) -> Any:
        return _derived(float.__round__(self, digits), self)

    def __abs__(self) -> Any:
        return _derived(float.__abs__(self), self)

    __radd__, __rmul__ = __add__, __mul__

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **more: Any) -> Any:
        """numpy's functions of numbers: np.float64(2) * r, np.sqrt(r)."""
        value = getattr(ufunc, method)(*map(_plain, given), **more)
        return _derived(value, *given)

    def __array_function__(
        self, function: Any, types: Any, given: Any, more: Any
    ) -> Any:
        """Its other functions: np.round(r, 2)."""
        keywords = {name: _plain(value) for name, value in more.items()}
        value = function(*map(_plain, given), **keywords)
        return _derived(value, *given, *more.values())


class EstimatedRadius(RadiusFromData):
    """A radius that was read off data and not paid for.

    The number itself, its shorter floats and its texts of three digits and more are
    remembered: `float(r)`, `np.float32(r)` and `float(f"{r:.4f}")` are estimated too.
    """

    def __new__(cls, value: Any) -> EstimatedRadius:
        """The number, remembered as estimated."""
        made = super().__new__(cls, value)
        number = float.__float__(made)
        _ESTIMATED_RADII.add(number)
        with np.errstate(over="ignore"):
            _ESTIMATED_RADII.update(float(t(number)) for t in (np.float32, np.float16))
        _ESTIMATED_RADII.update(float(f"{number:.{k}f}") for k in range(3, 8))
        _ESTIMATED_RADII.update(float(f"{number:.{k}g}") for k in range(3, 8))
        return made


class PaidRadius(RadiusFromData):
    """A radius that a release chose from a public grid, and that was paid for.

    It is known by its type alone: a number of the grid may well be declared by somebody
    else. `float(r)` and `Ball(r, ...)` leave the mark behind.
    """


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, RadiusFromData) else value


def _derived(value: Any, *parts: Any) -> Any:
    if not isinstance(value, float):
        return value
    estimated = any(isinstance(part, EstimatedRadius) for part in parts)
    return EstimatedRadius(value) if estimated else PaidRadius(value)


def was_estimated(r: float) -> bool:
    """Whether this number was read off data in this process, and not paid for."""
    return isinstance(r, EstimatedRadius) or (
        not isinstance(r, PaidRadius) and float(r) in _ESTIMATED_RADII
    )


def conditions(r: float | None) -> tuple[str, ...]:
    """What a statement at this radius has to say about where it comes from."""
    if r is None:
        return ()
    if was_estimated(r):
        return (ON_ESTIMATED,)
    return (ON_PAID,) if isinstance(r, PaidRadius) else ()
