"""Private searches: one entry, secret runs, crashes, and what is refused."""

import logging
import os
import pickle
import sys
import traceback
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from demur import AddOrRemoveOne, Budget, Ledger, Promise, Seeded
from demur.core import accounting
from demur.core.accounting.repetitions import draw
from demur.errors import (
    BudgetExceeded,
    NotPaidFor,
    NotPriced,
    NotSearchable,
    SearchInterrupted,
)
from demur.ledger import Filter, RunLedger
from demur.mechanisms import Gaussian
from demur.tuning import (
    BinomialRepetitions,
    NegativeBinomialRepetitions,
    NoisyScore,
    PoissonRepetitions,
    PrivateSearch,
    SearchCandidate,
    correct_answers,
    held_back,
    search_costs,
    small_loss,
)
from demur.tuning.secrecy import _JAX_CACHE, silence

UNIT = AddOrRemoveOne()
LAW = NegativeBinomialRepetitions.of_mean(6.0, 1.0)
PROMISE = Promise(UNIT, 8.0, 1e-6)


def noise(name, sigma=4.0):
    return Gaussian(sigma, {UNIT: 1.0}, 1, name)


def searching(value=None, law=LAW, settings=4, **options):
    """A search over noisy counts; `value(setting)` is the exact count of a run."""
    seen = []

    def candidate(i):
        mechanism = noise(f"setting {i}")

        def run(ledger):
            exact = float(i) if value is None else value(i)
            found = mechanism.release([exact], ledger=ledger, label="a run")
            seen.append((i, float(found.value[0])))
            return found

        def credited(found, entry):
            return float(found.value[0]), entry

        return SearchCandidate({"i": i}, mechanism, run, credited=credited)

    score = NoisyScore("score", lambda found: float(found.value[0]), noise("score"))
    candidates = [candidate(i) for i in range(settings)]
    return PrivateSearch(candidates, law, score, promise=PROMISE, **options), seen


def ledger_at(path, **options):
    return Ledger.open(
        path,
        dataset="persons",
        budgets={UNIT: Budget(8.0, 1e-6)},
        filter=Filter.pure(),
        testing=True,
        **options,
    )


def test_one_entry_pays_for_all_runs_and_the_winner_leads_to_it(tmp_path):
    ledger = ledger_at(tmp_path / "ledger.db")
    search, seen = searching()
    for seed in range(40):  # a seed with several runs
        if seed:
            ledger.close()
            ledger = ledger_at(tmp_path / f"ledger{seed}.db")
            seen.clear()
        found = search.run(ledger, label="search", digest="d", source=Seeded(seed))
        if len(seen) >= 3:
            break
    (entry,) = ledger.entries()
    assert found.entry == entry and found.value[1] == entry
    assert found.value[0] in [value for _, value in seen]
    assert ledger.verify().ok
    price = ledger.epsilon()
    assert price == pytest.approx(search.price(1e-6), rel=1e-3) and price < 8.0
    one = noise("one").declaration().cost.at(UNIT)
    assert accounting.price(one, 1e-6) < price  # the winner alone would be cheaper
    text = found.statement()
    assert "time is not part" in text and "stay secret" in text


def test_nothing_of_the_other_runs_is_left_anywhere(tmp_path, capfd, caplog):
    path = tmp_path / "ledger.db"
    ledger, sizes = ledger_at(path), []

    def noisy(i):
        print(f"run of {i}")
        print(f"run of {i}", file=sys.stderr)
        print(f"run of {i}", file=sys.__stdout__)
        os.write(2, b"run of a library")
        logging.getLogger("runs").error("run of %s", i)
        logging.getLogger("runs").log(60, "run of %s", i)
        warnings.warn(f"run of {i}", stacklevel=1)
        files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
        sizes.append([(p.name, p.read_bytes()) for p in files])
        return float(i)

    search, seen = searching(noisy)
    found = search.run(ledger, label="s", digest="d", source=Seeded(1))
    assert len(seen) > 1 and all(size == sizes[0] for size in sizes)
    out = capfd.readouterr()
    assert not (out.out or out.err or caplog.records)
    assert logging.root.manager.disable == logging.NOTSET
    # The charge and its commit; neither names a run or how many there were.
    assert len(ledger.entries()) == 1 and ledger.tip().sequence == 2
    assert b"run of" not in path.read_bytes() and b"a run" not in path.read_bytes()
    assert [p.name for p in tmp_path.rglob("*.key")] == ["input-digests.key"]
    assert len(pickle.dumps((found.outcome, found.setting, found.score))) < 1000


