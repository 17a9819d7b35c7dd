"""Words that no run will meet, laid in by hand: far normals, rare shells."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from demur.mechanisms.bpm import exact, sampler
from demur.mechanisms.bpm.sampler import draw, grid_of
from demur.mechanisms.bpm.table import BITS, Table, make_table
from demur.mechanisms.sampling.row_streams import RowStreams

D = 2


class Laid:
    """Row streams whose first attempt (and chosen further bits) are laid in."""

    def __init__(
        self,
        first: dict[int, list[int]],
        further: dict[tuple[int, int, int], int] | None = None,
    ) -> None:
        self.real = RowStreams(bytes(range(32)))
        self.first, self.further = first, further or {}
        self.attempts: list[list[int]] = []

    def words(self, ids: Any, start: int, width: int) -> Any:
        self.attempts.append([int(i) for i in ids])
        found = self.real.words(ids, start, width)
        for place, row in enumerate(map(int, ids)):
            if start == 0 and row in self.first:
                found[place] = np.array(self.first[row], dtype=np.uint64)
        return found

    def further_bits(self, row: int, word: int, level: int) -> int:
        if (row, word, level) in self.further:
            return self.further[row, word, level]
        return self.real.further_bits(row, word, level)


def shell_word(table: Table) -> int:
    """A first word whose place is the last one of a shell."""
    return (int(table.upper[len(table.upper) // 2]) - 1) << 2


def true_indices(
    table: Table, words: list[int], streams: Laid, grid: float, levels: int
) -> list[int]:
    """The report of row 0 at (1/2, 1/2) by mpmath, all bits of the normals in."""
    with mp.workdps(120):
        place = words[0] >> 2
        shell = np.searchsorted(table.upper, np.uint64(place), "right")
        outer = table.outer[int(shell)]
        z = []
        for i, word in enumerate(words[2:], start=2):
            sign, value = -1 if word >> 63 else 1, word & (2**63 - 1)
            for level in range(1, levels + 1):
                value = value << 64 | streams.further_bits(0, i, level)
            p = (mp.mpf(value) + 0.5) / mp.mpf(2) ** (64 * (levels + 1))
            z.append(sign * mp.sqrt(2) * mp.erfinv(1 - 2 * p))
        norm = mp.sqrt(sum(x * x for x in z))
        half = mp.mpf(1) / 2
        return [
            int(mp.floor((half + mp.mpf(float(outer)) * x / norm) / grid + half))
            for x in z[:D]
        ]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_normal_beyond_float64_is_drawn_and_not_thrown_away(zeros: int) -> None:
    """The word of a normal is 0, and so are the next `zeros` ones behind it."""
    table, grid = make_table(4.0, 2.2335, D), grid_of(4.0, 2.2335, D)
    words = [shell_word(table), 0, 0, 2**62, 3 * 2**61, 2**61]
    streams = Laid({0: words}, {(0, 2, 1 + k): 0 for k in range(zeros)})
    ids = np.array([0], dtype=np.uint64)
    found = draw(np.full((1, D), 0.5), ids, table, grid, streams)  # type: ignore[arg-type]
    assert streams.attempts == [[0]]  # it was not drawn again
    assert found[0].tolist() == true_indices(table, words, streams, grid, zeros + 2)


def rare_table() -> Table:
    """The Laplace mechanism's table with all of its places in the rare share."""
    table = make_table(4.0, math.inf, D)
    return Table(
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


def test_a_row_that_starts_again_does_not_hold_up_the_next() -> None:
    table, grid = rare_table(), grid_of(4.0, math.inf, D)
    beyond = [2**63, 2**63, *[2**62] * 4]  # past every rare shell: start again
    inside = [1 << 30, 2**63, *[2**62] * 4]
    streams = Laid({0: beyond, 1: inside})
    rows = np.arange(2)
    laid = np.array([beyond, inside], dtype=np.uint64)
    out = np.zeros((2, D), dtype=np.int64)
    status = sampler._attempt(
        np.full((2, D), 0.5),
        rows.astype(np.uint64),
        rows,
        laid,
        0,
        table,
        grid,
        streams,  # type: ignore[arg-type]
        out,
    )
    assert status.tolist() == [1, 0]  # again, done
    own = exact.RowWords(streams, 1, 0, inside)  # type: ignore[arg-type]
    radius = exact.rare_radius(table, own)
    assert radius is not None
    expected = exact.ball_indices(table, radius, [0.5] * D, grid, own)
    assert out[1].tolist() == expected


@pytest.mark.parametrize("words_at_once", [1, 7, 64])
def test_batches_of_any_size_give_the_same_reports(
    words_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, grid = make_table(4.0, 0.5, 3), grid_of(4.0, 0.5, 3)
    points = np.random.default_rng(0).random((40, 3))
    ids = np.arange(40, dtype=np.uint64)
    whole = draw(points, ids, table, grid, RowStreams(bytes(32)))
    monkeypatch.setattr(sampler, "_WORDS_AT_ONCE", words_at_once)
    assert np.array_equal(draw(points, ids, table, grid, RowStreams(bytes(32))), whole)


@pytest.mark.parametrize("off", [-(2.0**-28), -(2.0**-29), 2.0**-29, 2.0**-28])
@pytest.mark.parametrize("k", [2**60, 2**50 + 12345, 2**61 + 7])
def test_a_poor_guess_costs_width_and_not_truth(
    off: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Newton step from a guess that is off: the bounds are widened until true."""
    bits = 64

    class Guess(NormalDist):
        def inv_cdf(self, p: float) -> float:
            return super().inv_cdf(p) * (1.0 + off)

    monkeypatch.setattr(exact, "NormalDist", Guess)
    monkeypatch.setattr(exact, "range", lambda _: range(1), raising=False)
    bounds = exact.normal_bounds(k, bits)
    assert bounds is not None
    with mp.workdps(80):
        low, high = (mp.mpf(end) / mp.mpf(2) ** (bits + 16) for end in bounds)
        assert mp.erfc(low / mp.sqrt(2)) / 2 >= mp.mpf(k + 1) / mp.mpf(2) ** bits
        assert mp.erfc(high / mp.sqrt(2)) / 2 <= mp.mpf(k) / mp.mpf(2) ** bits


@pytest.mark.parametrize("above", [False, True])
def test_a_number_next_to_the_chance_of_acceptance_takes_more_bits(above: bool) -> None:
    """128 bits of u are those of the chance itself; the next ones decide."""
    table, grid = make_table(4.0, 2.2335, D), grid_of(4.0, 2.2335, D)
    near, far = 2**63 - 2**58, 2**58
    words = [shell_word(table), 0, far, far, near, near]
    streams = Laid({0: words})
    with mp.workdps(120):
        shell = np.searchsorted(table.upper, np.uint64(words[0] >> 2), "right")
        outer = mp.mpf(float(table.outer[int(shell)]))
        squares = []
        for i, word in enumerate(words[2:], start=2):
            value = word
            for level in (1, 2, 3):
                value = value << 64 | streams.further_bits(0, i, level)
            p = (mp.mpf(value) + 0.5) / mp.mpf(2) ** 256
            squares.append(2 * mp.erfinv(1 - 2 * p) ** 2)
        n = mp.sqrt(mp.fsum(squares))
        n_d = mp.sqrt(mp.fsum(squares[:D]))
        gap = 4 * outer * mp.fsum(squares[D:]) / (n * (n + n_d))
        step = 4 * mp.mpf(table.step)
        assert 0 < gap < step
        chance = mp.expm1(gap) / mp.expm1(step)
        start = int(mp.floor(chance * mp.mpf(2) ** 128))
    words[1] = start >> 64
    streams.further[0, 1, 1] = start & (2**64 - 1)
    streams.further[0, 1, 2] = 2**64 - 1 if above else 0
    own = exact.RowWords(streams, 0, 0, words)  # type: ignore[arg-type]
    found = exact.ball_indices(table, float(outer), [0.5] * D, grid, own)
    assert (1, 2) in own._further  # more bits were asked for
    if above:
        assert found is None
    else:
        assert found == true_indices(table, words, streams, grid, 3)
