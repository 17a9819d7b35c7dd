"""Details of a ledger that no other test would miss: what is refused, wiped, shown."""

import json
import math
import sqlite3
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy.pool import StaticPool

from demur import AddOrRemoveOne, Budget, Filter, Ledger, gaussian_epsilon
from demur.core.accounting import profile_of
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.durable.store import shown_address
from demur.errors import NoiseReuse, NotPriced
from demur.ledger.rules import filters
from demur.ledger.rules.filters import GaussianMeter, RenyiMeter
from demur.ledger.storage import rows
from demur.mechanisms import Gaussian
from tests.keys import compared
from tests.ledger.kit import UNIT, edit, says

COUNT = says(GaussianEvent(10.0))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger.db")


# -- filters -----------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 0, -3, 1025, 2.5, True, "3", None])
def test_a_renyi_order_is_a_whole_number_from_2_to_1024(order):
    with pytest.raises((TypeError, ValueError), match="order"):
        RenyiMeter(order)


@pytest.mark.parametrize("order", [2, 1024])
def test_the_first_and_the_last_order_are_allowed(order):
    assert RenyiMeter(order).account == f"renyi {order}"
    assert Filter.rdp(order).to_json()["meters"] == [f"renyi {order}"]


@pytest.mark.parametrize("blocks", [-0.1, 1.0, 1.5, math.nan, math.inf, "0.5", None])
def test_a_share_kept_for_blocks_is_below_one(blocks):
    with pytest.raises((TypeError, ValueError), match="blocks"):
        Filter.gaussian(blocks=blocks)


def test_a_filter_does_not_keep_the_callers_list():
    meters = [GaussianMeter(), RenyiMeter(8)]
    rule = Filter(meters, 0.25)
    meters.clear()
    assert rule.meters == (GaussianMeter(), RenyiMeter(8))
    assert hash(rule) == hash(Filter.from_json(rule.to_json()))


def test_a_renyi_filter_needs_a_delta():
    with pytest.raises(ValueError, match="'rdp' filter needs a positive delta"):
        Filter.named("rdp", Budget(1.0))
    assert Filter.named("rdp", Budget(1.0, 1e-6)).meters


def test_a_gaussian_has_no_price_at_delta_zero():
    assert GaussianMeter().epsilon(Fraction(1, 4), 0.0) == math.inf
    assert GaussianMeter().epsilon(Fraction(0), 0.0) == 0.0
    priced = GaussianMeter().epsilon(Fraction(1, 4), 1e-6)
    assert priced == pytest.approx(gaussian_epsilon(0.5, 1e-6), rel=1e-12)
    ledger = Ledger(Budget(2.0), unit=UNIT, filter="pure")
    with pytest.raises(NotPriced, match="the budget needs a delta"):
        ledger.charge(COUNT, label="x")
    assert ledger.entries() == []


def test_what_is_spent_is_the_least_of_the_meters_readings():
    rule, budget = Filter((GaussianMeter(), RenyiMeter(8)), 0.0), Budget(8.0, 1e-6)
    ledger = Ledger(budget, unit=UNIT, filter=rule)
    ledger.charge(COUNT, label="x")
    (status,) = ledger.status()
    left = Budget(8.0, filters.shares(rule, budget).meter_budget.delta)
    readings = [
        GaussianMeter().epsilon(Fraction(1, 100), left.delta),
        RenyiMeter(8).epsilon(RenyiMeter(8).amount(GaussianEvent(10.0)), left.delta),
    ]
    assert readings[0] != pytest.approx(readings[1], rel=0.01)
    assert status.spent_epsilon == pytest.approx(min(readings), rel=1e-9)


# -- the ledger ----------------------------------------------------------------------


def test_a_ledger_says_whether_it_is_durable(path):
    assert Ledger(Budget(1.0, 1e-6), unit=UNIT).durable is False
    with Ledger.open(path, dataset="d", budgets={UNIT: Budget(1.0, 1e-6)}) as ledger:
        assert ledger.durable is True


def test_a_ledger_in_memory_is_one_connection():
    """Every further one would be to another, empty ledger."""
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    assert isinstance(ledger._store._engine.pool, StaticPool)


def test_noise_handed_out_is_wiped_by_the_commit():
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    entry = ledger.charge(COUNT, label="x")
    noise = ledger._key(entry, None)
    compared(noise).stream("before", 0)
    ledger._commit(entry, "artefact")
    with pytest.raises(NoiseReuse, match="committed"):
        noise.stream("after", 0)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://...host/db"),
        ("postgresql://host/db", "postgresql://...host/db"),
        ("postgresql://host/db?password=secret", "postgresql://...host/db"),
        ("postgresql:///db?user=me&password=secret", "postgresql://.../db"),
        ("postgresql://me@host/db?options=a@b&password=c", "postgresql://...host/db"),
        ("me@home.db", "'me@home.db'"),
        ("ledger.db", "'ledger.db'"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown):
    assert shown_address(url) == shown


