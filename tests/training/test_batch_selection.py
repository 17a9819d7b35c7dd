"""Batch strategies against their laws, written out pattern by pattern."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from jax_privacy import batch_selection as peer
from scipy.stats import chisquare

from demur.core.entropy import NoiseKey, OsEntropy, Seeded
from demur.core.errors import NoiseReuse
from demur.training import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    UserSelectionStrategy,
    pad_to_multiple_of,
    split_and_pad_global_batch,
)

RUNS = 3000
Pattern = tuple[tuple[int, ...], ...]  # the sorted batch of each step
Law = dict[Pattern, Fraction]


def add(law: Law, pattern, weight) -> None:
    key = tuple(tuple(sorted(batch)) for batch in pattern)
    law[key] = law.get(key, Fraction(0)) + weight


def poisson_law(n, p, steps, groups) -> Law:
    """groups: list of (members of each group, weight)."""
    law: Law = {}
    for parts, weight in groups:
        ways = []
        for step in range(steps):
            group = parts[step % len(parts)]
            ways.append(
                [
                    (chosen, p ** len(chosen) * (1 - p) ** (len(group) - len(chosen)))
                    for size in range(len(group) + 1)
                    for chosen in itertools.combinations(group, size)
                ]
            )
        for combination in itertools.product(*ways):
            chance = math.prod((w for _, w in combination), start=weight)
            add(law, [c for c, _ in combination], chance)
    return law


def truncated_law(n, p, cap) -> Law:
    law: Law = {}
    for size in range(n + 1):
        for chosen in itertools.combinations(range(n), size):
            weight = p**size * (1 - p) ** (n - size)
            kept = list(itertools.combinations(chosen, min(size, cap)))
            for cut in kept:
                add(law, [cut], weight / len(kept))
    return law


def independent_groups(n, groups):
    for who in itertools.product(range(groups), repeat=n):
        parts = [[i for i in range(n) if who[i] == g] for g in range(groups)]
        yield parts, Fraction(1, groups**n)


def equal_groups(n, groups):
    size = n // groups
    for order in itertools.permutations(range(n)):
        parts = [list(order[g * size : (g + 1) * size]) for g in range(groups)]
        yield parts, Fraction(1, math.factorial(n))


def separated_law(p, steps, apart, warm) -> dict[tuple[int, ...], Fraction]:
    """One example: the chance of each set of steps, by walking its states."""
    law: dict[tuple[int, ...], Fraction] = {}

    def walk(step, free_at, seen, weight):
        if step == steps:
            law[seen] = law.get(seen, Fraction(0)) + weight
        elif step < free_at:
            walk(step + 1, free_at, seen, weight)
        else:
            walk(step + 1, step + apart, (*seen, step), weight * p)
            walk(step + 1, free_at, seen, weight * (1 - p))

    if not warm:
        walk(0, 0, (), Fraction(1))
        return law
    total = 1 + (apart - 1) * p
    walk(0, 0, (), 1 / total)
    for free_at in range(1, apart):
        walk(0, free_at, (), p / total)
    return law


def of_two(law: dict[tuple[int, ...], Fraction], steps) -> Law:
    """Two independent examples."""
    both: Law = {}
    for (a, x), (b, y) in itertools.product(law.items(), repeat=2):
        batches = [[i for i, s in enumerate((a, b)) if t in s] for t in range(steps)]
        add(both, batches, x * y)
    return both


P = Fraction(0.375)
EQUAL, INDEPENDENT = PartitionType.EQUAL_SPLIT, PartitionType.INDEPENDENT
LAWS = {
    "poisson": (
        3,
        CyclicPoissonSampling(0.375, 2),
        poisson_law(3, P, 2, [([[0, 1, 2]], Fraction(1))]),
    ),
    "truncated": (
        5,
        CyclicPoissonSampling(0.375, 1, truncated_batch_size=2),
        truncated_law(5, P, 2),
    ),
    "cyclic, equal": (
        5,
        CyclicPoissonSampling(0.375, 3, cycle_length=2, partition_type=EQUAL),
        poisson_law(5, P, 3, equal_groups(5, 2)),
    ),
    "cyclic, independent": (
        3,
        CyclicPoissonSampling(0.375, 3, cycle_length=2, partition_type=INDEPENDENT),
        poisson_law(3, P, 3, independent_groups(3, 2)),
    ),
    "balls in bins": (
        3,
        BallsInBinsSampling(4, 3),
        poisson_law(3, Fraction(1), 4, independent_groups(3, 3)),
    ),
    "separated, warm": (
        2,
        BMinSepSampling(0.375, 4, 3),
        of_two(separated_law(P, 4, 3, True), 4),
    ),
    "separated, cold": (
        2,
        BMinSepSampling(0.375, 4, 3, warm_start=False),
        of_two(separated_law(P, 4, 3, False), 4),
    ),
    "separated by one": (
        3,
        BMinSepSampling(0.375, 2, 1),
        poisson_law(3, P, 2, [([[0, 1, 2]], Fraction(1))]),
    ),
    "fixed": (
        4,
        FixedBatchSampling(2, 2),
        {
            pair: Fraction(1, 36)
            for pair in itertools.product(itertools.combinations(range(4), 2), repeat=2)
        },
    ),
}


def observed(strategy, n: int, runs: int = RUNS) -> Counter:
    source = Seeded(11)
    found: Counter = Counter()
    for _ in range(runs):
        batches = strategy.batch_iterator(n, source)
        found[tuple(tuple(sorted(int(i) for i in b)) for b in batches)] += 1
    return found


def p_value(found: Counter, law: Law) -> float:
    """Chi-squared, rare patterns put together; 0 for a pattern that cannot be."""
    assert sum(law.values()) == 1
    if any(law.get(pattern, 0) == 0 for pattern in found):
        return 0.0
    runs = sum(found.values())
    often = [k for k, w in law.items() if w * runs >= 8]
    counts = [found[k] for k in often]
    wanted = [float(law[k] * runs) for k in often]
    rest = runs - sum(wanted)
    if rest > 1e-9:
        counts.append(runs - sum(counts))
        wanted.append(rest)
    return float(chisquare(counts, np.array(wanted) * runs / sum(wanted)).pvalue)


# Neighbouring laws pass 1000 runs with probability 1e-23 at most (a chi-squared that is
# not central, or a pattern that cannot be), the one of "poisson" 3000 with 3e-7.
RUNS_OF = {name: RUNS if name == "poisson" else 1000 for name in LAWS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *RUNS_OF.items(),
        *(
            pytest.param(name, RUNS, marks=pytest.mark.deep)
            for name, runs in RUNS_OF.items()
            if runs < RUNS
        ),
    ],
)
def test_batches_follow_their_law(name, runs):
    n, strategy, law = LAWS[name]
    assert p_value(observed(strategy, n, runs), law) > 1e-4


WRONG = {
    "poisson": CyclicPoissonSampling(0.425, 2),
    "truncated": CyclicPoissonSampling(0.375, 1),
    "cyclic, equal": LAWS["cyclic, independent"][1],
    "cyclic, independent": LAWS["cyclic, equal"][1],
    "balls in bins": CyclicPoissonSampling(1.0, 4, cycle_length=3),
    "separated, warm": LAWS["separated, cold"][1],
    "separated, cold": LAWS["separated, warm"][1],
    "separated by one": BMinSepSampling(0.375, 2, 2),
    "fixed": FixedBatchSampling(2, 2, replace=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_batches_of_a_neighbouring_law_are_told_apart(name):
    n, _, law = LAWS[name]
    assert p_value(observed(WRONG[name], n, RUNS_OF[name]), law) < 1e-6


@pytest.mark.slow
def test_the_peer_draws_the_same_law():
    """jax_privacy's sampler passes the same test, so the laws are those it means."""
    n, _, law = LAWS["cyclic, equal"]
    theirs = peer.CyclicPoissonSampling(0.375, 3, cycle_length=2)
    rng = np.random.default_rng(5)
    found = Counter(
        tuple(
            tuple(sorted(int(i) for i in b)) for b in theirs.batch_iterator(n, rng=rng)
        )
        for _ in range(RUNS)
    )
    assert p_value(found, law) > 1e-4


