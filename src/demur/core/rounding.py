"""Directed rounding: costs up, budgets down, by the smallest step.

One float64 operation is off by at most half an ulp, so its exact result lies below
`up(x)` and above `down(x)`. Where an exact result should stay exact (8 * 0.2 fits a
budget of 1.6) the operation is done in fractions and rounded once, in one direction.
Sums over a ledger are kept exact.
"""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction


def up(value: float, ulps: int = 1) -> float:
    """The float `ulps` steps above `value` (towards +inf)."""
    for _ in range(ulps):
        value = math.nextafter(value, math.inf)
    return value


def down(value: float, ulps: int = 1) -> float:
    """The float `ulps` steps below `value` (towards -inf)."""
    for _ in range(ulps):
        value = math.nextafter(value, -math.inf)
    return value


def float_up(value: Fraction) -> float:
    """The smallest float that is not below `value` >= 0; infinity if there is none."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) >= value else up(nearest)


def float_down(value: Fraction) -> float:
    """The largest float that is not above `value` >= 0."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.nextafter(math.inf, 0.0)
    return nearest if Fraction(nearest) <= value else down(nearest)


def product_up(a: float, b: float) -> float:
    """The smallest float that is not below a * b, for a, b >= 0.

    >>> product_up(8.0, 0.2)
    1.6
    """
    if math.isinf(a) or math.isinf(b):
        return math.inf
    return float_up(Fraction(a) * Fraction(b))


def quotient_up(a: float, b: float) -> float:
    """The smallest float that is not below a / b, for a >= 0 and b > 0."""
    return float_up(Fraction(a) / Fraction(b))


def quotient_down(a: float, b: float) -> float:
    """The largest float that is not above a / b, for a >= 0 and b > 0."""
    return float_down(Fraction(a) / Fraction(b))


def sum_up(a: float, b: float) -> float:
    """The smallest float that is not below a + b, for a, b >= 0."""
    return float_up(Fraction(a) + Fraction(b))


def printed_up(value: float, digits: int = 4) -> str:
    """A short decimal that is not below `value`, for statements that people sign.

    >>> printed_up(0.42671), printed_up(1e-05), printed_up(2.0)
    ('0.4268', '1e-05', '2')
    """
    short = f"{value:.{digits}g}"
    return short if float(short) >= value else _printed(value, digits, ROUND_CEILING)


def printed_down(value: float, digits: int = 4) -> str:
    """A short decimal that is not above `value`, for budgets.

    >>> printed_down(0.42679), printed_down(1e-05), printed_down(2.0)
    ('0.4267', '1e-05', '2')
    """
    short = f"{value:.{digits}g}"
    return short if float(short) <= value else _printed(value, digits, ROUND_FLOOR)


def printed_pair(cost: float, budget: float) -> tuple[str, str]:
    """A cost rounded up and its budget rounded down, which never seem overdrawn.

    Where four digits would show a cost within its budget above it, both get more. Two
    that seven digits do not tell apart are one number, rounded up.

    >>> printed_pair(0.5, 1.0), printed_pair(9.4952, 9.49539)
    (('0.5', '1'), ('9.4952', '9.4953'))
    >>> printed_pair(9.49539123, 9.49539123)
    ('9.496', '9.496')
    """
    for digits in (4, 5, 6, 7):
        above, below = printed_up(cost, digits), printed_down(budget, digits)
        if cost > budget or float(above) <= float(below):
            return above, below
    return printed_up(budget), printed_up(budget)


def _printed(value: float, digits: int, rounding: str) -> str:
    if math.isnan(value):
        return "nan"
    rounded = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(rounded):.{digits}g}"  # so few digits survive a float unchanged
