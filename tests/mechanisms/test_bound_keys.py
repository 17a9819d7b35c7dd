"""A key draws for what was paid for, and for nothing else.

Each refusal is an attack that works on an unbound key: the twin at the end takes the
question away (`authorise`), and the attacks succeed.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from demur.convex import HeadForm
from demur.convex.heads.noisy_gd import Schedule, plan_descent
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import NoiseKey, OsEntropy, Seeded
from demur.core.errors import DemurError, NoiseReuse, NotPaidFor
from demur.core.promise import Promise
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplaceReports
from demur.mechanisms.exponential import GridQuantile
from demur.mechanisms.sampling.row_streams import RowStreams

UNIT = ReplaceOne()
BALL = Ball(0.3, space="records")
POINTS = np.random.default_rng(0).random((50, 2))
MOVED = POINTS + 2.0**-10 * (POINTS < 0.5)
IDS = np.arange(len(POINTS), dtype=np.uint64)
ROWS = [BPM(4.0, 2.0, 2), LaplaceReports(4.0, 2), GaussianReports(4.0, 2)]
every_row_mechanism = pytest.mark.parametrize(
    "mechanism", ROWS, ids=lambda mechanism: type(mechanism).__name__
)


def ledger(unit=UNIT):
    return Ledger(Budget(100.0, 1e-6), unit=unit, filter="pure")


def descent(steps):
    form, promise = (
        HeadForm("logistic", lam=0.01, norm_bound=1.0),
        Promise(BALL, 1.0, 1e-6),
    )
    return plan_descent(form, promise, Schedule(steps), n=1000, dimension=3)


def gaussian(sigma=16.0, **more):
    return Gaussian(sigma, {UNIT: 1.0}, dimension=2, **more)


def quantile(epsilon=1.0, grid=None):
    grid = np.linspace(0.0, 1.0, 11) if grid is None else grid
    return GridQuantile(0.5, epsilon, grid, UNIT)


def cheap_key_for_a_dear_mechanism():
    """The ledger says 0.007; the reports are the raw points."""
    paid = ledger().paid(BPM(0.005, 2.0, 2), label="cheap")
    reports = BPM(1e6, 2.0, 2).apply(POINTS, paid.key)
    return np.abs(reports - POINTS).max() < 1e-4


def key_of_small_noise_on_large_movements():
    """The same noise, declared for a value that moves a hundred times as far."""
    paid = ledger().paid(gaussian(), label="small")
    moved = Gaussian(16.0, {UNIT: 100.0}, dimension=2)
    return moved.apply([100.0, 0.0], paid.key) is not None


def shows(difference, bpm):
    """Whether the reports differ by what the points differ by, for most rows."""
    exact = np.isclose(difference, MOVED - POINTS, rtol=0, atol=4 * bpm.grid)
    return exact.all(axis=1).mean() > 0.8


def one_key_for_two_inputs():
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    return shows(bpm.apply(MOVED, paid.key) - bpm.apply(POINTS, paid.key), bpm)


def one_key_for_two_inputs_that_nobody_named():
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one")
    return shows(bpm.apply(MOVED, paid.key) - bpm.apply(POINTS, paid.key), bpm)


def one_key_for_two_inputs_in_two_threads():
    """Both ask at once; one of them names the input."""
    bpm = BPM(4.0, 2.0, 2)
    paid, both = ledger().paid(bpm, label="one"), threading.Barrier(2)
    key = paid.key

    def draw(points):
        both.wait(30.0)
        return bpm.apply(points, key)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(draw, (MOVED, POINTS))
    return shows(first - second, bpm)


def the_row_key_of_a_dear_mechanism():
    """After a sound draw the key gives streams; the row key of another does not."""
    cheap, dear = BPM(0.005, 2.0, 2), BPM(1e6, 2.0, 2)
    paid = ledger().paid(cheap, label="cheap", digest=cheap.digest(POINTS))
    cheap.apply(POINTS, paid.key)
    streams = RowStreams(dear.row_key(paid.key, cheap.digest(POINTS)))
    return np.abs(dear.draw_rows(POINTS, IDS, streams) - POINTS).max() < 1e-4


def the_row_key_of_another_input():
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    first = bpm.apply(POINTS, paid.key)
    streams = RowStreams(bpm.row_key(paid.key, bpm.digest(MOVED)))
    return shows(bpm.draw_rows(MOVED, IDS, streams) - first, bpm)


def a_row_key_for_no_input_at_all():
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    return len(bpm.row_key(paid.key)) == 32


def the_key_of_another_part():
    """The first half's key on the second half, under the first half's row ids."""
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    half = paid.key.part(bpm.digest(POINTS[:25]))
    return len(bpm.apply(POINTS[25:], half, IDS[25:])) == 25


def a_quantile_of_another_input(values=(0.1, 0.2, 0.3), other=(0.7, 0.8, 0.9)):
    mechanism = quantile()
    paid = ledger().paid(
        mechanism, label="one", digest=mechanism.digest(np.array(values))
    )
    return mechanism.apply(np.array(other), paid.key) >= 0.0


def a_quantile_from_another_grid():
    """The answer would be one of the values, verbatim."""
    paid = ledger().paid(quantile(), label="one")
    grid = np.array([0.123456789, 0.2])
    return quantile(grid=grid).apply(np.array([0.123456789]), paid.key) in grid


def a_retried_task_with_another_value(tmp_path):
    """The key is handed out again, for the input that was charged: not for another."""
    open_ = {"dataset": "d", "budgets": {UNIT: Budget(100.0, 1e-6)}}
    mechanism, drawn = gaussian(), []
    for value in ([1.0, 2.0], [3.0, 5.0]):
        with Ledger.open(tmp_path / "ledger.db", **open_) as durable:
            paid = durable.paid(
                mechanism,
                label="task",
                digest=mechanism.digest([1.0, 2.0]),
                idempotency_key="task",
            )
            drawn.append(mechanism.apply(value, paid.key))
    return np.allclose(drawn[1] - drawn[0], [2.0, 3.0], atol=4 * mechanism.grid)


def two_noises_for_one_price():
    """The mean of many draws on one value is the value."""
    mechanism = gaussian(1.0)
    paid = ledger().paid(mechanism, label="one")
    drawn = [mechanism.apply([7.0, 8.0], paid.key, draw=i) for i in range(2)]
    return not np.array_equal(*drawn)


def one_draw_more_than_was_reserved():
    mechanism = gaussian()
    paid = ledger().paid(mechanism, count=3, label="three")
    return len([mechanism.apply([i, 0.0], paid.key, draw=i) for i in range(4)]) == 4


def a_key_that_nobody_paid_for():
    mechanism = gaussian()
    key = NoiseKey(OsEntropy().new_key(), private=True)
    return mechanism.apply([1.0, 2.0], key) is not None


def a_key_for_batches():
    mechanism = gaussian()
    return mechanism.apply([1.0, 2.0], NoiseKey.free(OsEntropy())) is not None


def streams_without_a_question():
    """A mechanism of somebody's own that forgets to ask."""
    paid = ledger().paid(gaussian(), label="one")
    return len(paid.key.stream("mine").read(8)) == 8