STRATEGIES = [
    CyclicPoissonSampling(0.02, 40),
    CyclicPoissonSampling(0.02, 40, truncated_batch_size=3),
    CyclicPoissonSampling(0.2, 40),
    CyclicPoissonSampling(0.2, 40, truncated_batch_size=30),
    CyclicPoissonSampling(0.5, 40, cycle_length=7),
    CyclicPoissonSampling(0.5, 40, cycle_length=7, partition_type=INDEPENDENT),
    CyclicPoissonSampling(1.0, 40, cycle_length=7),
    BallsInBinsSampling(40, 6),
    BMinSepSampling(0.3, 40, 5),
    BMinSepSampling(0.3, 40, 5, warm_start=False, truncated_batch_size=9),
    BMinSepSampling(1.0, 40, 5),
    FixedBatchSampling(25, 40),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("n", [0, 1, 3, 200])
def test_batches_are_distinct_indices_of_the_right_kind(strategy, n):
    if isinstance(strategy, FixedBatchSampling) and n < 25:
        with pytest.raises(ValueError, match="at most num_examples"):
            strategy.batch_iterator(n)
        return
    batches = list(strategy.batch_iterator(n))
    assert len(batches) == 40
    cap = getattr(strategy, "truncated_batch_size", None)
    for batch in batches:
        assert batch.ndim == 1 and batch.dtype == np.min_scalar_type(-n)
        assert len(np.unique(batch)) == len(batch)
        assert not len(batch) or (0 <= batch.min() and batch.max() < n)
        assert cap is None or len(batch) <= cap


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_nobody_comes_back_too_soon(strategy):
    apart = getattr(strategy, "min_sep", getattr(strategy, "cycle_length", 1))
    last = np.full(200, -apart)
    for step, batch in enumerate(strategy.batch_iterator(200)):
        assert (step - last[batch] >= apart).all()
        if not isinstance(strategy, BMinSepSampling | FixedBatchSampling):
            # One residue class for life.
            met = last[batch] >= 0
            assert ((step - last[batch][met]) % apart == 0).all()
        last[batch] = step


def test_an_equal_split_leaves_the_remainder_out():
    whole = CyclicPoissonSampling(1.0, 7, cycle_length=7)
    batches = list(whole.batch_iterator(200))
    assert [len(b) for b in batches] == [28] * 7
    assert len(np.unique(np.concatenate(batches))) == 196


def test_separated_batches_have_one_mean_from_the_start():
    p, apart, n = 0.25, 8, 4000
    rows = [
        [len(b) for b in BMinSepSampling(p, 12, apart).batch_iterator(n, rng=i)]
        for i in range(40)
    ]
    rate = p / (1 + (apart - 1) * p)
    expected = n * rate
    error = math.sqrt(n * rate * (1 - rate) / 40)
    means = np.mean(rows, axis=0)
    assert np.abs(means - expected).max() < 5 * error
    cold = [
        len(next(BMinSepSampling(p, 1, apart, warm_start=False).batch_iterator(n, i)))
        for i in range(40)
    ]
    assert abs(np.mean(cold) - expected) > 50 * error


# -- randomness ------------------------------------------------------------------------


def test_batches_come_from_the_operating_system_by_default():
    strategy = CyclicPoissonSampling(0.5, 1)
    first, second = strategy.batch_iterator(300), strategy.batch_iterator(300)
    assert first.private and second.private
    assert set(next(first).tolist()) != set(next(second).tolist())


@pytest.mark.parametrize("rng", [7, np.int64(7), Seeded(7), np.random.default_rng(7)])
def test_what_can_be_repeated_is_not_private(rng):
    batches = CyclicPoissonSampling(0.5, 1).batch_iterator(300, rng)
    assert not batches.private
    assert "NOT PRIVATE" in repr(batches)


@pytest.mark.parametrize("rng", [True, "seed", 1.5, b"bytes"])
def test_other_randomness_is_refused(rng):
    with pytest.raises(TypeError, match="rng must be"):
        CyclicPoissonSampling(0.5, 1).batch_iterator(300, rng)


class OneKey:
    """A source that gives one key again, as a ledger does to a resumed run."""

    private = True

    def __init__(self):
        self.key = OsEntropy().new_key()

    def new_key(self):
        return self.key


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_run_resumes_where_it_stopped(strategy):
    source = OneKey()
    whole = list(strategy.batch_iterator(200, source))
    rest = list(strategy.batch_iterator(200, source, start=23))
    assert len(rest) == 17
    for one, other in zip(whole[23:], rest, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_key_gives_one_run():
    key = NoiseKey.free(OsEntropy())
    strategy = CyclicPoissonSampling(0.5, 3)
    list(strategy.batch_iterator(50, key))
    with pytest.raises(NoiseReuse):
        next(strategy.batch_iterator(50, key))


def test_probabilities_of_other_floats_are_taken_at_their_value():
    strategy = CyclicPoissonSampling(np.float32(0.1), 2)
    assert strategy.sampling_prob == float(np.float32(0.1))
    assert len(list(strategy.batch_iterator(20))) == 2


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CyclicPoissonSampling(math.nan, 3), "sampling_prob"),
        (lambda: CyclicPoissonSampling(-0.1, 3), "sampling_prob"),
        (lambda: CyclicPoissonSampling(1.5, 3), "sampling_prob"),
        (lambda: CyclicPoissonSampling(0.5, -1), "iterations"),
        (lambda: CyclicPoissonSampling(0.5, 2.0), "iterations"),
        (lambda: CyclicPoissonSampling(0.5, True), "iterations"),
        (lambda: CyclicPoissonSampling(0.5, 3, cycle_length=0), "cycle_length"),
        (lambda: CyclicPoissonSampling(0.5, 3, truncated_batch_size=0), "truncated"),
        (lambda: CyclicPoissonSampling(0.5, 3, partition_type="x"), "partition_type"),
        (lambda: BallsInBinsSampling(3, 0), "cycle_length"),
        (lambda: BMinSepSampling(0.5, 3, 0), "min_sep"),
        (lambda: FixedBatchSampling(-1, 3), "batch_size"),
        (lambda: CyclicPoissonSampling(0.5, 3).batch_iterator(-1), "num_examples"),
        (lambda: CyclicPoissonSampling(0.5, 3).batch_iterator(2**31), "num_examples"),
        (lambda: UserSelectionStrategy("x"), "base_strategy"),
        (lambda: UserSelectionStrategy(FixedBatchSampling(1, 1), 0), "per_user"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


# -- users -----------------------------------------------------------------------------


def test_rows_belong_to_one_user_and_go_round_in_a_circle():
    owners = np.array([5, 9, 5, 2, 9, 5, 9, 9, 9])
    strategy = UserSelectionStrategy(CyclicPoissonSampling(0.7, 60), 2)
    seen: dict[int, list[int]] = {}
    for batch in strategy.batch_iterator(owners, rng=3):
        assert batch.ndim == 2 and batch.shape[1] == 2
        users = owners[batch]
        assert (users == users[:, :1]).all()
        assert len(np.unique(users[:, 0])) == len(batch)
        for row in batch:
            seen.setdefault(int(owners[row[0]]), []).extend(row.tolist())
    for user, order in seen.items():
        own = np.flatnonzero(owners == user).tolist()
        assert order == [own[i % len(own)] for i in range(len(order))]


@pytest.mark.parametrize("owners", [[1.0, math.nan], [math.nan] * 2, ["a", None]])
def test_a_missing_owner_is_no_person(owners):
    strategy = UserSelectionStrategy(CyclicPoissonSampling(1.0, 1))
    with pytest.raises(TypeError, match="user_ids"):
        strategy.batch_iterator(owners)


def test_the_peer_selects_the_same_examples_of_a_user():
    owners = np.random.default_rng(0).integers(0, 6, size=40)
    base = CyclicPoissonSampling(1.0, 5)
    ours = UserSelectionStrategy(base, 3).batch_iterator(owners)
    theirs = peer.UserSelectionStrategy(peer.CyclicPoissonSampling(1.0, 5), 3)
    for one, other in zip(ours, theirs.batch_iterator(owners, rng=0), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())


@pytest.mark.slow
def test_a_shuffled_circle_is_uniform_for_each_user():
    owners = np.array([1, 0, 1, 0, 1])
    strategy = UserSelectionStrategy(CyclicPoissonSampling(1.0, 1), 3, True)
    source = Seeded(2)
    found = Counter(
        tuple(next(strategy.batch_iterator(owners, source))[1].tolist())
        for _ in range(1200)
    )
    assert len(found) == 6 and chisquare(list(found.values())).pvalue > 1e-4


def test_a_resumed_run_of_users_continues_their_circles():
    owners = np.arange(30) % 7
    strategy = UserSelectionStrategy(CyclicPoissonSampling(0.5, 12), 2, True)
    source = OneKey()
    whole = list(strategy.batch_iterator(owners, source))
    rest = strategy.batch_iterator(owners, source, start=8)
    for one, other in zip(whole[8:], rest, strict=True):
        np.testing.assert_array_equal(one, other)


# -- padding ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 5, 8, 9])
def test_padding_agrees_with_the_peer(size):
    indices = np.arange(size)
    np.testing.assert_array_equal(
        pad_to_multiple_of(indices, 4), peer.pad_to_multiple_of(indices, 4)
    )
    ours = split_and_pad_global_batch(indices, 4)
    theirs = peer.split_and_pad_global_batch(indices, 4)
    np.testing.assert_array_equal(np.stack(ours), np.stack(theirs))


def test_an_empty_batch_is_an_ordinary_one():
    nobody = np.empty(0, np.int32)
    assert pad_to_multiple_of(nobody, 4).tolist() == [-1] * 4
    (one,) = split_and_pad_global_batch(nobody, 4, 2)
    assert one.tolist() == [-1] * 4
    (rows,) = split_and_pad_global_batch(np.empty((0, 3), np.int32), 4)
    assert rows.shape == (4, 3) and (rows == -1).all()


def test_real_examples_come_before_padding():
    parts = split_and_pad_global_batch(np.arange(11), 8, 4)
    assert [part.tolist() for part in parts] == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10, -1, -1, -1, -1, -1],
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pad_to_multiple_of(np.zeros((2, 2), int), 4), "1-D"),
        (lambda: pad_to_multiple_of(np.arange(3), 0), "multiple"),
        (lambda: pad_to_multiple_of(np.arange(3, dtype=np.uint8), 4), "signed"),
        (lambda: pad_to_multiple_of(np.arange(3.0), 4), "signed"),
        (lambda: split_and_pad_global_batch(np.arange(3), 4, 3), "divide"),
        (lambda: split_and_pad_global_batch(np.zeros((1, 1, 1), int), 4), "2-D"),
    ],
)
def test_bad_padding_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
