"""The certified quantile: its table, its certificate, and mpmath at chosen points."""

from __future__ import annotations

import importlib.util
import math
import random
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest

from demur.mechanisms.sampling import normal_quantile
from demur.mechanisms.sampling.normal_quantile import (
    DECIDED_FROM,
    ERROR,
    HIGH,
    LOW,
    SLOPE,
    TABLE,
    Enclosure,
    enclose,
)

pytestmark = pytest.mark.slow  # not in `make check`

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_quantile_table.py"
LAST = 2**63 - 1


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_quantile_table", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def piece(j: int, i: int) -> tuple[int, int]:
    """First and last k of row (j, i)."""
    start = 2**j + i * 2 ** (j - 7)
    return start, start + 2 ** (j - 7) - 1


def dense(seed: int, per_piece: int) -> list[int]:
    """Random k, the same number in every piece of every binade."""
    rng = random.Random(seed)
    pieces = (piece(j, i) for j in range(18, 63) for i in range(128))
    return [rng.randint(*ends) for ends in pieces for _ in range(per_piece)]


def adversarial() -> list[int]:
    """Where a piecewise polynomial in the exponent of k is likeliest to be wrong."""
    rng = random.Random(3)
    powers = [2**j + d for j in range(19, 63) for d in (-2, -1, 0, 1, 2)]
    edges = [
        k + d
        for j in (18, 19, 24, 40, 55, 60, 61, 62)
        for i in (0, 1, 63, 64, 126, 127, rng.randrange(128))
        for k in piece(j, i)
        for d in (-1, 0, 1)
    ]
    middles = [
        sum(piece(j, i)) // 2 + d  # v crosses zero
        for j in (18, 19, 25, 53, 62)
        for i in (0, 127)
        for d in (0, 1)
    ]
    # Near p = 1/2 x is far below the bound; near 2^53 multiples k loses bits.
    centre = [LAST - d for d in (*range(20), 2**10, 2**11 - 1, 2**11, 2**30, 2**54)]
    lossy = [2**62 + m * 2**10 + d for m in (1, 2, 3) for d in (-1, 0, 1)]
    all_ones = [2**j - 2**low for j in range(21, 64, 7) for low in (0, 1, 10, 11, 12)]
    points = powers + edges + middles + centre + lossy + all_ones
    return [k for k in points if DECIDED_FROM <= k <= LAST]


def holds(
    words: list[int], at: Enclosure, bound: float = ERROR, error_factor: float = 1.0
) -> bool:
    """Whether mpmath confirms both bounds at every word.

    |z - Q^-1(p)| <= b if and only if Q(z + b) <= p <= Q(z - b): no inverse is needed.
    `bound` is for U = 1/2, `at.error` (times `error_factor`) for every U in (0, 1).
    """
    with mpmath.workdps(45):
        unit = mpmath.mpf(2) ** -64
        root = mpmath.sqrt(2)

        def tail(x):
            return mpmath.erfc(x / root) / 2

        for k, hi, lo, error in zip(words, *at, strict=True):
            z = mpmath.mpf(float(hi)) + mpmath.mpf(float(lo))
            middle = (k + mpmath.mpf("0.5")) * unit
            if not tail(z + bound) <= middle <= tail(z - bound):
                return False
            whole = mpmath.mpf(float(error)) * error_factor
            if not (tail(z + whole) <= k * unit and (k + 1) * unit <= tail(z - whole)):
                return False
    return True


def as_words(ks: list[int]) -> np.ndarray:
    return np.array(ks, dtype=np.uint64)


# --- the table ------------------------------------------------------------------


def test_rows_regenerate_bit_for_bit(tool):
    rng = random.Random(11)
    chosen = [*rng.sample(tool.rows(), 80), (18, 0), (18, 127), (62, 0), (62, 127)]
    order = {pair: n for n, pair in enumerate(tool.rows())}
    for j, i in chosen:
        again = np.array(tool.row(j, i))
        assert again.tobytes() == TABLE[order[j, i]].tobytes(), (j, i)