def test_a_run_that_fails_is_an_outcome_and_its_error_stays_inside():
    def broken(i):
        raise RuntimeError("the exact value is 17")

    search, _ = searching(broken)
    ledger = Ledger(Budget(8.0, 1e-6), unit=UNIT, filter=Filter.pure())
    found = search.run(ledger, label="s", source=Seeded(1))
    assert (found.outcome, found.value, found.setting) == ("failed", None, None)
    assert len(ledger.entries()) == 1

    def sometimes(i):
        if i:
            raise RuntimeError("the exact value is 17")
        return 0.0

    search, seen = searching(sometimes)
    found = search.run(ledger_like(), label="s", source=Seeded(1))
    assert found.outcome == ("found" if seen else "failed")


def ledger_like():
    return Ledger(Budget(8.0, 1e-6), unit=UNIT, filter=Filter.pure())


def test_a_crash_repeats_the_same_runs_and_pays_once(tmp_path):
    ledger = ledger_at(tmp_path / "ledger.db")
    state = {"left": 2}

    def killed(i):
        if state["left"] == 0:
            raise KeyboardInterrupt("after run 2 of 5")
        state["left"] -= 1
        return float(i)

    search, seen = searching(killed, law=BinomialRepetitions(8, 0.9))
    again = {
        "label": "s",
        "digest": "d",
        "idempotency_key": "night",
        "source": Seeded(5),
    }
    with pytest.raises(KeyboardInterrupt) as stopped:
        search.run(ledger, **again)
    told = stopped.value
    assert not told.args and told.__cause__ is None and told.__context__ is None
    # A debugger's view: no frame on the way knows a number of runs.
    frames = [frame for frame, _ in traceback.walk_tb(told.__traceback__)]
    names = {name for frame in frames[1:] for name in frame.f_locals}
    assert frames[1:] and not names & {"count", "run", "chosen", "stop", "key"}
    first, spent = list(seen), ledger.epsilon()
    seen.clear()
    state["left"] = 1000
    ledger.close()
    ledger = ledger_at(tmp_path / "ledger.db")  # another process
    found = search.run(ledger, **again | {"source": Seeded(99)})
    assert seen[: len(first)] == first and len(seen) > len(first)
    assert ledger.epsilon() == spent and len(ledger.entries()) == 1
    assert found.value[0] in [value for _, value in seen]
    # The twin: a payment of its own draws another number of runs, and costs again.
    seen.clear()
    with pytest.raises(BudgetExceeded):
        for night in range(20):
            search.run(ledger, **again | {"idempotency_key": str(night)})


def test_a_key_that_is_wiped_on_the_way_ends_the_search(tmp_path):
    """Another thread with the same call is done, or fails: the rest cannot be drawn.

    The twin would release the best of the runs before that, a number of runs that
    nobody has paid for.
    """
    ledger = ledger_at(tmp_path / "ledger.db")

    def wiped(i):
        if len(seen) == 2:
            ledger._keys.wipe(ledger.entries()[0].id)
        return float(i)

    search, seen = searching(wiped, law=BinomialRepetitions(8, 0.9))
    with pytest.raises(RuntimeError, match="stopped by NoiseReuse"):
        search.run(ledger, label="s", digest="d", idempotency_key="k", source=Seeded(5))
    assert len(seen) == 2 and ledger.commit_of(ledger.entries()[0]) is None


class Odd(BaseException):
    """Something that a library raises."""


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (SystemExit(3), SystemExit, "3"),
        (SystemExit("run 2 of 5"), SystemExit, "1"),
        (Odd("run 2 of 5"), SearchInterrupted, "stopped by Odd"),
    ],
)
def test_what_stops_a_search_is_told_by_its_kind_alone(raised, kind, words):
    def stops(i):
        raise raised

    search, _ = searching(stops)
    with pytest.raises(kind) as stopped:
        search.run(ledger_like(), label="s", source=Seeded(1))
    assert words in str(stopped.value) and "run 2" not in str(stopped.value)
    assert stopped.value.__context__ is None


