"""What a ledger tells of itself: readings in words, forecasts, moments, statuses."""

import json
import math
import os
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    BudgetExceeded,
    DemurError,
    Erasure,
    Filter,
    Ledger,
    ReplaceOne,
)
from demur.core.accounting.events import GaussianEvent, Pure
from demur.core.accounting.samplers import MEANINGLESS
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.durable.chain import Tip, evidence_digest, link, load_signing_key, signed_by
from demur.errors import LedgerMismatch, NotCovered, NotPrivate
from demur.ledger import in_memory, reading, series
from demur.ledger.in_memory import (
    LedgerLeftBehind,
    checked_ledger,
    ledger_for,
    ledger_or_in_memory,
    left_behind,
    whole_budget,
)
from demur.ledger.reading import Reading
from demur.ledger.storage.ledger_store import LedgerStore
from tests.ledger.kit import UNIT, says

HALF, QUARTER = says(Pure(0.5)), says(Pure(0.25))


def pure(epsilon=4.0, **more):
    return Ledger(Budget(epsilon), unit=UNIT, filter="pure", **more)


# -- readings -----------------------------------------------------------------------


READING = Reading(UNIT, 0.51, 1e-6, 4, 0, 0.0, True)


def test_a_reading_says_whom_it_is_about():
    assert READING.one == "one record"
    assert str(READING) == (
        "epsilon 0.51 at delta 1e-06 for AddOrRemoveOne() over 4 entries"
    )
    assert str(replace(READING, private=False)).startswith("NOT PRIVATE (seeded noise)")
    every = replace(READING, persons=4)
    assert every.one == "one person" and every.protects == UNIT.describe("one person")
    some, one = replace(READING, persons=2), replace(READING, persons=1)
    assert some.one == "one person with a single record"
    assert "(2 of the 4 entries count persons, the others records" in some.protects
    assert "(1 of the 4 entries counts persons, the others records" in one.protects
    assert str(some).endswith(some.protects) and READING.protects not in str(READING)
    for unit in (ReplaceOne(), Ball(0.1, space="x")):
        assert replace(some, unit=unit).one == "one record"


def test_a_reading_leaves_out_deletions_and_a_deletion_reading_the_rest():
    budgets = {UNIT: Budget(4.0), Erasure(): Budget(4.0)}
    ledger = Ledger(budgets, filter="pure")
    ledger.charge(HALF, label="x")
    ledger.paid(QUARTER, label="y", count=3)
    ledger.charge(says(Pure(0.125), Erasure()), label="z")
    told, deleted = ledger.reading(UNIT), ledger.reading(Erasure())
    assert (told.epsilon, told.entries, told.left_out) == (1.25, 2, 1)
    assert (deleted.epsilon, deleted.entries, deleted.left_out) == (0.125, 1, 2)
    assert told.enforced_epsilon == 1.25 and told.private
    with pytest.raises(TypeError, match="several budgets: one of AddOrRemoveOne"):
        ledger.reading()
    with pytest.raises(NotCovered, match="'x'"):
        ledger.reading(ReplaceOne())


def test_the_delta_of_a_reading_is_that_of_its_budget():
    budgets = {UNIT: Budget(4.0, 1e-6), ReplaceOne(): Budget(4.0, 1e-8)}
    both = Declaration(
        "two",
        Cost(
            (Fixed(UNIT, GaussianEvent(8.0)), Fixed(ReplaceOne(), GaussianEvent(4.0)))
        ),
    )
    ledger = Ledger(budgets)
    ledger.charge(both, label="x")
    assert ledger.reading(UNIT).delta == 1e-6
    assert ledger.reading(ReplaceOne()).delta == 1e-8
    assert ledger.reading(UNIT, delta=1e-3).delta == 1e-3
    with pytest.raises(TypeError, match="delta must be given"):
        ledger.reading(Ball(0.1, space="x"))
    alone = Ledger(Budget(4.0, 1e-6), unit=UNIT)
    assert alone.reading(ReplaceOne()).delta == 1e-6 if not alone.entries() else True
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            ledger.reading(UNIT, delta=wrong)


def test_prices_are_known_between_readings(monkeypatch):
    ledger = pure()
    ledger.charge(HALF, label="x")
    asked, alone = [], reading.epsilon_with_slack

    def heard(*given, **named):
        asked.append(given[0])
        return alone(*given, **named)

    monkeypatch.setattr(reading, "epsilon_with_slack", heard)
    many = series.Readings(ledger)
    assert many.epsilon(UNIT, 0.0) == many.epsilon(UNIT, 0.0) == 0.5
    assert len(asked) == 1
    assert many.epsilon(UNIT, 0.0, []) == 0.0
    assert many.epsilon(Ball(0.1, space="x"), 0.0) in (None, 0.5, 1.0)


