"""BPM's sampler: the table's proof, float64 against integers, the law of reports."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import NoiseReuse
from demur.mechanisms import BPM
from demur.mechanisms.bpm import exact, sampler
from demur.mechanisms.bpm.constants import log_gamma_p, threshold_for
from demur.mechanisms.bpm.exact import RowWords, normal_bounds, rare_radius
from demur.mechanisms.bpm.sampler import draw, grid_of
from demur.mechanisms.bpm.table import BITS, Table, beyond, make_table
from demur.mechanisms.sampling.row_streams import RowStreams
from tests.keys import os_key
from tests.mechanisms import drawing

ALPHA = 1e-7  # of a single test; there are some hundreds
# (epsilon, L, d): all uniform, mixed, nearly Laplace, Laplace; with and without rare.
CASES = [
    (2.0, 0.3, 1),
    (4.0, 2.2, 1),
    (4.0, 0.5, 2),
    (4.0, 2.2335, 2),
    (4.0, math.inf, 2),
    (8.0, 1.0, 7),
    (4.0, 7.5520687, 10),
    (4.0, 30.0, 20),
    (50.0, 1e4, 2),
    (1e-3, 0.3, 2),
    (1e6, 1.0, 2),
    (64.0, 64.7, 784),
]


def seeded_key(seed: int) -> NoiseKey:
    return NoiseKey(Seeded(seed).new_key(), private=False)


# -- the table: privacy of the very numbers in it ------------------------------------


def components(table: Table) -> tuple[mp.mpf, list[tuple[mp.mpf, mp.mpf]]]:
    """The cube's weight, and (radius, weight) of shells from the outside in."""
    weights = [int(w) for w in np.diff(table.upper, prepend=np.uint64(0))]
    shells = [
        (mp.mpf(o), mp.mpf(w) / 2**BITS)
        for o, w in zip(table.outer.tolist(), weights, strict=True)
        if math.isfinite(o)
    ]
    cube = mp.mpf(weights[-1]) / 2**BITS if math.isinf(table.outer[-1]) else mp.mpf(0)
    if table.rare_cube is not None:
        cube += mp.exp(mp.mpf(table.rare_cube))
    rare: list[tuple[mp.mpf, mp.mpf]] = []
    radius = table.first_rare
    while radius is not None and radius <= table.L and len(rare) < 4000:
        rare.append((mp.mpf(radius), mp.exp(mp.mpf(table.log_weight(radius)))))
        radius += table.step
    return cube, rare[::-1] + shells


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "L", "d"), CASES)
def test_log_density_of_the_table_is_epsilon_lipschitz(
    epsilon: float, L: float, d: int
) -> None:
    """Condition (*) of bpm_table, in 60 digits, from the numbers the table holds."""
    table = make_table(epsilon, L, d)
    with mp.workdps(60):
        cube, shells = components(table)
        half = mp.mpf(d) / 2
        volume = mp.pi**half / mp.gamma(half + 1)
        steps = mp.expm1(mp.mpf(epsilon) * mp.mpf(table.step))
        bounded = math.isfinite(L)
        phi = cube / (1 + 2 * mp.mpf(L)) ** d if bounded else mp.mpf(0)
        reaches_the_edge = not shells or (bounded and shells[0][0] == mp.mpf(L))
        start = 0
        if not reaches_the_edge:
            # The innermost 4000 rare shells alone (there is no end to them): what lies
            # beyond is at least what (*) demands for the first of these.
            o, a = shells[0]
            phi = a / (volume * o**d) * (1 + 1 / steps)
            start = 1
        tightest = mp.mpf(0)
        for o, a in shells[start:]:
            q = a / (volume * o**d)
            assert q <= steps * phi
            tightest = max(tightest, q / (steps * phi))
            phi += q
    if shells:
        assert tightest > 1 - mp.mpf(2) ** -18, "the law should be BPM's, and no weaker"
    radii = [o for o, _ in shells]
    assert all(a - b == table.step for a, b in zip(radii, radii[1:], strict=False))


@pytest.mark.parametrize(("epsilon", "L", "d"), CASES)
def test_weights_fill_the_table_and_rare_ones_fit_their_share(
    epsilon: float, L: float, d: int
) -> None:
    table = make_table(epsilon, L, d)
    whole = int(table.upper[-1]) + table.rare
    assert 2**BITS * (1 - 1e-7 * 10) < whole <= 2**BITS
    rare = math.exp(table.rare_cube) if table.rare_cube is not None else 0.0
    radius = table.first_rare
    while radius is not None and radius <= table.L:
        weight = math.exp(table.log_weight(radius))
        rare += weight
        if weight < 2.0**-100:
            break
        radius += table.step
    assert rare * 2.0**BITS < table.rare or rare == table.rare == 0
    assert table.rare < 2.0 ** (BITS - 20)