def test_by_default_the_entry_of_the_search_takes_the_place_of_a_runs():
    search, _ = searching()
    plain = [replace(each, credited=None) for each in search.candidates]
    found = replace(search, candidates=plain).run(
        ledger_like(), label="s", source=Seeded(1)
    )
    assert found.value.entry == found.entry
    assert found.value.statement() == found.statement()
    assert "commit" in found.statement()  # the ledger's rows have times, too

    # What holds a release and the run's ledger is treated alike.
    def holding(run):
        return lambda own: [SimpleNamespace(found=run(own), ledger=own)]

    held = [replace(each, run=holding(each.run)) for each in plain]
    score = replace(search.score, value=lambda v: float(v[0].found.value[0]))
    found = replace(search, candidates=held, score=score).run(
        ledger_like(), label="s", source=Seeded(1)
    )
    (value,) = found.value
    assert value.found.entry == found.entry and value.ledger is None


@pytest.mark.parametrize("answers", [[0], np.zeros(6), np.zeros((3, 1)), np.zeros(2)])
def test_a_score_has_one_term_for_each_row(answers):
    X, one = np.zeros((3, 1)), Promise(UNIT, 1.0, 1e-6)
    count = correct_answers(X, [0, 0, 0], one, predict=lambda o, X: answers)
    loss = small_loss(lambda o: answers, 1.0, one, rows=3)
    for score in (count, loss):
        with pytest.raises(ValueError, match="one answer or loss for each"):
            score.value(None)
        assert "alone" in score.declaration().assumptions[0]
    with pytest.raises(ValueError, match="one label for each"):
        correct_answers(X, np.zeros((3, 2)), one)
    good = correct_answers(X, [0, 0, 1], one, predict=lambda o, X: np.zeros(3))
    assert good.value(None) == 2


def test_a_score_knows_its_rows_by_a_digest():
    X, one = np.arange(6.0).reshape(3, 2), Promise(UNIT, 1.0, 1e-6)
    moved = X + [[0, 0], [0, 0], [0, 1]]
    digests = {
        correct_answers(rows, labels, one).digest()
        for rows in (X, moved, X.tolist())
        for labels in ([0, 0, 1], ["a", "b", "c"], np.array([0, None, "c"], object))
    }
    assert len(digests) == 6  # a list of rows is the same as their array
    losses = [small_loss(len, 1.0, one, rows=3, data=(r,)).digest() for r in (X, moved)]
    assert losses[0] != losses[1]


def test_persons_who_score_are_not_trained_on():
    search_plans = pytest.importorskip("demur.tuning.plan_search").search_plans
    users = pytest.importorskip("demur.training").UserData(np.eye(3), ids=[1, 2, 3])

    def score(one):
        return correct_answers(np.eye(1, 3), [0], one, ids=[3])

    with pytest.raises(NotSearchable, match="trained on and scored"):
        search_plans(lambda e: [], PROMISE, None, None, users, score=score)


def test_silence_ends_with_the_last_search_that_needs_it(capfd):
    with silence():
        with silence():
            pass
        os.write(1, b"a run")
    os.write(1, b"outside")
    assert capfd.readouterr().out == "outside"


@pytest.mark.slow
def test_programs_of_runs_are_kept_out_of_a_cache_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    cache = pytest.importorskip(_JAX_CACHE)
    wanted = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in wanted}

    def compiled(number):
        jax.jit(lambda x: x * number + 1.0)(np.ones(3)).block_until_ready()
        return len(list(tmp_path.iterdir()))

    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        cache.reset_cache()
        first = compiled(2.0)
        assert first
        with silence():
            assert compiled(3.0) == first
        assert compiled(4.0) > first
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        cache.reset_cache()


def test_no_run_at_all_is_released_and_costs_the_same():
    law = PoissonRepetitions(0.2)
    search, seen = searching(law=law)
    found = search.run(ledger_like(), label="s", source=Seeded(1))
    assert (found.outcome, seen) == ("empty", [])
    assert law.nothing == pytest.approx(np.exp(-0.2), rel=1e-4)