def test_a_reading_at_a_budgets_unit_says_what_is_enforced():
    ledger = Ledger(Budget(1.0, 1e-6), unit=UNIT)
    ledger.charge(COUNT, label="x")
    (status,) = ledger.status()
    assert ledger.reading().enforced_epsilon == status.spent_epsilon > 0
    assert ledger.reading(AddOrRemoveOne(2)).enforced_epsilon is None


# -- the file ----------------------------------------------------------------------


def test_a_sequence_number_is_there_once(path):
    with Ledger.open(path, dataset="d", budgets={UNIT: Budget(1.0, 1e-6)}) as ledger:
        ledger.charge(COUNT, label="x")
    copy = "INSERT INTO demur_rows SELECT sequence, kind, entry_id, NULL, declaration,"
    copy += " count, noise, body, hash, signature FROM demur_rows"
    with pytest.raises(sqlite3.IntegrityError, match="sequence"):
        edit(path, copy)


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_an_account_missing_from_the_totals_is_found(path, epsilon):
    with Ledger.open(
        path, dataset="d", budgets={UNIT: Budget(2.0)}, filter="pure"
    ) as ledger:
        ledger.charge(says(Pure(epsilon)), label="x")
        assert ledger.verify().ok
        edit(path, "UPDATE demur_ledger SET totals = :x", x=json.dumps([{}]))
        assert any("not the sum" in problem for problem in ledger.verify().problems)


def test_an_account_of_nothing_is_the_same_as_none(path):
    """Totals may list an account that no entry has touched, at zero."""
    with Ledger.open(
        path, dataset="d", budgets={UNIT: Budget(2.0)}, filter="pure"
    ) as ledger:
        ledger.charge(says(Pure(0.5)), label="x")
        text = {"block epsilon": "1/2", "block delta": "0", "samplers": "0"}
        edit(path, "UPDATE demur_ledger SET totals = :x", x=json.dumps([text]))
        assert ledger.verify().ok


@pytest.mark.slow
def test_a_reading_is_given_the_stored_curves_that_are_whole_and_no_others(path):
    event = Repeated(PoissonGaussian(0.01, 2.0), 50)
    with Ledger.open(
        path, dataset="d", budgets={UNIT: Budget(4.0, 1e-5)}, filter="pure"
    ) as ledger:
        ledger.charge(says(event), label="a plan")
        with ledger._store.read() as connection:
            ((kept, profile),) = rows.profiles(connection).items()
        assert kept == event
        assert profile.to_bytes() == profile_of(event).to_bytes()
        before = ledger.epsilon()
        edit(path, "UPDATE demur_profiles SET body = :x", x=b"spoiled")
        with ledger._store.read() as connection:
            assert rows.profiles(connection) == {}
        assert ledger.epsilon() == before  # built anew


def test_the_columns_that_may_be_empty_are_these(path):
    """Of a file that was made, not of the code that made it."""
    Ledger.open(path, dataset="d", budgets={UNIT: Budget(1.0, 1e-6)}).close()
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            )
        ]
        columns = {
            (table, name): (bool(filled), bool(primary))
            for table in tables
            for _, name, _, filled, _, primary in connection.execute(
                f"PRAGMA table_info({table})"
            )
        }
    connection.close()
    empty = {name for (_, name), (filled, _) in columns.items() if not filled}
    assert empty == {"idempotency_key", "declaration", "count", "noise", "signature"}
    assert {place for place, (_, primary) in columns.items() if primary} == {
        ("demur_ledger", "id"),
        ("demur_declarations", "digest"),
        ("demur_profiles", "event"),
        ("demur_rows", "sequence"),
    }


def test_numbers_of_numpy_are_numbers(path):
    unit = AddOrRemoveOne(records_per_person=np.int64(3))
    terms = {
        "dataset": "d",
        "budgets": {unit: Budget(np.float32(2.0), np.float64(1e-6))},
    }
    with Ledger.open(path, **terms) as ledger:
        counted = Gaussian(np.float32(90.0), {AddOrRemoveOne(): np.float64(1.0)})
        ledger.reserve(counted, count=np.int64(2), label="x").draw_many(np.int64(2))
        facts = {"accuracy": np.float32(0.5), "people": np.int64(3)}
        ledger.annotate(ledger.entries()[0], "utility", facts)
        assert ledger.verify(ledger.tip()).ok
    plain = {"dataset": "d", "budgets": {AddOrRemoveOne(3): Budget(2.0, 1e-6)}}
    with Ledger.open(path, **plain) as again:
        assert again.notes()[0].facts == {"accuracy": 0.5, "people": 3}


@pytest.mark.parametrize("rule", ["pure", "gaussian", "rdp"])
@pytest.mark.parametrize("count", [1, 20])
def test_a_pair_without_delta_is_a_pure_epsilon(rule, count):
    prices = []
    for event in (Pure(0.01), ApproxDP(0.01, 0.0)):
        with Ledger(Budget(8.0, 1e-5), UNIT, filter=rule) as ledger:
            ledger.paid(says(event), label="x", count=count)
            (status,) = ledger.status()
            prices.append((status.accounts, ledger.epsilon()))
    assert prices[0] == prices[1]