@pytest.mark.deep
def test_every_row_regenerates_bit_for_bit(tool):
    again = np.array([tool.row(j, i) for j, i in tool.rows()])
    assert again.tobytes() == TABLE.tobytes()


def test_a_damaged_table_is_refused(monkeypatch):
    monkeypatch.setattr(normal_quantile, "_SHA256", "0" * 64)
    with pytest.raises(ImportError, match="damaged; reinstall"):
        normal_quantile._load()


def test_table_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        TABLE[0, 0] = 1.0


# --- the certificate ------------------------------------------------------------


def test_certificate_holds_on_every_piece(tool):
    proof = tool.certificate(TABLE)
    assert TABLE.shape == (45 * 128, 8) and len(proof.error) == len(TABLE)
    # The spare percents are what the docstring spends on rounding `error` itself.
    assert np.all(proof.error <= ERROR * (1 - 2.0**-7))
    assert np.all(proof.slope_ratio <= SLOPE * (1 - 2.0**-7))
    assert np.all(proof.remainder < 2.0**-66)
    assert np.all(proof.low < 2.0**-8.3) and 2.0**-8.3 < LOW
    assert proof.hi_fits and TABLE[:, 0].max() < HIGH
    assert np.abs(TABLE).min() > 1e-300  # nothing underflows


def test_pieces_start_where_the_certificate_takes_its_maximum(tool):
    """x of the certificate is at or beyond Q^-1 of the smallest p of each piece."""
    p, x, half = tool.starts()
    with mpmath.workdps(30):
        for (j, i), start, bound, width in zip(tool.rows(), p, x, half, strict=True):
            first, last = piece(j, i)
            assert start == first / 2**64 and 2 * width == (last + 1 - first) / 2**64
            assert mpmath.erfc(mpmath.mpf(bound) / mpmath.sqrt(2)) / 2 <= start


def test_derivatives_follow_the_recurrence(tool):
    """|d^n/dp^n Q^-1| = P_n(x) / phi(x)^n, by mpmath's numerical derivatives."""
    assert tool.derivative_polynomial(1) == [1]
    assert tool.derivative_polynomial(3) == [1, 0, 2]
    with mpmath.workdps(60):
        for x in (0, 0.3, 1.7, 5):
            p = mpmath.ncdf(-x)
            series = mpmath.taylor(
                lambda q: -mpmath.sqrt(2) * mpmath.erfinv(2 * q - 1), p, 7
            )
            for n in range(1, 8):
                terms = enumerate(tool.derivative_polynomial(n))
                value = sum(c * mpmath.mpf(x) ** m for m, c in terms)
                derivative = (-1) ** n * value / mpmath.npdf(x) ** n
                assert mpmath.almosteq(
                    series[n] * mpmath.factorial(n), derivative, 1e-20, 1e-20
                ), (x, n)


def test_certificate_notices_a_table_it_does_not_cover(tool):
    widest = int(tool.certificate(TABLE).error.argmax())
    steeper, flatter, longer = TABLE.copy(), TABLE.copy(), TABLE.copy()
    steeper[widest, 2] *= 1.02
    flatter[widest, 2] /= 1.02
    longer[widest, 0] += 2.0**-23
    assert tool.certificate(steeper).error.max() > ERROR
    assert tool.certificate(flatter).slope_ratio.max() > SLOPE
    assert not tool.certificate(longer).hi_fits


# --- which row, which v ---------------------------------------------------------


def test_every_word_reads_its_own_piece_at_its_own_place():
    """Tables that answer with the row's number and with v, against exact integers."""
    ks = dense(seed=4, per_piece=4) + adversarial()
    numbered, identity = np.zeros_like(TABLE), np.zeros_like(TABLE)
    numbered[:, 0] = np.arange(len(TABLE))
    identity[:, 2] = 1.0
    rows = enclose(as_words(ks), numbered).hi
    places = enclose(as_words(ks), identity).lo
    for k, row, v in zip(ks, rows, places, strict=True):
        j = k.bit_length() - 1
        i = (k - 2**j) >> (j - 7)
        assert row == (j - 18) * 128 + i
        start, last = piece(j, i)
        exact = Fraction(2 * (k - start) + 1, last + 1 - start) - 1
        assert abs(Fraction(float(v)) - exact) <= abs(exact) * Fraction(1, 2**53)
        assert abs(exact) < 1