def test_a_run_cannot_charge_anything_else(tmp_path):
    search, _ = searching(settings=2)
    ledger = ledger_like()
    with ledger.paid(search, label="s", digest="d", source=Seeded(0)) as payment:
        key = payment.key.authorise(search.declaration().fingerprint, "d")
        declared = [(noise("setting 0").declaration(), 1)]
        with RunLedger(ledger.terms, key, 0, declared) as own:
            with pytest.raises(NotPaidFor):
                noise("setting 0", sigma=3.9).release([1.0], ledger=own)
            first = noise("setting 0").release([1.0], ledger=own)
            with pytest.raises(NotPaidFor):
                noise("setting 0").release([1.0], ledger=own)
        with RunLedger(ledger.terms, key, 0, declared) as own:
            assert noise("setting 0").release([1.0], ledger=own).value == first.value
        with RunLedger(ledger.terms, key, 1, declared) as own:
            assert noise("setting 0").release([1.0], ledger=own).value != first.value


def test_filters_price_a_search_or_say_what_they_need():
    search, _ = searching()
    plain = Ledger(Budget(8.0, 1e-6), unit=UNIT, filter="gaussian")
    with pytest.raises(NotPriced, match="blocks=0.5"):
        search.run(plain, label="s")
    assert not plain.entries()
    for rule in (Filter.gaussian(blocks=0.5), Filter.rdp(8)):
        ledger = Ledger(Budget(12.0, 1e-6), unit=UNIT, filter=rule)
        search.run(ledger, label="s", source=Seeded(1))
        assert len(ledger.entries()) == 1
    with pytest.raises(BudgetExceeded):
        search.run(Ledger(Budget(0.5, 1e-6), unit=UNIT, filter="pure"), label="s")


def test_what_is_no_private_search_is_refused():
    search, _ = searching()
    with pytest.raises(TypeError, match="fixed number"):
        PrivateSearch(search.candidates, 10, search.score)
    with pytest.raises(TypeError, match="declared mechanism"):
        PrivateSearch(search.candidates, LAW, lambda outcome, ledger: 1.0)
    with pytest.raises(ValueError, match="differ"):
        PrivateSearch([*search.candidates, search.candidates[0]], LAW, search.score)


def test_who_is_held_back_does_not_depend_on_the_others():
    ids = np.array([f"person {i}" for i in range(500)])
    back = held_back(ids, 0.3)
    assert 0.2 < back.mean() < 0.4
    without = np.delete(np.arange(500), 123)
    assert (held_back(ids[without], 0.3) == back[without]).all()
    assert (held_back(ids[::-1], 0.3) == back[::-1]).all()
    # The twin: a permutation of the rows moves others when one is gone.
    shuffled = [np.random.default_rng(0).permutation(n) < 0.3 * n for n in (500, 499)]
    assert (shuffled[0][without] != shuffled[1]).sum() > 50
    assert (held_back(["a", "a"], 0.5)[0] == held_back(["a", "a"], 0.5)).all()
    with pytest.raises(ValueError, match="whole number or text"):
        held_back([0.5, 1.5])
    for odd in (["\ud800", "b"], [b"\xff", b"b"], np.ma.array([1, 2], mask=[0, 1])):
        with pytest.raises(ValueError, match=r"(?s)ids must.*othing was"):
            held_back(odd)
    # A person's side follows from the id alone, however the column is stored.
    numbers = held_back(range(200), 0.5)
    for stored in (np.arange(200, dtype=np.uint8), list(map(str, range(200)))):
        assert (held_back(stored, 0.5) == numbers).all()
    assert (held_back(np.arange(200).astype(object), 0.5) == numbers).all()
    assert (held_back([*range(200), 10**30, "x"], 0.5)[:200] == numbers).all()


def test_a_search_costs_less_than_composition():
    for cost in search_costs([1.0], [10], 1e-6):
        assert 1.0 < cost.multiple < 2.0 < cost.composed


def test_the_number_of_runs_follows_its_law():
    law, counts = BinomialRepetitions(3, 0.5), np.zeros(4)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        counts[draw(law, rng.bytes)] += 1
    expected = 2000 * np.array([1, 3, 3, 1]) / 8
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 0.1% of chi squared (3)
