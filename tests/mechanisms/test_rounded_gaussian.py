"""The integer sampler: exact on the same bits, and the right law at 1e-6."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import optimize, stats

from demur.mechanisms.sampling import rounded_gaussian as module
from demur.mechanisms.sampling.normal_quantile import enclose
from demur.mechanisms.sampling.rounded_gaussian import (
    FURTHER_WORDS,
    LARGEST_SCALE,
    open_fraction,
    rounded_gaussian,
    sampler_distance,
    tail_bounds,
)
from tests.families import thinned

pytestmark = pytest.mark.slow  # not in `make check`

SCALES = [2.0**b for b in (3, 10, 20, 26, 30, 40)]
ODD_SCALES = [1.0, 1.7, 8 * math.pi, 2.0**26 / 3, 2.0**40 * 0.9999999, 2.0**44]
CELLS = 2 ** (64 * (FURTHER_WORDS + 1))  # p of a coordinate with all its words


class ChaCha:
    """Reproducible bytes; counts what was taken."""

    def __init__(self, label: int) -> None:
        cipher = algorithms.ChaCha20(b"demur sampler tests".ljust(32), _nonce(label))
        self._keystream = Cipher(cipher, mode=None).encryptor()
        self.taken = 0

    def read(self, n: int, /) -> bytes:
        self.taken += n
        return self._keystream.update(bytes(n))


class Fixed:
    """The given 64-bit words and nothing after them."""

    def __init__(self, *words: int) -> None:
        self.rest = b"".join(word.to_bytes(8, "little") for word in words)
        self.taken = 0

    def read(self, n: int, /) -> bytes:
        self.taken += n
        head, self.rest = self.rest[:n], self.rest[n:]
        return head


def _nonce(label: int) -> bytes:
    return bytes(4) + label.to_bytes(12, "little")


def refine(i: int) -> ChaCha:
    return ChaCha(2**40 + i)


def draw(n: int, scale: float | np.ndarray, label: int = 0) -> np.ndarray:
    return rounded_gaussian(n, scale, ChaCha(label), refine)


def further(i: int) -> int:
    """What `refine(i)` would add to p if asked for everything."""
    data = refine(i).read(8 * FURTHER_WORDS)
    words = (data[at : at + 8] for at in range(0, len(data), 8))
    return int.from_bytes(b"".join(word[::-1] for word in words), "big")


def tail(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def below_edge(p: mpmath.mpf, scale: float, twice: int) -> bool:
    """Whether p <= Q(twice / 2 / scale).

    Fifty digits settle almost every comparison in a tenth of the time: Q has at least
    45 of them right (a relative error of the place grows by its square, below 1500).
    Where p agrees with 40, all the digits that the caller works with decide.
    """
    with mpmath.workdps(50):
        edge = tail(mpmath.mpf(twice) / 2 / scale)
        if abs(p - edge) > edge * mpmath.mpf(10) ** -40:
            return bool(p <= edge)
    return bool(p <= tail(mpmath.mpf(twice) / 2 / scale))


def is_rounding(p: mpmath.mpf, scale: float, n: int) -> bool:
    """Whether n - 1/2 <= scale * Q^-1(p) <= n + 1/2, by mpmath alone."""
    inner = n == 0 or below_edge(p, scale, 2 * n - 1)
    return inner and not below_edge(p, scale, 2 * n + 1)


def agrees(words: np.ndarray, scale: np.ndarray, values: np.ndarray) -> bool:
    """Whether every value is the rounding that its word and `refine` lead to."""
    with mpmath.workdps(340):
        for i, (word, s, value) in enumerate(
            zip(words.tolist(), scale.tolist(), values.tolist(), strict=True)
        ):
            negative, k = divmod(word, 2**63)
            p = (mpmath.mpf((k << 64 * FURTHER_WORDS) + further(i)) + 0.5) / CELLS
            if not is_rounding(p, s, abs(value)):
                return False
            if value and (value < 0) != bool(negative):
                return False
    return True


def split(cell: int) -> list[int]:
    """The words of a cell of p of width 2^-960, sign positive."""
    return [cell >> 64 * m & (2**64 - 1) for m in range(FURTHER_WORDS, -1, -1)]


def run_words(words: list[int], scale: float) -> tuple[int, int]:
    """The result for one coordinate, and how many further words it took."""
    more = Fixed(*words[1:])
    value = rounded_gaussian(1, scale, Fixed(words[0]), lambda i: more)
    return int(value[0]), more.taken // 8


# --- exact on the same bits -----------------------------------------------------


@pytest.mark.parametrize("scale", SCALES + ODD_SCALES)
def test_equals_the_rounding_of_the_same_bits(scale):
    n = 400
    words = np.frombuffer(ChaCha(7).read(8 * n), "<u8")
    assert agrees(words, np.full(n, scale), draw(n, scale, label=7))


@pytest.mark.deep
@pytest.mark.parametrize("scale", SCALES + ODD_SCALES)
def test_equals_the_rounding_of_many_bits(scale):
    n = 50_000
    words = np.frombuffer(ChaCha(8).read(8 * n), "<u8")
    assert agrees(words, np.full(n, scale), draw(n, scale, label=8))


def test_one_scale_per_coordinate():
    n = 1200
    scale = 2.0 ** np.linspace(0, 44, n)
    words = np.frombuffer(ChaCha(9).read(8 * n), "<u8")
    values = draw(n, scale, label=9)
    assert agrees(words, scale, values)
    strided = np.repeat(scale, 2)[::2]
    np.testing.assert_array_equal(values, draw(n, strided, label=9))


def test_the_reference_rejects_a_result_off_by_one():
    n = 200
    words = np.frombuffer(ChaCha(7).read(8 * n), "<u8")
    scale = np.full(n, 2.0**40)
    values = draw(n, 2.0**40, label=7)
    assert agrees(words, scale, values)
    for wrong in (values + 1, values - 1, -values):
        assert not agrees(words, scale, wrong)
    values[137] += 1
    assert not agrees(words, scale, values)


@pytest.mark.parametrize("scale", thinned(SCALES + ODD_SCALES, 12, keep=(11,)))
def test_tails_by_the_words_that_lead_there(scale):
    """From 6 to 36 sigma: prefixes of p with few, one or no leading words."""
    rng = np.random.default_rng(1)
    leading = [2**b - 1 for b in range(1, 35)] + [0, 1, 2, 3, 2**17, 2**18 - 1, 2**18]
    for zeros in (0, 1, 2, 8, FURTHER_WORDS - 1, FURTHER_WORDS):
        for head in leading[:: 1 if zeros == 0 else 7]:
            rest = rng.integers(1, 2**63, FURTHER_WORDS - zeros).tolist()
            words = [0] * zeros + [head | 1] + rest
            n, taken = run_words(words, scale)
            cell = functools.reduce(lambda high, low: high << 64 | low, words)
            with mpmath.workdps(340):
                p = (mpmath.mpf(cell) + 0.5) / CELLS
                # A cell that all words leave open: the middle, to within one.
                near = (n - 1, n, n + 1) if taken == FURTHER_WORDS else (n,)
                assert any(is_rounding(p, scale, each) for each in near)
            assert n > 5.9 * scale - 1
            assert run_words([words[0] | 2**63, *words[1:]], scale)[0] == -n


@pytest.mark.parametrize("scale", SCALES + ODD_SCALES)
def test_nothing_but_zeros(scale):
    """The farthest result there is: the middle of the last cell, 36.3 sigma."""
    n, taken = run_words([0] * (FURTHER_WORDS + 1), scale)
    assert taken == FURTHER_WORDS
    assert abs(n - 36.375839313 * scale) < 1 + 1e-6 * scale
    assert n < 2**50


def boundaries(scale: float) -> list[int]:
    """n next to a half integer worth trying: the centre, the body, the tails."""
    steps = (0.0, 0.7, 1.9, 3.3, 6.5, 8.9, 13.0)
    return sorted({round(x * scale) for x in steps} | {0, 1, 2})


@pytest.mark.parametrize("scale", thinned(SCALES + ODD_SCALES, 4, keep=(11,)))
def test_open_coordinates_are_settled_by_the_words_that_settle_them(scale):
    """p that agrees with a boundary for m words and differs in the last place."""
    for n in boundaries(scale):
        with mpmath.workdps(340):
            edge = int(mpmath.floor(tail(mpmath.mpf(2 * n + 1) / 2 / scale) * CELLS))
        for m in range(1, FURTHER_WORDS + 1):
            spare = 64 * (FURTHER_WORDS - m)
            cell = edge >> spare
            if cell < 4:
                continue  # the tail begins deeper
            # A smaller tail probability is a larger |N|.
            assert run_words(split((cell - 1) << spare), scale) == (n + 1, m)
            assert run_words(split((cell + 1) << spare), scale) == (n, m)
        # On the boundary for all the words: either neighbour, and no more bits.
        last, taken = run_words(split(edge), scale)
        assert last in (n, n + 1) and taken == FURTHER_WORDS


@pytest.mark.parametrize("scale", SCALES + ODD_SCALES)
def test_words_nearest_to_a_half_integer(scale):
    """The cells around one that holds a boundary need no more bits.

    At 2^b cells from it, the fast path turns from leaving open to deciding.
    """
    for n in boundaries(scale):
        with mpmath.workdps(60):
            edge = int(mpmath.floor(tail(mpmath.mpf(2 * n + 1) / 2 / scale) * 2**64))
        for distance in (2**b for b in range(14)):
            if edge < 4 * scale * distance:
                break  # in the far tail so many cells hold another boundary
            assert run_words([edge - distance], scale)[0] == n + 1
            if edge + distance < 2**63:
                assert run_words([edge + distance], scale)[0] == n


def test_decided_ones_do_not_ask_and_open_ones_ask_by_their_own_index():
    with mpmath.workdps(60):
        edge = int(mpmath.floor(tail(mpmath.mpf(16001) / 2 / 2**13) * 2**64))
    n = 2 * module._BLOCK + 5
    words = np.frombuffer(ChaCha(3).read(8 * n), "<u8").copy()
    forced = [0, 17, module._BLOCK, module._BLOCK + 3, n - 1]
    words[forced] = edge
    asked: list[int] = []

    def remember(i: int) -> ChaCha:
        asked.append(i)
        return refine(i)

    values = rounded_gaussian(n, 2.0**13, Fixed(*words.tolist()), remember)
    assert asked == forced
    for i in (*forced, 1, 2, 3, 8191, 8193, 16383, 16384):
        with mpmath.workdps(340):
            cell = (int(words[i]) % 2**63 << 64 * FURTHER_WORDS) + further(i)
            p = (mpmath.mpf(cell) + 0.5) / CELLS
            assert is_rounding(p, 2.0**13, abs(int(values[i])))


def test_blocks_do_not_show(monkeypatch):
    whole = draw(1000, 2.0**40, label=5)
    monkeypatch.setattr(module, "_BLOCK", 7)
    np.testing.assert_array_equal(whole, draw(1000, 2.0**40, label=5))
    np.testing.assert_array_equal(whole[:100], draw(100, 2.0**40, label=5))


def test_a_fast_path_with_too_small_a_bound_is_caught(monkeypatch):
    """Without its error term the fast path decides cells that hold a boundary."""

    def careless(words: np.ndarray):
        at = enclose(words)
        return at._replace(error=at.error * 0 - 2.0**-59)

    wrong = 0
    scale = 2.0**44
    for n in range(10**6, 10**6 + 300):
        with mpmath.workdps(60):
            edge = int(mpmath.floor(tail(mpmath.mpf(2 * n + 1) / 2 / scale) * 2**64))
        for k, true in ((edge - 1, n + 1), (edge + 1, n)):
            assert run_words([k, *split(2**200)[1:]], scale)[0] == true
            with monkeypatch.context() as patch:
                patch.setattr(module, "enclose", careless)
                wrong += run_words([k, *split(2**200)[1:]], scale)[0] != true
    assert wrong > 0


# --- integer arithmetic for the open ones ---------------------------------------


def test_tail_bounds_enclose_mpmath():
    rng = np.random.default_rng(2)
    places = [1e-13, 2.0**-45, 0.5, 1.0, 37.0, 38.0, *rng.uniform(0, 38, 24)]
    with mpmath.workdps(700):
        for t in places:
            for bits in (64, 128, 384, 1024):
                low, high = tail_bounds(*float(t).as_integer_ratio(), bits)
                exact = tail(mpmath.mpf(float(t))) * mpmath.mpf(2) ** bits
                assert low <= exact <= high <= low + 4


def test_constants_enclose_mpmath():
    with mpmath.workdps(800):
        for point in (64, 128, 1024, 2176):
            low, high = module._inverse_root_two_pi(point)
            exact = mpmath.mpf(2) ** point / mpmath.sqrt(2 * mpmath.pi)
            assert low <= exact <= high <= low + 4


@pytest.mark.parametrize("scale", [1.0, 3.3, 8.0, 30.0])
def test_cells_left_open_are_those_the_distance_counts(scale):
    """The argument for eta, with 12 bits of p in place of 960: every cell visited."""
    bits = 12
    undecided = {
        k for k in range(2 ** (bits - 1)) if not module._locate(k, bits, scale)[1]
    }
    with mpmath.workdps(30):
        edges = [tail((n + mpmath.mpf(0.5)) / scale) for n in range(int(5 * scale))]
    hold_an_edge = {int(edge * 2**bits) for edge in edges}
    assert undecided == hold_an_edge | {0}


def test_no_boundary_beyond_37_leaves_the_first_cell():
    with mpmath.workdps(30):
        assert tail(mpmath.mpf(37)) < mpmath.mpf(2) ** -963


# --- the distance and the estimates ---------------------------------------------


def test_distance_is_the_formula_rounded_up():
    for count in (1, 10**6, 10**12):
        for scale in (1.0, 2.0**26, 2.0**44):
            exact = count * (74 * Fraction(scale) + 3) / Fraction(2) ** 959
            bound = Fraction(sampler_distance(count, scale))
            assert exact <= bound <= exact * (1 + Fraction(1, 2**50))
    assert sampler_distance(0, 8.0) == 0.0
    assert sampler_distance(1, LARGEST_SCALE) < 2.0**-908.7
    each = np.array([8.0, 2.0**30, 9.0])
    assert sampler_distance(3, each) == sampler_distance(3, 2.0**30)


def test_open_fraction_is_what_happens(monkeypatch):
    """A Poisson count, two-sided at 1e-6."""
    seen: list[int] = []
    real = module._decide

    def remember(k: int, scale: float, more: Callable[[], ChaCha]) -> int:
        seen.append(k)
        return real(k, scale, more)

    monkeypatch.setattr(module, "_decide", remember)
    n, scale = 2**21, LARGEST_SCALE
    draw(n, scale, label=21)
    expected = n * open_fraction(scale)
    assert expected > 200
    low, high = stats.poisson.ppf([5e-7, 1 - 5e-7], expected)
    assert low <= len(seen) <= high


# --- the law, at significance 1e-6 ----------------------------------------------

ALPHA = 1e-6  # of rejecting the true law, split over the three statistics
MISS = 1e-6  # of missing a sabotaged sampler
PARTS = 3
SHIFT, STRETCH = 0.05, 1.05


def enough_draws() -> int:
    """The n at which a scale off by 5% and a mean off by 5% are both seen."""

    def excess(n: float) -> float:
        low, high = stats.chi2.ppf([ALPHA / PARTS / 2, 1 - ALPHA / PARTS / 2], n)
        missed = stats.chi2.cdf(high / STRETCH**2, n)
        missed_small = stats.chi2.sf(low / (2 - STRETCH) ** 2, n)
        return math.log(max(missed, missed_small, 1e-300) / MISS)

    for_scale = float(optimize.brentq(excess, 100, 10**7))
    z = float(stats.norm.isf(ALPHA / PARTS / 2) + stats.norm.isf(MISS))
    # 1/12: the variance of the rounding, which at scale 8 weakens the shift a little.
    for_mean = (z / SHIFT) ** 2 * (1 + 1 / 12 / 8**2)
    return math.ceil(max(for_scale, for_mean))


def looks_gaussian(sample: np.ndarray, scale: float) -> bool:
    """Mean, variance and 32 cells of about equal probability."""
    n = len(sample)
    level = ALPHA / PARTS
    # Rounding adds 1/12 to the variance, up to exp(-2 pi^2 scale^2).
    unit = sample / math.sqrt(scale**2 + 1 / 12)
    mean = 2 * stats.norm.sf(abs(unit.sum()) / math.sqrt(n))
    power = float(unit @ unit)
    spread = 2 * min(stats.chi2.cdf(power, n), stats.chi2.sf(power, n))
    edges = np.unique(np.rint(stats.norm.ppf(np.arange(1, 32) / 32) * scale)) + 0.5
    chance = np.diff(stats.norm.cdf(edges / scale), prepend=0, append=1)
    seen = np.bincount(np.searchsorted(edges, sample), minlength=len(chance))
    cells = stats.chisquare(seen, n * chance).pvalue
    return bool(min(mean, spread, cells) > level)


SABOTAGE: dict[str, Callable[[int, float], np.ndarray]] = {
    "scale 5% too large": lambda n, s: draw(n, s * STRETCH, label=31),
    "scale 5% too small": lambda n, s: draw(n, s * (2 - STRETCH), label=32),
    "mean shifted up": lambda n, s: draw(n, s, label=33) + math.ceil(SHIFT * s),
    "mean shifted down": lambda n, s: draw(n, s, label=34) - math.ceil(SHIFT * s),
    "sign bit lost": lambda n, s: np.abs(draw(n, s, label=35)),
    "another law": lambda n, s: np.rint(
        s * np.random.default_rng(1).logistic(scale=math.sqrt(3) / math.pi, size=n)
    ).astype(np.int64),
}


@pytest.mark.parametrize("exponent", thinned(range(3, 41), 3))
def test_law_is_accepted(exponent):
    n = enough_draws()
    assert 30_000 < n < 60_000
    assert looks_gaussian(draw(n, 2.0**exponent, label=exponent), 2.0**exponent)


@pytest.mark.parametrize("exponent", [3, 10, 20, 26, 30, 40])
@pytest.mark.parametrize("kind", SABOTAGE)
def test_sabotage_is_rejected(kind, exponent):
    assert not looks_gaussian(
        SABOTAGE[kind](enough_draws(), 2.0**exponent), 2.0**exponent
    )


def test_rounding_down_is_rejected_on_a_coarse_grid():
    """floor in place of round is a mean of -1/2, 6% of scale 8."""
    n = enough_draws()
    floored = np.floor(draw(n, 2.0**40, label=36) / 2.0**37).astype(np.int64)
    assert not looks_gaussian(floored, 8.0)


def test_neighbouring_coordinates_are_independent():
    n = 10**6
    x = draw(n, 2.0**26, label=41) / 2.0**26
    for lag in (1, 2, 8, module._BLOCK):
        products = x[lag:] * x[:-lag]
        z = products.sum() / math.sqrt(len(products))
        assert 2 * stats.norm.sf(abs(z)) > ALPHA / 4


@pytest.mark.deep
@pytest.mark.parametrize("exponent", [3, 26, 40])
def test_law_with_many_draws_and_far_cells(exponent):
    """2e7 draws in 512 cells, and the counts beyond 3, 4 and 5 sigma."""
    scale, n = 2.0**exponent, 2 * 10**7
    sample = draw(n, scale, label=100 + exponent)
    edges = np.unique(np.rint(stats.norm.ppf(np.arange(1, 512) / 512) * scale)) + 0.5
    chance = np.diff(stats.norm.cdf(edges / scale), prepend=0, append=1)
    seen = np.bincount(np.searchsorted(edges, sample), minlength=len(chance))
    assert stats.chisquare(seen, n * chance).pvalue > ALPHA
    for sigmas in (3, 4, 5):
        beyond = math.floor(sigmas * scale) + 1
        p = 2 * stats.norm.sf((beyond - 0.5) / scale)
        count = int(np.count_nonzero(np.abs(sample) >= beyond))
        assert stats.binomtest(count, n, p).pvalue > ALPHA / 3


# --- arguments ------------------------------------------------------------------


def test_nothing_asked_nothing_drawn():
    stream = ChaCha(0)
    values = rounded_gaussian(0, 8.0, stream, refine)
    assert values.shape == (0,) and values.dtype == np.int64 and stream.taken == 0
    assert rounded_gaussian(0, np.empty(0), stream, refine).shape == (0,)


def test_eight_bytes_per_coordinate():
    stream = ChaCha(0)
    values = rounded_gaussian(20_001, 8.0, stream, refine)
    assert values.dtype == np.int64 and stream.taken == 8 * 20_001


@pytest.mark.parametrize(
    "scale",
    [math.nan, math.inf, -math.inf, 0.0, -8.0, 0.999, 2.0**44 * 1.001, 1e300],
)
def test_scale_out_of_range(scale):
    stream = ChaCha(0)
    for wrong in (scale, np.array([8.0, scale, 8.0])):
        with pytest.raises(ValueError, match=r"scale must be between 1 and 2\^44; got"):
            rounded_gaussian(3, wrong, stream, refine)
        with pytest.raises(ValueError, match="a finer grid"):
            sampler_distance(3, wrong)
    assert stream.taken == 0


def test_shape_of_scale():
    for wrong in (np.full(2, 8.0), np.full((3, 1), 8.0)):
        with pytest.raises(ValueError, match=r"one per coordinate, shape \(3,\)"):
            rounded_gaussian(3, wrong, ChaCha(0), refine)


def test_count_must_be_a_count():
    with pytest.raises(ValueError, match="count must be at least 0; got -1"):
        rounded_gaussian(-1, 8.0, ChaCha(0), refine)
    for wrong in (1.5, True, "3"):
        with pytest.raises(TypeError, match="count must be a whole number"):
            rounded_gaussian(wrong, 8.0, ChaCha(0), refine)  # type: ignore[arg-type]


def test_a_stream_that_runs_dry_is_refused():
    with pytest.raises(ValueError, match="gave 8 bytes where 16 were asked"):
        rounded_gaussian(2, 8.0, Fixed(1), refine)
    with pytest.raises(ValueError, match="gave 0 bytes where 8 were asked"):
        rounded_gaussian(1, 8.0, Fixed(0), lambda i: Fixed())