# -- statuses -----------------------------------------------------------------------


def test_a_status_says_what_is_spent_and_left():
    ledger = pure(1.0)
    ledger.charge(HALF, label="x")
    (status,) = ledger.status()
    assert str(status) == "AddOrRemoveOne(): 0.5 of 1 at delta 0"
    assert status.accounts == {"block epsilon": "0.5", "block delta": "0"}
    assert (status.left_epsilon, status.shown_left) == (0.5, "0.5 of 1 left")

    def words(spent, budget=3.0):
        other = replace(status, budget=Budget(budget), spent_epsilon=spent)
        return other.shown_left

    assert words(3.0) == words(4.0) == "nothing left of 3"
    assert words(3 - 2**-9) == "almost nothing left (less than 0.1% of 3)"
    assert words(3 - 2**-8) == "0.003906 of 3 left"
    assert words(1.0, 1e308 * 1.7976931348623157) == "no limit"
    over = replace(status, spent_epsilon=1.5)
    assert over.left_epsilon == 0.0 and over.shown == ("1.5", "1")
    exact = replace(status, spent_epsilon=0.1)
    left = Fraction(1) - Fraction(0.1)
    assert Fraction(exact.left_epsilon) <= left
    assert Fraction(math.nextafter(exact.left_epsilon, 2.0)) > left


def test_whether_a_charge_would_fit_is_asked_without_a_row():
    ledger = pure(0.75)
    assert ledger.would_fit(HALF)
    ledger.charge(HALF, label="x")
    assert not ledger.would_fit(HALF) and ledger.would_fit(QUARTER)
    assert ledger.tip().sequence == 1 and ledger.declined() == ()
    with pytest.raises(BudgetExceeded):
        ledger.paid(HALF, label="too much", count=2)
    (declined,) = ledger.declined()
    assert (declined.label, declined.count, declined.sequence) == ("too much", 2, 2)
    assert declined.declaration == HALF and declined.actor == ledger._actor
    assert "bring epsilon to 1.5 of 0.75" in declined.why and declined.time


def test_a_summary_names_budgets_and_entries():
    ledger = pure(dataset="people")
    ledger.charge(HALF, label="one")
    ledger.charge(replace(HALF, name="DP per person"), label="two")
    assert ledger.summary().splitlines() == [
        "Ledger 'people', filter pure (epsilons and deltas add up)",
        "  AddOrRemoveOne(): 1 of 4 at delta 0",
        "  1. one",
        "  2. two",
    ]


def test_an_entry_is_found_by_its_number():
    ledger = pure()
    first = ledger.charge(HALF, label="x")
    ledger.annotate(first, "utility", {"accuracy": 0.5})
    second = ledger.charge(QUARTER, label="y")
    assert ledger.entry(1) == first and ledger.entry(3) == second
    for wrong in (2, 4):
        with pytest.raises(DemurError, match=f"row {wrong} is no entry.*last row is 3"):
            ledger.entry(wrong)
    for wrong in (0, True, "1"):
        with pytest.raises((TypeError, ValueError), match="sequence"):
            ledger.entry(wrong)
    assert ledger.commit_of(first) is None
    ledger._commit(second, "reports")
    assert ledger.commit_of(second).artefact == "reports"
    with pytest.raises(DemurError):
        ledger.commit_of(pure().charge(HALF, label="stranger"))


# -- moments and forecasts ----------------------------------------------------------


def at_times(monkeypatch, ledger, days_ago):
    """Charges of a quarter, so many days before now."""
    now = datetime.now(UTC)
    for days in days_ago:
        then = (now - timedelta(days=days)).isoformat(timespec="milliseconds")
        monkeypatch.setattr("demur.ledger.journal.clock.now", lambda then=then: then)
        ledger.charge(QUARTER, label=f"{days} days ago")
    monkeypatch.undo()


