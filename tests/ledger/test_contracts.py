"""What a ledger promises, the same on SQLite and PostgreSQL."""

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demur import (
    AddOrRemoveOne,
    Ball,
    Budget,
    Declaration,
    Erasure,
    Filter,
    Ledger,
    LipschitzMap,
    ReplaceOne,
    Seeded,
)
from demur.core.accounting.events import (
    ApproxDP,
    GaussianEvent,
    PoissonGaussian,
    Pure,
    Repeated,
)
from demur.core.cost import Cost, Fixed, GaussianOverBalls, PureOverBalls
from demur.core.curve import PiecewiseLinear
from demur.errors import (
    BudgetExceeded,
    DemurError,
    IdempotencyConflict,
    LedgerDamaged,
    LedgerMismatch,
    NoiseReuse,
    NotCovered,
    NotPriced,
    NotPrivate,
)
from tests.keys import compared
from tests.ledger.kit import BUDGET, UNIT, ask, edit, is_file, says

COUNT = says(GaussianEvent(20.0))
BIG = says(GaussianEvent(0.5))


DIGEST = "5d41402abc4b2a76b9719d911017c592aaaaaaaabbbbbbbbccccccccdddddddd"


def trace(ledger):
    """Everything a refused charge must leave as it was."""
    return (
        ledger.tip(),
        tuple(s.accounts for s in ledger.status()),
        len(ledger.entries()),
        ask(ledger.url, "SELECT count(*) FROM demur_rows"),
        ask(ledger.url, "SELECT count(*) FROM demur_declarations"),
        ask(ledger.url, "SELECT totals FROM demur_ledger"),
    )


def spent(ledger):
    """Everything a declined charge must leave as it was; that it was asked is noted."""
    return [s.accounts for s in ledger.status()], ledger.entries()


@pytest.fixture
def ledger(new_ledger, ledger_url):
    opened_ledger = new_ledger()
    opened_ledger.url = ledger_url
    return opened_ledger


# -- charging ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_charge_is_there_for_the_next_opener(ledger, ledger_url, opened):
    entry = ledger.charge(COUNT, label="visitors")
    again = opened(ledger_url)
    (found,) = again.entries()
    assert found == entry
    assert entry.durable and entry.sequence == 1 and entry.label == "visitors"
    assert again.epsilon() == ledger.epsilon() > 0.0
    assert again.terms == ledger.terms and again.id == ledger.id


@pytest.mark.slow
def test_charges_add_up(ledger):
    for _ in range(4):
        ledger.charge(COUNT, label="visitors")
    alone = Ledger(BUDGET, unit=UNIT)
    alone.charge(says(GaussianEvent(10.0)), label="one of half the noise")
    assert ledger.epsilon() == pytest.approx(alone.epsilon(), rel=1e-12)
    assert [e.sequence for e in ledger.entries()] == [1, 2, 3, 4]
    assert ledger.verify(ledger.tip()).ok


@pytest.mark.slow
def test_decline_says_what_and_spends_nothing(ledger):
    ledger.charge(COUNT, label="visitors")
    before = spent(ledger)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.charge(BIG, label="too much")
    assert spent(ledger) == before
    message = str(caught.value)
    assert "'too much'" in message and "AddOrRemoveOne()" in message
    assert "of 2" in message and "1e-06" in message  # the budget
    assert "nothing was spent" in message and "nothing was released" in message
    ledger.charge(COUNT, label="still usable")


@pytest.mark.slow
def test_a_declined_charge_can_be_made_with_more_noise(ledger):
    with pytest.raises(BudgetExceeded):
        ledger.charge(BIG, label="x", idempotency_key="k")
    entry = ledger.charge(COUNT, label="x", idempotency_key="k")
    assert [e.id for e in ledger.entries()] == [entry.id]


@pytest.mark.slow
def test_unpriced_and_uncovered_charges_leave_no_trace(ledger):
    before = trace(ledger)
    with pytest.raises(NotPriced, match="Nothing was spent"):
        ledger.charge(says(PoissonGaussian(0.01, 1.0)), label="no price")
    with pytest.raises(NotCovered, match="Nothing was spent"):
        ledger.charge(says(GaussianEvent(20.0), ReplaceOne()), label="another unit")
    with pytest.raises(NotCovered, match="Nothing was spent"):
        ledger.charge(says(GaussianEvent(20.0), Erasure()), label="a deletion")
    for label in ("", "x" * 300, "a\nb", "a\x00b"):
        with pytest.raises(ValueError):
            ledger.charge(COUNT, label=label)
    with pytest.raises((TypeError, AttributeError)):
        ledger.charge(object(), label="no mechanism")
    with pytest.raises((TypeError, ValueError)):
        ledger.reserve(COUNT, count=0, label="none")
    assert trace(ledger) == before