def test_the_bound_on_the_rest_of_the_shells() -> None:
    """More than their sum beyond the peak, and no claim at all before it."""
    table = make_table(4.0, 30.0, 20)
    assert table.first_rare is not None
    radii = np.arange(table.first_rare, 30.0, table.step)
    weights = np.exp([table.log_weight(r) for r in radii])
    rest = beyond(4.0, 20, table.step, radii[0], math.log(weights[0]))
    assert weights[1:].sum() < rest < 1.5 * weights.sum()
    assert beyond(4.0, 20, table.step, 4.0, 0.0) == math.inf


def test_a_table_with_one_weight_too_large_is_caught() -> None:
    """The check above has teeth: one part in a million too much in one shell."""
    table = make_table(4.0, 0.5, 2)
    with mp.workdps(60):
        cube, shells = components(table)
        steps = mp.expm1(mp.mpf(4) * mp.mpf(table.step))
        phi = cube / mp.mpf(4)
        fine = []
        for n, (o, a) in enumerate(shells):
            q = a * (1 + mp.mpf(10) ** -6 * (n == 5)) / (mp.pi * o**2)
            fine.append(q <= steps * phi)
            phi += a / (mp.pi * o**2)
    assert fine.count(False) == 1 and not fine[5]


# -- float64 against integers --------------------------------------------------------


def everything_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the float64 kernels answer 'open' always, and nothing else."""

    def unsure(where: int) -> Callable[..., None]:
        def kernel(*arguments: np.ndarray) -> None:
            arguments[-1][arguments[where]] = 2

        return kernel

    monkeypatch.setattr(sampler, "_ball", unsure(2))
    monkeypatch.setattr(sampler, "_cube", unsure(1))


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "L", "d"), CASES)
def test_integers_give_the_same_reports(
    epsilon: float, L: float, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, grid = make_table(epsilon, L, d), grid_of(epsilon, L, d)
    n = 50 if d <= 20 else 1
    rng = np.random.default_rng(d)
    points, ids = rng.random((n, d)), rng.integers(0, 2**64, n, dtype=np.uint64)
    streams = RowStreams(os.urandom(32))
    fast = draw(points, ids, table, grid, streams)
    everything_open(monkeypatch)
    assert np.array_equal(draw(points, ids, table, grid, streams), fast)


def truth(table: Table, words: list[int], point: list[float], grid: float) -> list[Any]:
    """Positions x_i / g of a shell's draw by mpmath, from the words' middles."""
    place = words[0] >> 2
    radius = mp.mpf(float(table.outer[np.searchsorted(table.upper, place, "right")]))
    z = []
    for word in words[2:]:
        k, sign = word & (2**63 - 1), -1 if word >> 63 else 1
        p = (mp.mpf(k) + mp.mpf(1) / 2) / mp.mpf(2) ** 64
        z.append(sign * mp.sqrt(2) * mp.erfinv(1 - 2 * p))
    norm = mp.sqrt(sum(value**2 for value in z))
    d = len(point)
    return [
        (mp.mpf(v) + radius * value / norm) / mp.mpf(grid)
        for v, value in zip(point, z[:d], strict=True)
    ]


@pytest.mark.slow
def test_a_report_close_to_the_edge_of_a_cell_is_left_to_integers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Points chosen so that the report falls 2^-35 cells beside an edge."""
    epsilon, L, d = 4.0, 2.2335, 2
    table, grid = make_table(epsilon, L, d), grid_of(epsilon, L, d)
    streams = RowStreams(bytes(range(32)))
    calls: list[int] = []
    plain = exact.ball_indices

    def counted(*arguments) -> list[int] | None:
        calls.append(1)
        return plain(*arguments)

    monkeypatch.setattr(exact, "ball_indices", counted)
    tried = 0
    for row in range(120):
        ids = np.array([row], dtype=np.uint64)
        point = [0.5, 0.5]
        before = draw(np.array([point]), ids, table, grid, streams)
        words = [int(w) for w in streams.words(ids, 0, d + 4)[0]]
        with mp.workdps(40):
            if words[0] >> 2 >= int(table.upper[-2]):
                continue
            at = truth(table, words, point, grid)
            if [int(mp.nint(x)) for x in at] != before[0].tolist():
                continue  # the first attempt was rejected
            # Move v so that coordinate 0 comes to lie next to a half integer.
            target = mp.floor(at[0]) + mp.mpf(1) / 2 - at[0]
            point[0] = float(mp.mpf(point[0]) + target * mp.mpf(grid))
            moved = truth(table, words, point, grid)
            gap = abs(moved[0] - mp.floor(moved[0]) - mp.mpf(1) / 2)
            assert gap < mp.mpf(2) ** -33
            expected = [int(mp.floor(x + mp.mpf(1) / 2)) for x in moved]
        calls.clear()
        found = draw(np.array([point]), ids, table, grid, streams)
        # The words' undrawn bits may decide where the gap is tiny; 2^-45 is not.
        if gap > mp.mpf(2) ** -45:
            assert found[0].tolist() == expected
        assert calls, "float64 decided what it cannot know"
        tried += 1
    assert tried > 50