def the_noise_of_another_mechanism():
    """A key that was authorised once serves no other Gaussian, and no other draw."""
    mechanism, dear = gaussian(), gaussian(1e-3)
    paid = ledger().paid(mechanism, label="x", digest=mechanism.digest([1.0, 2.0]))
    mechanism.apply([1.0, 2.0], paid.key)
    key = paid.key.authorise(mechanism.fingerprint, mechanism.digest([1.0, 2.0]))
    return np.abs(dear.noise(key, draw=1)).max() < 0.1


def a_plan_of_more_steps_than_were_paid_for():
    return descent(400).step.apply(
        np.zeros(3), ledger(BALL).paid(descent(1), label="one").key, draw=7
    ).shape == (3,)


def one_step_more_of_a_descent():
    plan = descent(3)
    key = ledger(BALL).paid(plan, label="three steps", digest="data").key
    drawn = [
        plan.step.apply(np.zeros(3), key, draw=i, paid_as=plan.fingerprint)
        for i in range(4)
    ]
    return len(drawn) == 4


def half_the_noise_in_a_subclass():
    class Half(Gaussian):
        def _scale(self):
            return super()._scale() / 2.0

    paid = ledger().paid(gaussian(), label="whole")
    return Half(16.0, {UNIT: 1.0}, dimension=2).apply([1.0, 2.0], paid.key).size == 2