# -- idempotency -------------------------------------------------------------------


@pytest.mark.slow
def test_a_charge_is_found_by_its_idempotency_key_alone(ledger):
    assert ledger.find("job-7") is None
    first = ledger.charge(COUNT, label="visitors", idempotency_key="job-7")
    ledger.charge(COUNT, label="visitors")
    reserved = ledger.reserve(COUNT, count=3, label="epochs", idempotency_key="job-8")
    before = trace(ledger)
    assert ledger.find("job-7") == first and ledger.find("job-8") == reserved.entry
    assert ledger.find("job") is None and ledger.find("visitors") is None
    assert trace(ledger) == before
    ledger._commit(first, DIGEST)
    assert ledger.find("job-7") == first  # committed, and still what was charged


@pytest.mark.slow
def test_a_kept_key_is_on_disk_with_its_name_before_its_entry(ledger, monkeypatch):
    """fsync of the file, link, fsync of the folder: in this order, by descriptor.

    Before them, those of the folders in which a new one was made.
    """
    done = []
    sync, link = os.fsync, os.link

    def synced(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def linked(*names):
        done.append("link")
        link(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    ledger.charge(COUNT, label="x", idempotency_key="k", digest=DIGEST)
    # The ledger's secret, then the key of the entry.
    first_file = done.index("file")
    assert done[:first_file] == ["folder"] * first_file and first_file >= 1
    assert done[first_file:] == ["file", "link", "folder"] * 2


@pytest.mark.slow
def test_the_same_key_is_charged_once(ledger, ledger_url, opened):
    first = ledger.charge(
        COUNT, label="visitors", idempotency_key="job-7", digest=DIGEST
    )
    tip = ledger.tip()
    again = opened(ledger_url).charge(
        COUNT, label="visitors", idempotency_key="job-7", digest=DIGEST
    )
    assert again == first and ledger.tip() == tip


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"mechanism": says(GaussianEvent(21.0))},
        {"mechanism": says(GaussianEvent(20.0), name="another")},
        {"digest": "another"},
        {"digest": None},
    ],
    ids=["event", "name", "input", "no input"],
)
def test_the_same_key_for_something_else_is_refused(ledger, other):
    arguments: dict[str, Any] = {
        "label": "visitors",
        "idempotency_key": "job-7",
        "digest": DIGEST,
    }
    ledger.charge(COUNT, **arguments)
    before = trace(ledger)
    again = arguments | {"mechanism": COUNT} | other
    with pytest.raises(IdempotencyConflict, match="Nothing was spent"):
        ledger.charge(**again)
    with pytest.raises(IdempotencyConflict):
        ledger.reserve(count=3, **(arguments | {"mechanism": COUNT}))
    assert trace(ledger) == before


def test_a_replayed_charge_is_the_same_even_when_the_budget_is_used_up(ledger):
    room = ledger.charge(says(GaussianEvent(2.5)), label="most", idempotency_key="k")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(GaussianEvent(2.5)), label="more")
    assert (
        ledger.charge(says(GaussianEvent(2.5)), label="most", idempotency_key="k")
        == room
    )


# -- reservations and commits ------------------------------------------------------


def test_a_reservation_hands_out_its_draws_and_stops(ledger, ledger_url, opened):
    reserved = ledger.reserve(COUNT, count=3, label="epochs", idempotency_key="k")
    spent = ledger.status()[0].accounts
    assert [reserved.draw().index for _ in range(2)] == [0, 1]
    again = opened(ledger_url).reserve(
        COUNT, count=3, label="epochs", idempotency_key="k"
    )
    assert (again.drawn, again.remaining, again.count) == (2, 1, 3)
    assert again.draw().index == 2
    tip = ledger.tip()
    with pytest.raises(BudgetExceeded, match="nothing was released"):
        reserved.draw()
    assert ledger.tip() == tip and ledger.status()[0].accounts == spent
    assert ledger.verify(tip).ok