def test_open_rows_are_rare() -> None:
    calls = []
    table, grid = make_table(4.0, 2.2335, 2), grid_of(4.0, 2.2335, 2)
    plain = exact.ball_indices

    def counted(*arguments) -> list[int] | None:
        calls.append(1)
        return plain(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "ball_indices", counted)
        n = 200_000
        points = np.random.default_rng(0).random((n, 2))
        ids = np.arange(n, dtype=np.uint64)
        draw(points, ids, table, grid, RowStreams(os.urandom(32)))
    assert len(calls) < 20


@pytest.mark.parametrize("bits", [64, 128, 192, 320])
def test_normal_bounds_enclose_the_quantile(bits: int) -> None:
    rng = np.random.default_rng(bits)
    for _ in range(6):
        k = int.from_bytes(rng.bytes(bits // 8), "little") >> 1
        k >>= int(rng.integers(0, 60))
        bounds = normal_bounds(k, bits)
        assert bounds is not None
        with mp.workdps(bits // 3 + 40):
            unit = mp.mpf(2) ** (bits + 16)
            low, high = (mp.mpf(b) / unit for b in bounds)
            tails = [mp.erfc(x / mp.sqrt(2)) / 2 for x in (low, high)]
            assert tails[0] >= mp.mpf(k + 1) / mp.mpf(2) ** bits
            assert tails[1] <= mp.mpf(k) / mp.mpf(2) ** bits
            density = mp.npdf(high)
            assert high - low < 8 / (mp.mpf(2) ** bits * density)
    assert normal_bounds(0, bits) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "L", "d"), [(4.0, math.inf, 2), (4.0, 30.0, 20), (64.0, 64.7, 784)]
)
def test_rare_shells_come_in_their_proportions(
    epsilon: float, L: float, d: int
) -> None:
    table = make_table(epsilon, L, d)
    assert table.first_rare is not None
    streams, rng = RowStreams(bytes(32)), np.random.default_rng(1)
    n = 400
    found = []
    for row in range(n):
        place = int(table.upper[-1]) + int(rng.random() * table.rare)
        words = RowWords(streams, row, 0, [place << 2 | int(rng.integers(4))])
        found.append(rare_radius(table, words))
    radii = table.first_rare + table.step * np.arange(3000)
    radii = radii[radii <= table.L]
    weights = np.exp([table.log_weight(r) for r in radii]) * 2.0**BITS / table.rare
    starts = np.concatenate([[0.0], np.cumsum(weights)])
    # The probability transform of what was found is uniform on (0, 1).
    shells = np.array([r for r in found if r is not None and math.isfinite(r)])
    index = np.rint((shells - table.first_rare) / table.step).astype(int)
    places = starts[index] + weights[index] * rng.random(len(shells))
    assert stats.kstest(places, "uniform", args=(0, starts[-1])).pvalue > ALPHA
    assert len(shells) > 0.9 * n


def test_the_rare_path_draws_reports() -> None:
    """A table whose words all fall into the rare share: Laplace's far tail."""
    table = make_table(4.0, math.inf, 2)
    assert table.first_rare is not None
    shifted = Table(
        **(
            vars(table)
            | {
                "upper": np.array([0], dtype=np.uint64),
                "outer": np.array([1.0]),
                "guide": np.zeros(4096, dtype=np.int64),
                "rare": 2**BITS,
            }
        )
    )
    # The rare weights are a tiny part of 2^62 now: nearly all draws start again, so
    # the place itself is forced to lie among them.
    words = RowWords(RowStreams(bytes(32)), 1, 0, [1 << 30, 2**63, *[2**62] * 4])
    radius = rare_radius(shifted, words)
    assert radius is not None and radius >= table.first_rare
    grid = grid_of(4.0, math.inf, 2)
    indices = exact.ball_indices(shifted, radius, [0.5, 0.5], grid, words)
    assert indices is not None
    # Equal normals: the report lies on the diagonal, at radius / sqrt(d + 2) each.
    expected = 0.5 + radius / 2.0
    assert np.allclose(np.array(indices) * grid, expected, atol=grid)


# -- the law -------------------------------------------------------------------------


def truncated_gamma(bpm: BPM) -> Callable[[np.ndarray], np.ndarray]:
    """CDF of |x - v| given that it is at most L."""
    d, k = bpm.dimension, bpm.epsilon
    whole = math.exp(log_gamma_p(d, k * bpm.L)) if math.isfinite(bpm.L) else 1.0
    return lambda r: special.gammainc(d, k * r) / whole


def follows_the_law(reports: np.ndarray, bpm: BPM, v: np.ndarray) -> list[str]:
    """Which of several tests, each at ALPHA, the reports fail."""
    n, d = reports.shape
    moved = reports - v
    radius = np.linalg.norm(moved, axis=1)
    inside = radius <= bpm.L
    failed = []
    if stats.binomtest(int(inside.sum()), n, bpm.p_L).pvalue < ALPHA:
        failed.append("p_L")
    limit = stats.norm.isf(ALPHA / 2)
    deviation = reports.std(axis=0) / math.sqrt(n)
    if (np.abs(reports.mean(axis=0) - bpm.mean(v)) > limit * deviation).any():
        failed.append("mean")
    square = radius**2
    off = abs(square.mean() - float(bpm.mse(v)))
    if off > limit * square.std() / math.sqrt(n):
        failed.append("mse")
    if inside.any():
        near = radius[inside]
        if stats.kstest(near, truncated_gamma(bpm)).pvalue < ALPHA:
            failed.append("radius")
        if d > 1:
            # A coordinate of a uniform direction: (u + 1) / 2 is Beta((d-1)/2, ...).
            u = moved[inside, -1] / near
            beta = stats.beta((d - 1) / 2, (d - 1) / 2)
            if stats.kstest((u + 1) / 2, beta.cdf).pvalue < ALPHA:
                failed.append("direction")
    if (~inside).sum() > 100 and d >= 20:
        # So far out the ball is a speck: what lies outside is uniform on the cube.
        side = (reports[~inside, 0] + bpm.L) / (1 + 2 * bpm.L)
        if stats.kstest(side, "uniform").pvalue < ALPHA:
            failed.append("cube")
    return failed


def mechanisms() -> list[BPM]:
    """alpha = 1/2 in every dimension, and the paper's kind of parameters."""
    found = []
    for d in (1, 2, 3, 7, 20, 64):
        found.append(BPM(4.0, threshold_for(4.0, d, 0.5), d))
        found.append(BPM(8.0, math.inf, d))
    return [*found, BPM(2.0, 0.3, 2), BPM(4.0, 0.5, 2), BPM(8.0, 1.0, 7)]


def sample(bpm: BPM, v: np.ndarray, n: int) -> np.ndarray:
    return bpm.apply(np.tile(v, (n, 1)), os_key(bpm))


@pytest.mark.slow
@pytest.mark.parametrize("bpm", mechanisms(), ids=str)
def test_reports_follow_the_law(bpm: BPM) -> None:
    v = np.linspace(0.0, 1.0, bpm.dimension + 1)[1:]  # one coordinate on the border
    assert follows_the_law(sample(bpm, v, 40_000), bpm, v) == []


@pytest.mark.deep
@pytest.mark.parametrize("bpm", mechanisms(), ids=str)
def test_a_million_reports_follow_the_law(bpm: BPM) -> None:
    v = np.linspace(0.0, 1.0, bpm.dimension + 1)[1:]
    reports = np.concatenate([sample(bpm, v, 100_000) for _ in range(10)])
    assert follows_the_law(reports, bpm, v) == []


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 7, 64])
def test_the_tests_of_the_law_have_power(d: int) -> None:
    """epsilon off by 10%, or L by 20%, is found with the same number of reports."""
    bpm = BPM(4.0, threshold_for(4.0, d, 0.5), d)
    v = np.full(d, 0.5)
    for other in (BPM(4.4, bpm.L, d), BPM(4.0, 1.2 * bpm.L, d)):
        assert follows_the_law(sample(other, v, 40_000), bpm, v)


