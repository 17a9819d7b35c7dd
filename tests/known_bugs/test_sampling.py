"""Bugs of batches: each test is named after one, and its twin has it."""

import inspect

import numpy as np
import pytest

from demur import AddOrRemoveOne, Seeded
from demur.core.accounting.events import (
    PoissonGaussian,
    TruncatedPoissonGaussian,
    atoms,
)
from demur.core.entropy import NoiseKey
from demur.errors import DemurError, NotPriced
from demur.ledger import Budget, Filter, Ledger
from demur.training import (
    BatchSelectionStrategy,
    CyclicPoissonSampling,
    ExecutionPlanConfig,
)
from demur.training.batches import selection
from tests.known_bugs.kit import sound_and_twin
from tests.training.kit import make_data, make_plan, train

N = 200


@pytest.mark.slow
def test_row_09_the_expected_batch_size_tells_n():
    """Add or remove a record: nothing but the noisy parameters may differ.

    A plan divides by a public number. int(n q) steps when n does, and scales the noise
    of every step with it.
    """

    def is_the_same(run):
        assert run(N) == run(N + 10)

    def ours(n):
        plan = make_plan(iterations=2)
        ledger = Ledger(
            Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure(), dataset="d"
        )
        seen = []
        done = train(
            plan,
            make_data(n=n),
            ledger=ledger,
            source=Seeded(1),
            callback=lambda report: seen.append(
                (report.step, report.iterations, report.epsilon, report.delta)
            ),
        )
        declared = done.entry.declaration.to_json()
        spec = plan.noise_addition_transform.spec
        shapes = [leaf.shape for leaf in done.value.values()]
        return declared, spec.stddev, seen, shapes, repr(done.waste), ledger.status()

    def divides_by_the_expected_size(n):
        return {"stddev": 1.0 / int(n * 0.1)}

    sound_and_twin(is_the_same, ours, divides_by_the_expected_size)


@pytest.mark.slow
def test_row_09_the_update_does_not_follow_n():
    """Records without a gradient change no step, however many there are."""

    def is_the_same(update):
        np.testing.assert_array_equal(update(N), update(2 * N))

    def blank(n):
        data = {"x": np.zeros((n, 4), np.float32), "y": np.zeros(n, np.int32)}
        data["y"][::2] = 1
        return data

    def no_loss(params, batch):
        return 0.0 * params["w"].sum() * batch["x"].sum() + 0.0 * params["b"].sum()

    def ours(n):
        plan = make_plan(iterations=2)
        done = train(plan, blank(n), loss=no_loss, source=Seeded(3))
        return np.asarray(done.value["w"])

    def by_the_expected_size(n):
        noise = np.random.default_rng(3).normal(size=8)
        return noise / int(n * 0.1)

    sound_and_twin(is_the_same, ours, by_the_expected_size)


STRATEGIES = {
    name: one
    for name, one in vars(selection).items()
    if inspect.isclass(one)
    and issubclass(one, BatchSelectionStrategy)
    and not inspect.isabstract(one)
}
MADE = {
    "CyclicPoissonSampling": lambda: CyclicPoissonSampling(0.1, 20),
    "BallsInBinsSampling": lambda: selection.BallsInBinsSampling(20, 10),
    "FixedBatchSampling": lambda: selection.FixedBatchSampling(20, 20),
    "BMinSepSampling": lambda: selection.BMinSepSampling(0.1, 20, 2),
    "RandomAllocationSampling": lambda: selection.RandomAllocationSampling(2, 20),
}


def sizes(strategy, seed=0, n=N):
    key = NoiseKey(Seeded(seed).new_key(), private=False)
    return np.array([len(batch) for batch in strategy.batch_iterator(n, key)])


class Shuffled(CyclicPoissonSampling):
    """Epochs of shuffled batches of n q, under the name of Poisson sampling."""

    def _steps(self, n, key, start):
        rng = np.random.default_rng(0)
        size = int(n * self.sampling_prob)
        for step in range(start, self.iterations):
            if step % (n // size) == 0:
                order = rng.permutation(n)
            place = step % (n // size) * size
            yield order[place : place + size]


def test_row_10_every_strategy_is_here():
    assert set(MADE) == set(STRATEGIES)


@pytest.mark.parametrize("account", ["participation", "amplified"])
@pytest.mark.parametrize("name", MADE)
def test_row_10_shuffled_batches_at_the_price_of_poisson(name, account):
    """Whoever is priced as a Poisson sample draws one: independent coins.

    The size of such a batch is binomial; a shuffled one has a fixed size, and in an
    epoch everybody comes exactly once.
    """

    def draws_what_is_priced(pair):
        event, strategy = pair
        kinds = PoissonGaussian | TruncatedPoissonGaussian
        if not any(isinstance(atom, kinds) for atom in atoms(event)):
            return
        drawn = np.concatenate([sizes(strategy, seed) for seed in range(30)])
        q = strategy.sampling_prob
        spread = drawn.var() / (N * q * (1 - q))
        assert 0.7 < spread < 1.4
        assert abs(drawn.mean() / (N * q) - 1) < 0.05

    def priced(strategy):
        return ExecutionPlanConfig(
            batch_selection_strategy=strategy,
            account=account,
            noise_multiplier=1.0,
            neighboring_relation="REPLACE_SPECIAL",
            l2_clip_norm=1.0,
        ).make()

    strategy = MADE[name]()
    try:
        event = priced(strategy).event()
    except (DemurError, TypeError):
        event = None  # no account: refused, which is an answer
    if event is not None:
        draws_what_is_priced((event, strategy))
    assert (event is None) == (
        (name, account)
        in {
            ("BallsInBinsSampling", "amplified"),
            ("BMinSepSampling", "amplified"),
            ("FixedBatchSampling", "amplified"),
        }
    )
    if account == "participation" and name == "FixedBatchSampling":
        # Whoever may come in all 20 steps is paid for in all 20: noise for sqrt(20).
        spec = priced(strategy).noise_addition_transform.spec
        assert spec.stddev >= np.sqrt(20)
    # The same check finds a shuffled loader at a Poisson price, which is not to be had.
    with pytest.raises(AssertionError):
        draws_what_is_priced((PoissonGaussian(0.1, 1.0), Shuffled(0.1, 20)))
    with pytest.raises(NotPriced):
        priced(Shuffled(0.1, 20))