def test_draws_taken_together_are_one_row_and_all_or_none(ledger, ledger_url, opened):
    reserved = ledger.reserve(COUNT, count=10, label="queries", idempotency_key="k")
    assert reserved.draw().index == 0
    rows = ledger.tip().sequence
    assert [d.index for d in reserved.draw_many(6)] == [1, 2, 3, 4, 5, 6]
    assert ledger.tip().sequence == rows + 1
    again = opened(ledger_url).reserve(
        COUNT, count=10, label="queries", idempotency_key="k"
    )
    assert (again.drawn, again.remaining) == (7, 3)
    before = trace(ledger)
    with pytest.raises(BudgetExceeded, match="reserved 10 draws and 3 are left"):
        again.draw_many(4)
    for count in (0, -1, 2.5, True, None, "2"):
        with pytest.raises((ValueError, TypeError)):
            again.draw_many(count)
    assert trace(ledger) == before
    assert [d.index for d in again.draw_many(3)] == [7, 8, 9]
    with pytest.raises(BudgetExceeded, match="all are used"):
        reserved.draw()
    assert ledger.verify(ledger.tip()).ok


def test_a_reservation_costs_what_its_runs_cost(ledger):
    ledger.reserve(COUNT, count=4, label="epochs")
    other = Ledger(BUDGET, unit=UNIT)
    for _ in range(4):
        other.charge(COUNT, label="one")
    assert ledger.epsilon() == other.epsilon()
    assert ledger.status()[0].accounts == other.status()[0].accounts


def test_a_reservation_too_large_is_declined_whole(ledger):
    before = spent(ledger)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(COUNT, count=10_000, label="epochs")
    assert spent(ledger) == before


@pytest.mark.slow
def test_commit_binds_once(ledger, opened, ledger_url):
    entry = ledger.charge(COUNT, label="visitors")
    spent = ledger.status()
    ledger._commit(entry, "sha256 of the artefact")
    tip = ledger.tip()
    opened(ledger_url)._commit(entry, "sha256 of the artefact")
    with pytest.raises(DemurError, match="another artefact"):
        ledger._commit(entry, "of another one")
    assert ledger.tip() == tip and ledger.status() == spent
    assert ledger.verify(tip).ok


@pytest.mark.slow
def test_entries_of_another_ledger_are_refused(ledger):
    other = Ledger(BUDGET, unit=UNIT)
    entry = other.charge(COUNT, label="elsewhere")
    reserved = other.reserve(COUNT, count=2, label="elsewhere")
    before = trace(ledger)
    with pytest.raises(DemurError, match="not an entry of this ledger"):
        ledger._commit(entry, "x")
    with pytest.raises(DemurError, match="not an entry of this ledger"):
        ledger._key(entry, None)
    with pytest.raises(DemurError, match="not an entry of this ledger"):
        ledger._draw_many(reserved.entry, 1)
    assert trace(ledger) == before


def test_what_an_entry_claims_to_have_paid_for_does_not_count(ledger):
    reserved = ledger.reserve(COUNT, count=1, label="one")
    reserved.draw()
    with pytest.raises(BudgetExceeded):
        ledger._draw_many(replace(reserved.entry, count=5), 1)
    assert ledger.verify(ledger.tip()).ok


# -- opening -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({"dataset": "other people"}, ("people", "other people")),
        ({"budgets": {UNIT: Budget(3.0, 1e-6)}}, ("epsilon 2", "epsilon 3")),
        ({"budgets": {ReplaceOne(): BUDGET}}, ("AddOrRemoveOne", "ReplaceOne")),
        ({"filter": "pure"}, ("gaussian", "pure")),
        ({"filter": Filter.gaussian(blocks=0.5)}, ("gaussian", "50%")),
        ({"maps": [LipschitzMap("a", "b", 2.0)]}, ("none", "LipschitzMap")),
        ({"testing": True}, ("False", "True")),
    ],
    ids=["dataset", "budget", "unit", "filter", "blocks", "maps", "testing"],
)
def test_other_terms_are_refused_and_both_are_shown(
    ledger, ledger_url, opened, other, shown
):
    ledger.charge(COUNT, label="visitors")
    before = trace(ledger)
    same = {"dataset": "people", "budgets": {UNIT: BUDGET}}
    assert opened(ledger_url, **same).tip() == before[0]
    for terms in (same | other, {k: v for k, v in other.items() if k != "budgets"}):
        if not terms:
            continue
        with pytest.raises(LedgerMismatch, match="Nothing was spent") as caught:
            opened(ledger_url, **terms)
        for text in shown:
            assert text in str(caught.value)
    assert trace(ledger) == before