def test_a_forecast_goes_by_what_was_spent_lately(monkeypatch):
    ledger = pure(4.0)
    at_times(monkeypatch, ledger, [100, 50, 20, 10])
    (told,) = series.forecast(ledger)
    assert (told.unit, told.days) == (UNIT, 28.0)
    assert (told.spent_epsilon, told.spent_lately) == (1.0, 0.5)
    assert told.days_left == pytest.approx(3.0 / (0.5 / 28.0))
    (week,) = series.forecast(ledger, days=7.0)
    assert (week.spent_lately, week.days_left) == (0.0, None)
    (year,) = series.forecast(ledger, days=365.0)
    assert year.days == pytest.approx(100.0, abs=0.01), "it is no older"
    assert year.days_left == pytest.approx(3.0 / (1.0 / 100.0), rel=1e-3)


def test_a_forecast_of_a_new_ledger_counts_a_day_at_least(monkeypatch):
    ledger = pure(4.0)
    (empty,) = series.forecast(ledger)
    assert (empty.spent_epsilon, empty.days_left, empty.days) == (0.0, None, 28.0)
    at_times(monkeypatch, ledger, [0.1])
    (told,) = series.forecast(ledger)
    assert told.days == 1.0 and told.days_left == pytest.approx(15.0)


def test_the_first_full_account_ends_a_forecast(monkeypatch):
    ledger = Ledger(Budget(4.0, 1e-6), unit=UNIT, filter=Filter.gaussian(blocks=0.5))
    terms, (_, budget) = ledger.terms, ledger.terms.budgets[0]
    full = series.filters.capacities(terms.filter, budget)
    half = {account: capacity / 2 for account, capacity in full.items()}
    left = series._days_left(terms, budget, half, {}, 10.0)
    assert left == pytest.approx(10.0)
    quick = half | {"block delta": full["block delta"] * Fraction(3, 4)}
    assert series._days_left(terms, budget, quick, {}, 10.0) == pytest.approx(10 / 3)
    old = {account: capacity / 4 for account, capacity in full.items()}
    assert series._days_left(terms, budget, half, old, 10.0) == pytest.approx(20.0)
    assert series._days_left(terms, budget, half, half, 10.0) is None
    used = half | {"mu squared": None}
    assert series._days_left(terms, budget, used, {}, 10.0) == 0.0
    over = half | {"block delta": full["block delta"] * 2}
    assert series._days_left(terms, budget, over, {}, 10.0) == 0.0


def test_moments_add_up():
    ledger = pure(4.0)
    for mechanism in (QUARTER, HALF, QUARTER):
        ledger.charge(mechanism, label="x")
    moments = series.over_time(ledger)
    assert [m.sequence for m in moments] == [1, 2, 3]
    assert [m.spent_epsilon for m in moments] == [(0.25,), (0.75,), (1.0,)]
    times = [entry.time for entry in ledger.entries()]
    assert [m.time for m in moments] == times


# -- ledgers in memory --------------------------------------------------------------


def test_a_release_without_a_ledger_gets_one_of_its_own():
    own = ledger_or_in_memory(None, Budget(1.0), unit=UNIT, filter="pure")
    assert own.terms.budgets == ((UNIT, Budget(1.0)),) and not own.durable
    assert own.terms.dataset == "not named"
    most = ledger_or_in_memory(None, Budget(MEANINGLESS), unit=UNIT, filter="pure")
    assert not most.terms.budgets[0][1].unlimited
    beyond = Budget(math.nextafter(MEANINGLESS, math.inf), 1e-6)
    (told,) = ledger_or_in_memory(None, beyond, unit=UNIT).terms.budgets
    assert told[1].unlimited and told[1].delta == 1e-6
    assert ledger_or_in_memory(own, Budget(2.0), unit=ReplaceOne()) is own
    assert checked_ledger(None) is None and checked_ledger(own) is own
    for wrong in (5, "ledger.db", own.terms):
        with pytest.raises(TypeError, match="ledger must be a Ledger or None"):
            checked_ledger(wrong)


def test_a_budget_for_one_declaration_is_what_it_costs():
    assert whole_budget(HALF, UNIT) == Budget(0.5)
    assert 0.0 < whole_budget(says(Pure(0.0)), UNIT).epsilon < 1e-9
    gaussian = says(GaussianEvent(4.0))
    budget = whole_budget(gaussian, UNIT)
    ledger = ledger_for(None, gaussian)
    assert ledger.terms.budgets == ((UNIT, budget),)
    ledger.charge(gaussian, label="x")
    with pytest.raises(BudgetExceeded):
        ledger.charge(gaussian, label="y")
    exact = ledger_for(None, HALF)
    assert exact.terms.filter == Filter.pure()
    exact.charge(HALF, label="x")
    given = pure()
    assert ledger_for(given, HALF) is given