@pytest.mark.slow
@pytest.mark.parametrize("bpm", mechanisms(), ids=str)
def test_the_papers_sampler_agrees(bpm: BPM) -> None:
    n, v = 20_000, np.full(bpm.dimension, 0.25)
    ours = sample(bpm, v, n)
    paper = bpm.apply_two_stage(np.tile(v, (n, 1)), seeded_key(bpm.dimension))
    assert follows_the_law(paper, bpm, v) == []
    for a, b in [
        (np.linalg.norm(ours - v, axis=1), np.linalg.norm(paper - v, axis=1)),
        (ours[:, 0], paper[:, 0]),
        (ours.sum(axis=1), paper.sum(axis=1)),
        (ours.max(axis=1), paper.max(axis=1)),
    ]:
        assert stats.ks_2samp(a, b).pvalue > ALPHA


@pytest.mark.parametrize(("epsilon", "L", "d"), CASES)
def test_reports_lie_on_the_grid_in_the_cube(epsilon: float, L: float, d: int) -> None:
    bpm = BPM(epsilon, L, d)
    assert math.frexp(bpm.grid)[0] == 0.5, "a power of two"
    v = np.random.default_rng(0).integers(0, 2, size=(50, d)).astype(float)
    reports = bpm.apply(v, os_key(bpm))
    assert np.array_equal(np.rint(reports / bpm.grid) * bpm.grid, reports)
    assert (reports >= -L).all() and (reports - 1 <= L).all()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1.0, 1e6])