def test_what_is_left_out_at_a_later_opening_is_not_compared(new_ledger, opened):
    ledger = new_ledger(filter="pure", testing=True, maps=[LipschitzMap("a", "b", 2.0)])
    url = str(ledger._store._path or ledger._store._engine.url)
    if not ledger._store._path:
        url = ledger._store._engine.url.render_as_string(hide_password=False)
    opened(url, budgets={UNIT: BUDGET})
    opened(url, dataset="people", budgets={UNIT: BUDGET})


def test_a_missing_ledger_is_not_created_by_looking(tmp_path):
    path = tmp_path / "none.db"
    with pytest.raises(LedgerMismatch, match="Nothing was created"):
        Ledger.open(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="at least one unit"):
        Ledger.open(path, dataset="people", budgets={})
    with pytest.raises(ValueError):
        Ledger.open(path, dataset="people", budgets={UNIT: Budget(1.0)}, filter="rdp")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.postgres
def test_a_missing_ledger_on_a_server_is_not_created_by_looking(postgres_url):
    with pytest.raises(LedgerMismatch, match="Nothing was created"):
        Ledger.open(postgres_url)
    assert ask(postgres_url, "SELECT * FROM pg_tables WHERE tablename ~ 'demur'") == []


def test_a_missing_ledger_with_a_tip_is_not_created(tmp_path):
    path = tmp_path / "ledger.db"
    with pytest.raises((LedgerDamaged, LedgerMismatch)):
        Ledger.open(path, dataset="d", budgets={UNIT: BUDGET}, tip="3:" + "a" * 64)
    assert not path.exists()


@pytest.mark.parametrize(
    "name", ["a ledger.db", "a?b.db", "a%20b.db", "a#b.db", "ä.db"]
)
def test_any_file_name_is_that_file(tmp_path, name):
    path = tmp_path / name
    with Ledger.open(path, dataset="d", budgets={UNIT: BUDGET}) as ledger:
        ledger.charge(COUNT, label="x")
    assert path.is_file()
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert len(ledger.entries()) == 1


def test_addresses_that_name_no_ledger(tmp_path):
    terms: dict[str, Any] = {"dataset": "d", "budgets": {UNIT: BUDGET}}
    for url in ("", ":memory:", "mysql://host/db", "sqlite://", tmp_path):
        with pytest.raises(ValueError):
            Ledger.open(url, **terms)
    with pytest.raises(ValueError, match="folder"):
        Ledger.open(tmp_path / "no" / "ledger.db", **terms)
    text = tmp_path / "notes.txt"
    text.write_text("this is no database, it is a text file of some length\n" * 50)
    nothing: dict[str, Any] = {}
    for more in (nothing, terms):
        with pytest.raises(LedgerDamaged):
            Ledger.open(text, **more)
    assert text.read_text().startswith("this is no database")


@pytest.mark.slow
def test_a_newer_schema_is_refused(ledger, ledger_url, opened):
    edit(ledger_url, "UPDATE demur_ledger SET schema_version = 99")
    with pytest.raises(LedgerMismatch, match="schema 99"):
        opened(ledger_url)


def test_an_unreachable_server_is_a_clear_error(tmp_path):
    pytest.importorskip("psycopg", reason="machine: psycopg is not installed")
    with pytest.raises(DemurError, match="could not be reached") as caught:
        Ledger.open(f"postgresql://demur:hush@/ledger?host={tmp_path}")
    assert "hush" not in str(caught.value)


# -- units -------------------------------------------------------------------------


@pytest.mark.slow
def test_several_budgets_are_charged_together_or_not_at_all(new_ledger, ledger_url):
    ball = Ball(0.1, space="cube")
    ledger = new_ledger(budgets={UNIT: BUDGET, ball: Budget(0.5, 1e-6)})
    ledger.url = ledger_url
    both = Declaration(
        "both",
        Cost(
            (
                Fixed(UNIT, GaussianEvent(10.0)),
                GaussianOverBalls("cube", PiecewiseLinear.linear(4.0, cap=1.0), 10.0),
            )
        ),
    )
    ledger.charge(both, label="first")
    assert 0 < ledger.epsilon(unit=ball) < ledger.epsilon(unit=UNIT)
    before = spent(ledger)
    with pytest.raises(NotCovered):
        ledger.charge(COUNT, label="says nothing about the ball")
    greedy = Declaration(
        "greedy",
        Cost((Fixed(UNIT, GaussianEvent(50.0)), Fixed(ball, GaussianEvent(2.0)))),
    )
    with pytest.raises(BudgetExceeded, match="Ball"):
        ledger.charge(greedy, label="fits one budget and not the other")
    assert spent(ledger) == before
    with pytest.raises(TypeError, match="unit must be given"):
        ledger.epsilon()