ATTACKS = [
    the_noise_of_another_mechanism,
    a_plan_of_more_steps_than_were_paid_for,
    one_step_more_of_a_descent,
    half_the_noise_in_a_subclass,
    cheap_key_for_a_dear_mechanism,
    key_of_small_noise_on_large_movements,
    one_key_for_two_inputs,
    one_key_for_two_inputs_that_nobody_named,
    one_key_for_two_inputs_in_two_threads,
    the_row_key_of_a_dear_mechanism,
    the_row_key_of_another_input,
    a_row_key_for_no_input_at_all,
    the_key_of_another_part,
    a_quantile_of_another_input,
    a_quantile_from_another_grid,
    a_retried_task_with_another_value,
    two_noises_for_one_price,
    one_draw_more_than_was_reserved,
    a_key_that_nobody_paid_for,
    a_key_for_batches,
    streams_without_a_question,
]


def run(attack, tmp_path):
    return attack(tmp_path) if "tmp_path" in attack.__code__.co_varnames else attack()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused(attack, tmp_path):
    with pytest.raises(NotPaidFor, match="Nothing was drawn"):
        run(attack, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_without_the_question_the_attack_works(attack, tmp_path, monkeypatch):
    """The twin: keys that are not bound, as they once were."""

    def anything(self, *_: object, **__: object) -> NoiseKey:
        self._may_draw = True
        return self

    plain = NoiseKey.__init__

    def unbound(self, *args: object, **named: object) -> None:
        plain(self, *args, **named)
        self._may_draw = True

    monkeypatch.setattr(NoiseKey, "authorise", anything)
    monkeypatch.setattr(NoiseKey, "check_authorised", anything)
    monkeypatch.setattr(NoiseKey, "__init__", unbound)
    assert run(attack, tmp_path)


@every_row_mechanism
def test_every_report_mechanism_asks(mechanism):
    key = ledger().paid(gaussian(), label="another").key
    with pytest.raises(NotPaidFor, match="another mechanism"):
        mechanism.apply(POINTS, key)
    paid = ledger().paid(mechanism, label="own", digest=mechanism.digest(POINTS))
    with pytest.raises(NotPaidFor, match="another input"):
        mechanism.apply(POINTS[::-1], paid.key)
    with pytest.raises(NotPaidFor, match="another input"):
        mechanism.apply(POINTS, paid.key, IDS + np.uint64(1))
    reports = mechanism.apply(POINTS, paid.key)
    # The same rows in another order are the same input, and get the same reports.
    turned = mechanism.apply(POINTS[::-1], paid.key, IDS[::-1])
    assert np.array_equal(turned[::-1], reports)


@every_row_mechanism
def test_one_entry_pays_for_one_set_of_reports(mechanism):
    """Two draws of an entry would take the same streams: one noise on two inputs."""
    key = ledger().paid(mechanism, label="two", count=2).key
    for points in (POINTS, MOVED):
        with pytest.raises(NotPaidFor, match=r"paid for 2 draws.*Nothing was drawn"):
            mechanism.apply(points, key)
    # The twin is the row key without that question.
    drawing = key.authorise(mechanism.fingerprint, mechanism.digest(POINTS))
    streams = [RowStreams(drawing.subkey("rows")) for _ in range(2)]
    first = mechanism.draw_rows(POINTS, IDS, streams[0])
    second = mechanism.draw_rows(MOVED, IDS, streams[1])
    exact = np.isclose(second - first, MOVED - POINTS, rtol=0, atol=1e-4)
    assert exact.all(axis=1).mean() > 0.8


def test_a_grid_that_changes_after_the_charge_changes_nothing():
    grid = np.linspace(0.0, 1.0, 11)
    mechanism = quantile(grid=grid)
    paid = ledger().paid(mechanism, label="one", digest="rows")
    grid[:] = np.pi
    key = paid.key.authorise(mechanism.fingerprint, "rows")
    assert mechanism.drawn(np.array([0.2, 0.4]), key) <= 1.0
    with pytest.raises(ValueError, match="read-only"):
        mechanism.grid[0] = 0.5
    for bad in ([1.0, 0.0], [np.nan], [[0.1]], [0.1, np.inf]):
        with pytest.raises(ValueError, match="grid must be"):
            quantile(grid=np.array(bad))


def test_the_noise_of_a_value_cannot_be_rescaled_after_the_charge():
    sigma = np.array([16.0, 32.0])
    mechanism = Gaussian(sigma, {UNIT: 1.0}, dimension=2)
    before = mechanism.fingerprint
    sigma[:] = 1e-6
    assert mechanism.sigma.tolist() == [16.0, 32.0]
    for array in (mechanism.sigma, mechanism.grid):
        with pytest.raises(ValueError, match="read-only"):
            np.copyto(array, 1e-6)
    assert Gaussian(mechanism.sigma, {UNIT: 1.0}, dimension=2).fingerprint == before


def test_a_value_that_changes_while_it_is_paid_for_is_not_drawn_on():
    """What was digested is what gets the noise: a copy, made before the charge."""
    value, points = np.array([1.0, 2.0]), POINTS.copy()
    mechanism, bpm = gaussian(1.0), BPM(1e6, 2.0, 2)

    class Meddling(Ledger):
        def paid(self, *args, **named):
            value[:], points[:] = 1e6, 0.5
            return super().paid(*args, **named)

    meddling = Meddling(Budget(100.0, 1e-6), unit=UNIT)
    assert np.abs(mechanism.release(value, ledger=meddling).value).max() < 100.0
    assert value[0] == 1e6
    meddling, points[:] = Meddling(Budget(1e9), unit=UNIT, filter="pure"), POINTS
    reports = bpm.privatize(points, ledger=meddling).value.values
    assert np.abs(reports - POINTS).max() < 1e-3


# -- copies of a key -------------------------------------------------------------------


def drawn_in_child(work):
    """What a forked child gets, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            told = np.asarray(work()).tobytes()
        except DemurError as error:
            told = type(error).__name__.encode()
        os.write(writing, told[:1000])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode(errors="replace")


def test_a_forked_child_draws_nothing():
    bpm, mechanism = BPM(4.0, 2.0, 2), gaussian()
    rows = ledger().paid(bpm, label="rows", digest=bpm.digest(POINTS))
    value = ledger().paid(mechanism, label="value")
    part = rows.key.part(bpm.digest(POINTS[:9], IDS[:9]))
    unasked = ledger().paid(mechanism, label="a key that the parent has not taken")
    for attempt in (
        lambda: bpm.apply(POINTS, rows.key),
        lambda: bpm.apply(POINTS[:9], part, IDS[:9]),
        lambda: rows.key.part(bpm.digest(MOVED)),
        lambda: mechanism.apply([1.0, 2.0], value.key),
        lambda: mechanism.apply([1.0, 2.0], unasked.key),
    ):
        assert drawn_in_child(attempt) in ("NoiseReuse", "DemurError")
    assert bpm.apply(POINTS, rows.key).shape == POINTS.shape


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_no_copy_of_a_key_or_a_part_is_made(copied):
    bpm = BPM(4.0, 2.0, 2)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    for secret in (paid.key, paid.key.part(bpm.digest(POINTS[:9]))):
        with pytest.raises(NoiseReuse, match="copied"):
            copied(secret)


def test_two_payments_of_one_object_share_no_noise():
    """A copied payment gets no second key, and no second input for the first."""
    mechanism = gaussian()
    paid = ledger().paid(mechanism, label="one")
    twin = copy.copy(paid)
    mechanism.apply([1.0, 2.0], paid.key)
    with pytest.raises(NoiseReuse):
        mechanism.apply([3.0, 4.0], twin.key)
    with pytest.raises(NoiseReuse):
        mechanism.apply([1.0, 2.0], twin.key)


def durable(tmp_path):
    return Ledger.open(
        tmp_path / "ledger.db",
        dataset="d",
        budgets={UNIT: Budget(100.0)},
        filter="pure",
    )


def test_a_part_is_wiped_with_its_entry_whoever_commits(tmp_path):
    """The payment that it came from is gone: another one of the same call commits."""
    bpm = BPM(4.0, 2.0, 2)
    with durable(tmp_path) as opened:

        def pay():
            digest = bpm.digest(POINTS)
            return opened.paid(bpm, label="x", digest=digest, idempotency_key="k")

        half = POINTS[:20], IDS[:20]
        part = pay().key.part(bpm.digest(*half))
        gc.collect()
        again = pay()
        whole = bpm.apply(POINTS, again.key)
        assert np.array_equal(bpm.apply(half[0], part, half[1]), whole[:20])
        again.commit("reports")
        for key, rows in ((part, half), (again.key, (POINTS, IDS))):
            with pytest.raises(NoiseReuse, match="wiped"):
                bpm.apply(rows[0], key, rows[1])
        with pytest.raises(NoiseReuse, match="committed"):
            pay().key  # noqa: B018


# -- repeats and parts -----------------------------------------------------------------


def test_a_repeated_reservation_does_not_repeat_its_noise_on_other_values(tmp_path):
    """The digest of a reservation is not that of its values, so nothing compares them.

    So its key is handed out once.
    """
    mechanism = gaussian()
    with Ledger.open(
        tmp_path / "ledger.db", dataset="d", budgets={UNIT: Budget(100.0, 1e-6)}
    ) as opened:
        asked = {"label": "two", "count": 2, "digest": "rows", "idempotency_key": "k"}
        mechanism.apply([1.0, 2.0], opened.paid(mechanism, **asked).key)
        again = opened.paid(mechanism, **asked)
        assert len(opened.entries()) == 1
        with pytest.raises(NoiseReuse, match="handed out"):
            again.key  # noqa: B018


def test_there_is_no_part_of_an_input_that_nobody_named():
    """Two parts under one noise, each bound to an input of its own."""
    bpm = BPM(4.0, 2.0, 2)
    key = ledger().paid(bpm, label="one").key
    for points in (MOVED, POINTS):
        with pytest.raises(NotPaidFor, match="no parts"):
            key.part(bpm.digest(points))


def test_rows_of_a_part_are_not_numbered_from_zero():
    """Two halves without row ids share ids, and so their noise."""
    bpm, halves = BPM(4.0, 2.0, 2), (POINTS[:25], POINTS[25:])
    key = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS)).key
    for half in halves:
        with pytest.raises(ValueError, match="row_ids must be given"):
            bpm.apply(half, key.part(bpm.digest(half)))


def test_a_seeded_key_of_a_payment_gives_no_stream_without_a_question():
    """Else a mechanism that forgets to ask passes every test, and fails its users."""
    paid = ledger().paid(gaussian(), label="one", source=Seeded(1))
    with pytest.raises(NotPaidFor, match="authorise"):
        paid.key.stream("mine")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_of_a_mechanism_cannot_be_changed(copied):
    """Else a copy keeps the fingerprint of what it was, with other noise."""
    sigmas = Gaussian(np.array([16.0, 32.0]), {UNIT: 1.0}, dimension=2)
    for mechanism, name in ((sigmas, "sigma"), (sigmas, "grid"), (quantile(), "grid")):
        paid_for = mechanism.fingerprint
        twin = copied(mechanism)
        assert "fingerprint" not in vars(twin) and twin.fingerprint == paid_for
        for array in (getattr(mechanism, name), getattr(twin, name)):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0.5
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True
    bpm = BPM(4.0, 0.5, 2)
    assert bpm.fingerprint == copied(bpm).fingerprint


def test_numbers_of_numpy_are_numbers():
    assert Gaussian(16.0, {UNIT: 1.0}, dimension=np.int64(2)).fingerprint == (
        gaussian().fingerprint
    )
    one = quantile(epsilon=1)
    assert one.fingerprint == quantile(epsilon=np.float32(1.0)).fingerprint


@pytest.mark.parametrize(
    "bad", [[[0.1, 0.2]], [0.1, np.nan], ["a"], np.array([0.1 + 1j]), [np.inf]]
)
def test_values_of_a_quantile_are_checked_before_they_are_paid_for(bad):
    with pytest.raises((TypeError, ValueError), match="values"):
        quantile().digest(bad)


# -- payments that fail ----------------------------------------------------------------


def test_a_block_that_fails_leaves_the_entry_spent_and_its_key_wiped():
    opened, mechanism = ledger(), gaussian()
    with pytest.raises(ZeroDivisionError):
        with opened.paid(mechanism, label="x") as payment:
            key = payment.key
            raise ZeroDivisionError
    assert len(opened.entries()) == 1
    for take in (lambda: payment.key, lambda: key):
        with pytest.raises(NoiseReuse, match="wiped"):
            mechanism.apply([1.0, 2.0], take())
    assert opened._keys._memory == {}


def test_a_generator_that_is_closed_early_draws_no_more():
    opened, mechanism = ledger(), gaussian()

    def drawing():
        with opened.paid(mechanism, label="x") as payment:
            yield payment

    run = drawing()
    payment = next(run)
    run.close()
    with pytest.raises(NoiseReuse, match="failed"):
        mechanism.apply([1.0, 2.0], payment.key)


def test_a_repeat_of_a_failed_call_draws_the_same(tmp_path):
    bpm = BPM(4.0, 2.0, 2)
    named = {"label": "x", "digest": bpm.digest(POINTS), "idempotency_key": "k"}
    with durable(tmp_path) as opened:
        with pytest.raises(ZeroDivisionError), opened.paid(bpm, **named) as payment:
            first = bpm.apply(POINTS, payment.key)
            raise ZeroDivisionError
        with opened.paid(bpm, **named) as payment:
            assert np.array_equal(bpm.apply(POINTS, payment.key), first)
        assert len(opened.entries()) == 1


def test_parameters_that_differ_in_the_last_bit_are_other_parameters():
    assert gaussian().fingerprint == gaussian().fingerprint
    one_ulp = float(np.nextafter(16.0, 17.0))
    grid = np.linspace(0.0, 1.0, 11)
    grid[3] = np.nextafter(grid[3], 1.0)
    assert quantile().fingerprint == quantile().fingerprint
    assert quantile(grid=grid).fingerprint != quantile().fingerprint
    assert quantile(epsilon=1.0 + 2.0**-52).fingerprint != quantile().fingerprint
    others = [
        gaussian(one_ulp),
        Gaussian(16.0, {UNIT: 1.0}, dimension=3),
        Gaussian(16.0, {UNIT: np.nextafter(1.0, 2.0)}, dimension=2),
        Gaussian(np.array([16.0, 16.0]), {UNIT: 1.0 / 16.0}, dimension=2),
    ]
    assert all(other.fingerprint != gaussian().fingerprint for other in others)
    assert (
        BPM(4.0, 0.5, 2).fingerprint != BPM(4.0, np.nextafter(0.5, 1.0), 2).fingerprint
    )
    assert gaussian(name="by another name").fingerprint == gaussian().fingerprint


def test_a_part_of_the_rows_is_drawn_under_its_own_digest():
    bpm = BPM(4.0, 0.5, 2)
    with ledger().paid(bpm, label="all", digest=bpm.digest(POINTS)) as payment:
        ids = np.arange(len(POINTS), dtype=np.uint64)
        whole = bpm.apply(POINTS, payment.key, ids)
        half = POINTS[:20], ids[:20]
        part = payment.key.part(bpm.digest(*half))
        assert np.array_equal(bpm.apply(half[0], part, half[1]), whole[:20])
        with pytest.raises(NotPaidFor, match="another input"):
            bpm.apply(POINTS[20:], part, ids[20:])
    with pytest.raises(Exception, match="wiped"):  # the part's key as well
        bpm.apply(half[0], part, half[1])


def test_a_seeded_key_of_a_payment_is_bound_too():
    """Else an audit under a seeded source would run another path than the users do."""

    paid = ledger().paid(gaussian(), label="seeded", source=Seeded(1))
    with pytest.raises(NotPaidFor, match="another mechanism"):
        gaussian(17.0).apply([1.0, 2.0], paid.key)