def test_laplace_at_any_scale(epsilon: float) -> None:
    bpm = BPM(epsilon, math.inf, 2)
    v = np.array([0.1, 0.9])
    assert follows_the_law(sample(bpm, v, 20_000), bpm, v) == []


def test_the_lattice_is_the_same_for_every_point() -> None:
    """The last bits say nothing: a point off the grid gives reports on it."""
    bpm = BPM(4.0, 0.5, 3)
    for point in (np.full((200, 3), 1 / 3), np.full((200, 3), 0.1 + 1e-9)):
        index = bpm.apply(point, os_key(bpm)) / bpm.grid
        assert np.array_equal(index, np.rint(index))


@pytest.mark.slow
def test_a_hundred_thousand_dimensions() -> None:
    d = 100_000
    bpm = BPM(64.0, "auto", d)
    v = np.full((4, d), 0.5)
    reports = bpm.apply(v, os_key(bpm))
    radius = np.linalg.norm(reports - v, axis=1)
    near = radius[radius < 2 * d / bpm.epsilon]
    assert len(near) >= 2  # 99% each
    assert near == pytest.approx(d / bpm.epsilon, rel=0.03)


# -- one stream for each row ---------------------------------------------------------


def test_order_batches_and_threads_change_nothing() -> None:
    bpm = BPM(4.0, 2.2335, 2)
    rng = np.random.default_rng(5)
    n = 30_000
    points, ids = rng.random((n, 2)), rng.permutation(n).astype(np.uint64) << 40
    whole = bpm.apply(points, seeded_key(1), ids)
    assert np.array_equal(whole, bpm.apply(points, seeded_key(1), ids))
    order = rng.permutation(n)
    assert np.array_equal(
        bpm.apply(points[order], seeded_key(1), ids[order]), whole[order]
    )
    key = seeded_key(1)
    cuts = np.array_split(np.arange(n), 37)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda c: bpm.apply(points[c], key, ids[c]), cuts))
    assert np.array_equal(np.concatenate(parts), whole)
    one = bpm.apply(points[77:78], key, ids[77:78])
    assert np.array_equal(one[0], whole[77])
    assert not np.array_equal(whole, bpm.apply(points, seeded_key(2), ids))


def test_rows_are_independent() -> None:
    """Neighbouring row ids and equal points: no correlation between reports."""
    bpm = BPM(4.0, 2.2335, 2)
    reports = bpm.apply(np.full((40_000, 2), 0.5), os_key(bpm))[:, 0]
    for lag in (1, 2, 64):
        r = np.corrcoef(reports[:-lag], reports[lag:])[0, 1]
        assert abs(r) * math.sqrt(len(reports)) < stats.norm.isf(ALPHA / 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_another_process_draws_the_same_for_the_same_key(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    number = 2 if method == "fork" else 1  # a second each, to import everything
    assert len(drawing.here_and_there(context, number, drawing.bpm_reports)) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_a_key_refuses() -> None:
    bpm = BPM(4.0, 0.5, 1)
    key = os_key(bpm)
    bpm.apply([[0.5]], key)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            bpm.apply([[0.5]], key)
            answer = b"drew"
        except NoiseReuse:
            answer = b"refused"
        except BaseException:
            answer = b"failed"
        os.write(writer, answer)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)
    os.close(writer)