@pytest.mark.slow
def test_reading_where_an_entry_is_silent_fails_by_its_name(ledger):
    ledger.charge(COUNT, label="the visitors of May")
    with pytest.raises(NotCovered, match="the visitors of May"):
        ledger.reading(ReplaceOne())


@pytest.mark.slow
def test_maps_lead_from_one_space_to_another(new_ledger):
    pixels = Ball(0.2, space="pixels")
    maps = [LipschitzMap("pixels", "minilm", 3.0)]
    curve = PiecewiseLinear.linear(1.0)
    report = Declaration("report", Cost((PureOverBalls("minilm", curve, 2.0),)))
    ledger = new_ledger(budgets={pixels: Budget(2.0)}, maps=maps)
    ledger.charge(report, label="x")
    assert ledger.epsilon() == pytest.approx(1.2, rel=1e-12) and ledger.epsilon() >= 1.2
    alone = Ledger(Budget(2.0), unit=pixels)
    with pytest.raises(NotCovered):
        alone.charge(report, label="x")


@pytest.mark.slow
def test_deletions_and_privacy_are_never_added(new_ledger, ledger_url):
    ledger = new_ledger(budgets={UNIT: BUDGET, Erasure(): Budget(1.0, 1e-6)})
    ledger.url = ledger_url
    ledger.charge(COUNT, label="visitors")
    only = ledger.status()
    ledger.charge(says(GaussianEvent(9.0), Erasure(), "deletion"), label="forget 17")
    after = ledger.status()
    assert after[0] == only[0] and after[1].spent_epsilon > 0.0
    assert only[1].spent_epsilon == 0.0
    privacy, erasure = ledger.reading(UNIT), ledger.reading(Erasure())
    assert (privacy.entries, privacy.left_out) == (1, 1)
    assert (erasure.entries, erasure.left_out) == (1, 1)
    with pytest.raises(BudgetExceeded, match="Erasure"):
        ledger.charge(
            says(GaussianEvent(1.0), Erasure(), "deletion"), label="forget all"
        )
    assert ledger.reading(UNIT) == privacy


def test_a_deletion_that_cannot_be_priced_is_refused(new_ledger):
    ledger = new_ledger(budgets={UNIT: BUDGET, Erasure(2): BUDGET}, filter="pure")
    mixed = Declaration(
        "mixed",
        Cost((Fixed(UNIT, GaussianEvent(20.0)), Fixed(Erasure(), ApproxDP(0.1, 1e-9)))),
    )
    with pytest.raises((NotCovered, NotPriced)):
        ledger.charge(mixed, label="x")


@pytest.mark.slow
def test_persons_with_several_records(new_ledger):
    person = AddOrRemoveOne(records_per_person=4)
    ledger = new_ledger(budgets={person: BUDGET})
    ledger.charge(says(GaussianEvent(40.0)), label="x")
    alone = Ledger(BUDGET, unit=UNIT)
    alone.charge(says(GaussianEvent(10.0)), label="x")
    assert ledger.epsilon() == pytest.approx(alone.epsilon(), rel=1e-12)


@pytest.mark.slow
def test_a_full_batch_plan_is_a_gaussian():
    """Sampling probability 1 and 0 are legal plans."""
    for filter in (Filter.pure(), Filter.rdp(16), Filter.gaussian(blocks=0.5)):
        ledger = Ledger(BUDGET, unit=UNIT, filter=filter)
        ledger.charge(says(PoissonGaussian(1.0, 50.0)), label="every record")
        ledger.charge(says(PoissonGaussian(0.0, 50.0)), label="no record")
        alone = Ledger(BUDGET, unit=UNIT)
        alone.charge(says(GaussianEvent(50.0)), label="x")
        assert ledger.epsilon() == pytest.approx(alone.epsilon(), rel=1e-6)


