"""A key draws for what was paid for, and for nothing else.

Each refusal is an attack that works on an unbound key: the twin at the end takes the
question away (`pays_for`), and the attacks succeed.
"""

from __future__ import annotations

import numpy as np
import pytest

from demur.core.adjacency import ReplaceOne
from demur.core.entropy import NoiseKey, OsEntropy, Seeded
from demur.core.errors import NotPaidFor
from demur.ledger import Budget, Ledger
from demur.mechanisms import BPM, Gaussian, GaussianReports, LaplacePerDimension

UNIT = ReplaceOne()
POINTS = np.random.default_rng(0).random((50, 2))


def ledger():
    return Ledger(Budget(100.0, 1e-6), unit=UNIT, filter="pure")


def gaussian(sigma=16.0, **more):
    return Gaussian(sigma, {UNIT: 1.0}, dimension=2, **more)


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


def one_key_for_two_inputs():
    """For most rows the reports differ by what the points differ by, exactly."""
    bpm, other = BPM(4.0, 2.0, 2), POINTS + 2.0**-10 * (POINTS < 0.5)
    paid = ledger().paid(bpm, label="one", digest=bpm.digest(POINTS))
    difference = bpm.apply(other, paid.key) - bpm.apply(POINTS, paid.key)
    exact = np.isclose(difference, other - POINTS, rtol=0, atol=4 * bpm.grid)
    return exact.all(axis=1).mean() > 0.8


def one_key_for_two_inputs_that_nobody_named():
    bpm, other = BPM(4.0, 2.0, 2), POINTS + 2.0**-10 * (POINTS < 0.5)
    paid = ledger().paid(bpm, label="one")
    difference = bpm.apply(other, paid.key) - bpm.apply(POINTS, paid.key)
    exact = np.isclose(difference, other - POINTS, rtol=0, atol=4 * bpm.grid)
    return exact.all(axis=1).mean() > 0.8


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


def the_other_reports(one, other):
    paid = ledger().paid(one, label="one")
    return lambda: other.apply(POINTS, paid.key) is not None


ATTACKS = [
    cheap_key_for_a_dear_mechanism,
    key_of_small_noise_on_large_movements,
    one_key_for_two_inputs,
    one_key_for_two_inputs_that_nobody_named,
    a_retried_task_with_another_value,
    two_noises_for_one_price,
    one_draw_more_than_was_reserved,
    a_key_that_nobody_paid_for,
    a_key_for_batches,
    streams_without_a_question,
]


def run(attack, tmp_path):
    return attack(tmp_path) if "tmp_path" in attack.__code__.co_varnames else attack()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused(attack, tmp_path):
    with pytest.raises(NotPaidFor, match="Nothing was drawn"):
        run(attack, tmp_path)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_without_the_question_the_attack_works(attack, tmp_path, monkeypatch):
    """The twin: keys that are not bound, as they once were."""

    def anything(self, *_: object, **__: object) -> None:
        self._may_draw = True

    plain = NoiseKey.__init__

    def unbound(self, *args: object, **named: object) -> None:
        plain(self, *args, **named)
        self._may_draw = True

    monkeypatch.setattr(NoiseKey, "pays_for", anything)
    monkeypatch.setattr(NoiseKey, "__init__", unbound)
    assert run(attack, tmp_path)


@pytest.mark.parametrize(
    "mechanism",
    [BPM(4.0, 0.5, 2), LaplacePerDimension(4.0, 2), GaussianReports(4.0, 2)],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_every_report_mechanism_asks(mechanism):
    key = ledger().paid(gaussian(), label="another").key
    with pytest.raises(NotPaidFor, match="another mechanism"):
        key.pays_for(mechanism.fingerprint, mechanism.digest(POINTS))
    paid = ledger().paid(mechanism, label="own", digest=mechanism.digest(POINTS))
    paid.key.pays_for(mechanism.fingerprint, mechanism.digest(POINTS))
    with pytest.raises(NotPaidFor, match="another input"):
        paid.key.pays_for(mechanism.fingerprint, mechanism.digest(POINTS[::-1]))


def test_parameters_that_differ_in_the_last_bit_are_other_parameters():
    assert gaussian().fingerprint == gaussian().fingerprint
    one_ulp = float(np.nextafter(16.0, 17.0))
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