def test_a_pickled_ledger_stays_behind(tmp_path, opened):
    assert left_behind("anything") == "anything"
    away = left_behind(pure(dataset="people"))
    assert away == LedgerLeftBehind("people") and away.whereabouts is None
    terms = {"dataset": "people", "budgets": {UNIT: Budget(4.0)}, "filter": "pure"}
    kept = opened(tmp_path / "ledger.db", **terms)
    away = pickle.loads(pickle.dumps(left_behind(kept)))
    where = away.whereabouts
    assert (where.path, where.ledger_id) == (str(tmp_path / "ledger.db"), kept.id)
    assert where.keys == str(kept.keys_path()) and where.process == os.getpid()
    with pytest.raises(NotPrivate, match="its ledger 'people' stayed behind"):
        checked_ledger(away)
    # In a worker of the process that has the ledger, it is opened once.
    child = replace(away, whereabouts=replace(where, process=os.getppid()))
    again = checked_ledger(child)
    assert again.id == kept.id and checked_ledger(child) is again
    again.close()
    in_memory._opened_again.cache_clear()
    other = replace(where, process=os.getppid(), ledger_id="f" * 32)
    with pytest.raises(LedgerMismatch, match="another ledger is where"):
        checked_ledger(replace(away, whereabouts=other))
    in_memory._opened_again.cache_clear()


def test_a_store_in_memory_has_no_ledger_until_it_is_made(tmp_path):
    assert LedgerStore(None).exists() is False
    assert LedgerStore(str(tmp_path / "none.db")).exists() is False
    assert not (tmp_path / "none.db").exists(), "asking makes nothing"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"budget": Budget(1.0)}, TypeError),
        ({"budget": {UNIT: Budget(1.0)}, "unit": UNIT}, TypeError),
        ({"budget": {}}, ValueError),
        ({"budget": Budget(1.0), "unit": UNIT, "filter": "none"}, ValueError),
    ],
)
def test_a_ledger_in_memory_has_a_budget_for_each_unit(given, kind):
    with pytest.raises(kind):
        Ledger(**given)


# -- the chain ----------------------------------------------------------------------


def test_a_tip_is_a_number_and_a_hash():
    tip = Tip(3, "0" * 64)
    assert str(tip) == "3:" + "0" * 64 and Tip.parse(f" {tip}\n") == tip
    assert Tip(0, "0" * 64).sequence == 0 and Tip(2**62 - 1, "0" * 64)
    for sequence in (-1, 2**62):
        with pytest.raises(ValueError, match="sequence"):
            Tip(sequence, "0" * 64)
    for sequence in (True, 1.0, "1"):
        with pytest.raises(TypeError, match="sequence"):
            Tip(sequence, "0" * 64)
    for value in ("0" * 63, "g" * 64, "A" * 64, None, 5):
        with pytest.raises(ValueError, match="hash must be 64"):
            Tip(3, value)
    for text in ("x", ":" + "0" * 64, "-1:" + "0" * 64, "²:" + "0" * 64, "3"):
        with pytest.raises(ValueError):
            Tip.parse(text)


def test_links_and_signatures_are_of_their_rows():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    from demur.durable.chain import public_hex, sign  # noqa: PLC0415

    first, second = link("0" * 64, "{}"), link("0" * 64, "[]")
    assert first != second and link(first, "{}") != first
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    assert load_signing_key(key) is key
    public, signature = public_hex(key), sign(key, first)
    assert signed_by(public, first, signature)
    for wrong in (
        (public, second, signature),
        (public_hex(other), first, signature),
        (public, first, sign(other, first)),
        (public, first, None),
        (public, first, "no hexadecimal"),
        ("zz", first, signature),
    ):
        assert signed_by(*wrong) is False
    assert evidence_digest(b"a") != evidence_digest(b"b")
    assert len(evidence_digest(b"a")) == 64


def test_rows_are_told_with_what_they_name(tmp_path, opened):
    ledger = opened(
        tmp_path / "x.db", dataset="d", budgets={UNIT: Budget(4.0)}, filter="pure"
    )
    assert ledger.durable and AddOrRemoveOne() == UNIT
    ledger.charge(HALF, label="x")
    with ledger._store.read() as connection:
        ((sequence, body),) = series.journal.of_kind(connection, "charge")
    assert sequence == 1 and json.loads(json.dumps(body)) == body
    assert ledger.file_path() == tmp_path / "x.db" and pure().file_path() is None
    assert pure().keys_path() is None and ledger.keys_path().is_absolute()