def test_a_plan_far_above_the_budget_is_declined_at_once():
    """No grid is built for an epsilon of thousands (it took minutes and gigabytes)."""
    ledger = Ledger(BUDGET, unit=UNIT, filter="pure")
    with pytest.raises(BudgetExceeded):
        ledger.charge(says(Repeated(PoissonGaussian(0.5, 0.1), 1000)), label="huge")
    assert ledger.entries() == []


def test_a_plan_for_one_relation_is_not_stated_at_another():
    with pytest.raises(ValueError):
        Fixed(ReplaceOne(), PoissonGaussian(0.01, 1.0))


def test_counts_from_numpy():
    ledger = Ledger(BUDGET, unit=UNIT)
    three: Any = np.int64(3)
    assert ledger.reserve(COUNT, count=three, label="x").count == 3


# -- noise keys --------------------------------------------------------------------


def read(key):
    return compared(key).stream("test").read(16)


def test_a_key_is_handed_out_once(ledger, ledger_url, opened):
    entry = ledger.charge(COUNT, label="x")
    ledger._key(entry, None)
    with pytest.raises(NoiseReuse, match="handed out"):
        ledger._key(entry, None)
    # Nor may another opener draw for it: one entry pays for one release.
    with pytest.raises(NoiseReuse):
        opened(ledger_url)._key(entry, None)


@pytest.mark.slow
def test_a_replayed_charge_without_an_input_hands_out_no_second_key(
    ledger, ledger_url, opened
):
    entry = ledger.charge(COUNT, label="x", idempotency_key="k")
    ledger._key(entry, None)
    other = opened(ledger_url)
    again = other.charge(COUNT, label="x", idempotency_key="k")
    with pytest.raises(NoiseReuse):
        other._key(again, None)


@pytest.mark.slow
def test_a_retried_task_draws_the_same_noise_for_the_same_input(
    ledger, ledger_url, opened
):
    arguments: dict[str, Any] = {
        "label": "x",
        "idempotency_key": "k",
        "digest": DIGEST,
    }
    noise = read(ledger._key(ledger.charge(COUNT, **arguments), DIGEST))
    retried = opened(ledger_url)
    entry = retried.charge(COUNT, **arguments)
    assert read(retried._key(entry, DIGEST)) == noise
    for other in (None, "another", DIGEST[:-1]):
        with pytest.raises(NoiseReuse, match="another input"):
            retried._key(entry, other)
    retried._commit(entry, "artefact")
    for each in (ledger, retried, opened(ledger_url)):
        with pytest.raises(NoiseReuse, match="committed"):
            each._key(entry, DIGEST)


def test_keys_are_for_the_owner_alone_and_wiped(new_ledger, tmp_path):
    folder = tmp_path / "keys"
    ledger = new_ledger(keys=folder)
    arguments: dict[str, Any] = {
        "label": "x",
        "idempotency_key": "k",
        "digest": DIGEST,
    }
    entry = ledger.charge(COUNT, **arguments)
    noise = bytes(ledger._key(entry, DIGEST)._secret.key)
    files = list(folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)
    assert any(f.read_bytes() == noise for f in files)
    ledger._commit(entry, "artefact")
    assert not any(noise in f.read_bytes() for f in folder.iterdir())
    assert len(list(folder.iterdir())) == len(files) - 1


def test_a_ledger_in_a_file_keeps_its_keys_beside_it(tmp_path, opened):
    ledger = opened(tmp_path / "b.db", dataset="d", budgets={UNIT: BUDGET})
    arguments: dict[str, Any] = {
        "label": "x",
        "idempotency_key": "k",
        "digest": DIGEST,
    }
    ledger._key(ledger.charge(COUNT, **arguments), DIGEST)
    assert stat.S_IMODE((tmp_path / "b.db.keys").stat().st_mode) == 0o700


@pytest.mark.slow
def test_neither_digest_nor_key_is_in_the_ledger(new_ledger, ledger_url, tmp_path):
    folder = tmp_path / "keys"
    ledger = new_ledger(keys=folder)
    arguments: dict[str, Any] = {
        "label": "x",
        "idempotency_key": "k",
        "digest": DIGEST,
    }
    entry = ledger.charge(COUNT, **arguments)
    key = bytes(ledger._key(entry, DIGEST)._secret.key)
    ledger.charge(COUNT, label="y", digest=DIGEST)
    if is_file(ledger_url):
        files = Path(ledger_url).parent.glob("ledger.db*")
        content = b"".join(f.read_bytes() for f in files if f.is_file())
    else:
        tables = ("ledger", "rows", "declarations", "profiles")
        rows = [ask(ledger_url, f"SELECT * FROM demur_{name}") for name in tables]
        content = repr(rows).encode()
    assert entry.id.encode() in content
    for secret in (DIGEST.encode(), bytes.fromhex(DIGEST), key, key.hex().encode()):
        assert secret not in content
    # Two entries for the same input look the same to the owner alone: keyed.
    assert len(DIGEST) == 64