# --- against mpmath -------------------------------------------------------------


def test_dense_grid():
    ks = dense(seed=1, per_piece=1)
    assert holds(ks, enclose(as_words(ks)))


def test_adversarial_points():
    ks = adversarial()
    assert len(ks) > 600
    assert holds(ks, enclose(as_words(ks)))


@pytest.mark.deep
def test_very_dense_grid():
    ks = dense(seed=2, per_piece=40)
    assert holds(ks, enclose(as_words(ks)))


def test_both_signs_give_the_same_quantile():
    ks = as_words(adversarial())
    for plain, signed in zip(enclose(ks), enclose(ks | np.uint64(2**63)), strict=True):
        np.testing.assert_array_equal(plain, signed)


def test_few_bits_say_nothing():
    ks = [0, 1, 2, 3, 2047, 2048, 2049, 2**17, DECIDED_FROM - 1]
    at = enclose(as_words(ks + [DECIDED_FROM]))
    assert np.all(np.isinf(at.error[:-1])) and np.isfinite(at.error[-1])
    assert np.all(np.isfinite(at.value))


def test_value_is_monotone_up_to_the_bound():
    ks = sorted(dense(seed=5, per_piece=3))
    at = enclose(as_words(ks))
    assert np.all(np.diff(at.value) <= 2.0**-50)


def test_error_is_as_small_as_promised():
    ks = as_words(dense(seed=6, per_piece=1))
    error = enclose(ks).error
    assert np.all(error[ks > 2**60] < 2.0**-58.8)
    assert math.isclose(enclose(as_words([2**20])).error[0], 6.4e-8, rel_tol=0.2)


# --- wrong twins must be rejected by the same check -----------------------------


def twin(row: int, column: int, change: float) -> np.ndarray:
    table = TABLE.copy()
    table[row, column] += change
    return table


@pytest.mark.parametrize("row", [5, 3000, 5400, 5759])
def test_a_wrong_coefficient_is_rejected(row):
    """hi and the slope off by 2^-45 of themselves, or any coefficient by 2^-57."""
    ks = [*piece(18 + row // 128, row % 128)]  # v close to -1 and to 1
    assert holds(ks, enclose(as_words(ks)))
    changes = [(c, TABLE[row, c] * 2.0**-45) for c in (0, 2)]
    changes += [(c, sign * 2.0**-57) for c in range(1, 8) for sign in (1, -1)]
    for column, change in changes:
        wrong = enclose(as_words(ks), twin(row, column, change))
        assert not holds(ks, wrong), (column, change)


def test_a_coefficient_off_anywhere_is_seen_by_the_dense_grid():
    ks = dense(seed=1, per_piece=2)
    table = twin(4321, 2, TABLE[4321, 2] * 2.0**-45)
    own = slice(2 * 4321, 2 * 4321 + 2)
    assert not holds(
        ks[own], Enclosure(*(a[own] for a in enclose(as_words(ks), table)))
    )


def test_too_small_a_bound_is_rejected():
    ks = dense(seed=1, per_piece=1)[-1024:]
    at = enclose(as_words(ks))
    assert holds(ks, at)
    assert not holds(ks, at, bound=ERROR * 2.0**-6)


def test_too_small_an_interval_is_rejected():
    """The term for undrawn bits is tight: 5% less of it is not enough."""
    ks = dense(seed=1, per_piece=1)[:1024]
    at = enclose(as_words(ks))
    assert holds(ks, at)
    assert not holds(ks, at, error_factor=0.95)