@pytest.mark.slow
def test_threads_race_for_one_key(ledger):
    entry = ledger.charge(COUNT, label="x")
    got, start = [], threading.Barrier(8)

    def ask_for_it():
        start.wait()
        try:
            got.append(ledger._key(entry, None))
        except NoiseReuse:
            pass

    threads = [threading.Thread(target=ask_for_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_a_ledger_in_memory_lets_a_task_be_retried_too():
    ledger = Ledger(BUDGET, unit=UNIT)
    arguments: dict[str, Any] = {
        "label": "x",
        "idempotency_key": "k",
        "digest": DIGEST,
    }
    entry = ledger.charge(COUNT, **arguments)
    noise = read(ledger._key(entry, DIGEST))
    assert read(ledger._key(ledger.charge(COUNT, **arguments), DIGEST)) == noise


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork")
def test_a_fork_does_not_copy_keys(ledger):
    """The same noise in two processes would reveal the difference of two inputs."""
    entry = ledger.charge(COUNT, label="x")
    child = os.fork()
    if child == 0:
        try:
            ledger._key(entry, None)
            os._exit(1)
        except NoiseReuse:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger._key(entry, None)


# -- seeded noise ------------------------------------------------------------------


@pytest.mark.slow
def test_a_seeded_source_is_refused_by_a_durable_ledger(ledger):
    before = trace(ledger)
    with pytest.raises(NotPrivate, match="Nothing was spent"):
        ledger.charge(COUNT, label="x", source=Seeded(1))
    assert trace(ledger) == before


@pytest.mark.slow
def test_a_testing_ledger_takes_a_seeded_source_and_stamps_it(new_ledger):
    ledger = new_ledger(testing=True)
    entry = ledger.charge(COUNT, label="x", source=Seeded(1))
    assert not entry.private and not ledger._key(entry, None).private
    assert "NOT PRIVATE" in entry.statement()
    assert "NOT PRIVATE" in str(ledger.reading())
    (found,) = ledger.entries()
    assert "NOT PRIVATE" in found.statement()


def test_seeded_noise_repeats():
    streams = []
    for _ in range(2):
        ledger = Ledger(BUDGET, unit=UNIT)
        source = Seeded(7)
        entries = [ledger.charge(COUNT, label="x", source=source) for _ in range(2)]
        streams.append([read(ledger._key(entry, None)) for entry in entries])
    assert streams[0] == streams[1] and streams[0][0] != streams[0][1]


# -- processes and threads ---------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="machine: no fork")
def test_a_ledger_in_memory_is_refused_after_a_fork():
    ledger = Ledger(BUDGET, unit=UNIT)
    entry = ledger.charge(COUNT, label="x")
    child = os.fork()
    if child == 0:
        code = 0
        for attempt in (
            lambda: ledger.charge(COUNT, label="y"),
            lambda: ledger.epsilon(),
            lambda: ledger._key(entry, None),
            lambda: ledger._commit(entry, "a"),
        ):
            try:
                attempt()
                code = 1
            except DemurError:
                pass
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ledger.charge(COUNT, label="the parent goes on")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "store"])
def test_threads_share_a_ledger(where, new_ledger, request):
    terms = {"budgets": {UNIT: Budget(1.0)}, "filter": "pure"}
    ledger = (
        new_ledger(**terms)
        if where == "store"
        else Ledger(Budget(1.0), unit=UNIT, filter="pure")
    )
    admitted, errors = [], []
    tenth = says(Pure(1.0 / 64))

    def work(n):
        for i in range(10):
            try:
                admitted.append(ledger.charge(tenth, label=f"{n}.{i}").id)
            except BudgetExceeded:
                pass
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(admitted)) == 64 == len(ledger.entries())
    assert ledger.verify(ledger.tip()).ok and ledger.status()[0].spent_epsilon == 1.0
