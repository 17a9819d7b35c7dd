"""`Ledger.paid`: charge, key, draw, commit; and what can go wrong between them."""

import copy
import gc
import json
import os
import pickle
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from demur import (
    AddOrRemoveOne,
    Budget,
    BudgetExceeded,
    DemurError,
    Ledger,
    LedgerUnreachable,
    OutcomeUnknown,
    Seeded,
)
from demur.core.accounting.events import GaussianEvent
from demur.core.digest import digest_of_array
from demur.durable.keys import KeyStore
from demur.errors import IdempotencyConflict, NoiseReuse, NotPaidFor
from demur.ledger import Timeouts
from demur.mechanisms import Gaussian
from tests.ledger.kit import BUDGET, UNIT, ask, says

COUNT = Gaussian(20.0, {UNIT: 1.0})
LARGE = Gaussian(0.5, {UNIT: 1.0})
VALUE = [1234.0]
DIGEST = COUNT.digest(VALUE)
NAMED = {"label": "visitors", "digest": DIGEST, "idempotency_key": "job-7"}
IMPATIENT = Timeouts(pause=1.0, call=2.0)  # a commit that fails is repeated so long


@pytest.fixture
def ledger(new_ledger, ledger_url, tmp_path):
    opened = new_ledger(keys=tmp_path / "keys")
    opened.url, opened.folder = ledger_url, tmp_path / "keys"
    return opened


@pytest.fixture
def reopened(ledger, opened):
    """The same ledger, as another process would open it."""
    return lambda: opened(ledger.url, keys=ledger.folder)


def commits(ledger):
    """The artefacts of the commits in the ledger."""
    statement = "SELECT body FROM demur_rows WHERE kind = 'commit' ORDER BY sequence"
    return [json.loads(b)["artefact"] for (b,) in ask(ledger.url, statement)]


def keys_left(ledger):
    """The noise keys on disk and in memory, without the secret for digests."""
    files = ledger.folder.glob("*.key") if ledger.folder.is_dir() else ()
    names = [path.name for path in files if not path.name.startswith("input-")]
    return names + list(ledger._keys._memory)


@contextmanager
def commit_fails(ledger, *, written, error=None):
    """COMMIT raises: before it is sent, or after the database has done it."""
    dialect = ledger._store._engine.dialect
    error = error or dialect.loaded_dbapi.OperationalError("the link is gone")
    done = dialect.do_commit

    def do_commit(connection):
        if written:
            done(connection)
        raise error

    patience, ledger._store._timeouts = ledger._store._timeouts, IMPATIENT
    dialect.do_commit = do_commit
    try:
        yield
    finally:
        del dialect.do_commit
        ledger._store._timeouts = patience


# -- the order ---------------------------------------------------------------------


@pytest.mark.slow
def test_the_charge_is_durable_before_there_is_a_key(ledger, reopened):
    payment = ledger.paid(COUNT, **NAMED)
    (entry,) = reopened().entries()
    assert entry == payment.entry and entry.private
    assert ledger.status()[0].spent_epsilon > 0.0
    assert not commits(ledger)


@pytest.mark.slow
def test_the_end_of_the_block_commits_what_was_released(ledger):
    with ledger.paid(COUNT, **NAMED) as payment:
        noisy = COUNT.apply(VALUE, payment.key)
        payment.released(digest_of_array(noisy))
        assert not commits(ledger)
    assert commits(ledger) == [digest_of_array(noisy)]
    assert keys_left(ledger) == []
    assert ledger.verify(ledger.tip()).ok
    with pytest.raises(NoiseReuse, match="committed"):
        payment.key.stream("more")


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_leaves_the_entry_spent_and_uncommitted(ledger, error):
    with pytest.raises(error):
        with ledger.paid(COUNT, label="visitors") as payment:
            COUNT.apply(VALUE, payment.key)
            payment.released("never")
            raise error
    assert commits(ledger) == []
    (entry,) = ledger.entries()
    assert entry == payment.entry
    assert ledger.epsilon() > 0.0


def test_a_declined_charge_draws_nothing_and_leaves_no_key(ledger):
    drawn = []
    with pytest.raises(BudgetExceeded, match="nothing was spent"):
        with ledger.paid(LARGE, label="too much", digest="d", idempotency_key="k") as p:
            drawn.append(p.key)
    assert drawn == [] and ledger.entries() == [] and keys_left(ledger) == []


@pytest.mark.slow
def test_a_repeat_draws_the_same_noise_and_pays_once(ledger, reopened):
    with pytest.raises(RuntimeError):
        with ledger.paid(COUNT, **NAMED) as payment:
            first = COUNT.apply(VALUE, payment.key)
            raise RuntimeError("killed before its commit")
    spent = ledger.status()
    again = reopened()
    with again.paid(COUNT, **NAMED) as payment:
        second = COUNT.apply(VALUE, payment.key)
        payment.released(digest_of_array(second))
    assert np.array_equal(first, second)
    assert len(ledger.entries()) == 1 and ledger.status() == spent
    assert commits(ledger) == [digest_of_array(first)]
    # After the commit there is no more noise for anybody.
    for each in (ledger, again, reopened()):
        with pytest.raises(NoiseReuse, match="committed"):
            _ = each.paid(COUNT, **NAMED).key


def test_a_repeat_in_one_process_draws_the_same_noise(ledger):
    draws = [COUNT.apply(VALUE, ledger.paid(COUNT, **NAMED).key) for _ in range(3)]
    assert len({float(draw[0]) for draw in draws}) == 1 == len(ledger.entries())


def test_a_repeat_for_another_input_is_refused(ledger):
    payment = ledger.paid(COUNT, **NAMED)
    COUNT.apply(VALUE, payment.key)
    with pytest.raises(IdempotencyConflict, match="Nothing was spent"):
        ledger.paid(COUNT, **(NAMED | {"digest": COUNT.digest([99.0])}))
    with pytest.raises(NotPaidFor, match="another input"):
        COUNT.apply([99.0], ledger.paid(COUNT, **NAMED).key)


def test_without_a_digest_a_repeat_cannot_draw_again(ledger, reopened):
    named = {"label": "visitors", "idempotency_key": "job-7"}
    COUNT.apply(VALUE, ledger.paid(COUNT, **named).key)
    for each in (ledger, reopened()):
        with pytest.raises(NoiseReuse, match="not here"):
            _ = each.paid(COUNT, **named).key
    assert len(ledger.entries()) == 1


# -- the artefact ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("artefact", ["", "a\nb", "x" * 201])
def test_a_bad_artefact_is_refused_when_it_is_named(ledger, artefact):
    payment = ledger.paid(COUNT, label="visitors")
    with pytest.raises(ValueError, match="artefact"):
        payment.released(artefact)
    with pytest.raises(ValueError, match="artefact"):
        payment.commit(artefact)
    assert commits(ledger) == []
    payment.commit("good")
    assert commits(ledger) == ["good"]


def test_one_entry_pays_for_one_release(ledger, reopened):
    payment = ledger.paid(COUNT, **NAMED)
    payment.released("first")
    with pytest.raises(DemurError, match="one release|One entry"):
        payment.released("second")
    payment.commit()
    payment.commit()
    payment.commit("first")
    payment.released("first")
    for late in (payment.commit, payment.released, ledger.resumed("job-7").commit):
        with pytest.raises(DemurError, match="pays for one release"):
            late("second")
    reopened().resumed("job-7").commit("first")
    assert commits(ledger) == ["first"]


def test_what_was_committed_without_an_artefact_gets_none_later(ledger):
    with ledger.paid(COUNT, label="visitors") as payment:
        pass
    with pytest.raises(DemurError, match="One entry pays for one release"):
        payment.released("late")
    assert commits(ledger) == [None]


# -- a commit that fails -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_a_commit_without_an_answer_is_raised_and_can_be_repeated(ledger, written):
    """Spent either way; a second commit finds the first, or writes it."""
    with pytest.raises(OutcomeUnknown):
        with ledger.paid(COUNT, **NAMED) as payment:
            noisy = COUNT.apply(VALUE, payment.key)
            payment.released(digest_of_array(noisy))
            failing = commit_fails(ledger, written=written)
            failing.__enter__()
    failing.__exit__(None, None, None)
    assert len(commits(ledger)) == int(written)
    assert len(ledger.entries()) == 1
    payment.commit()
    assert commits(ledger) == [digest_of_array(noisy)]
    assert keys_left(ledger) == []
    with pytest.raises(NoiseReuse, match="committed"):
        payment.key.stream("more")
    assert ledger.verify(ledger.tip()).ok


@pytest.mark.slow
def test_a_commit_that_reaches_nobody_leaves_the_entry_to_a_repeat(
    ledger, reopened, monkeypatch
):
    gone = sa.exc.OperationalError("", {}, Exception("gone"))

    def unreachable(*_):
        raise gone

    monkeypatch.setattr(ledger._store, "_timeouts", IMPATIENT)
    with pytest.raises(LedgerUnreachable, match="what was charged before it stays"):
        with ledger.paid(COUNT, **NAMED) as payment:
            first = COUNT.apply(VALUE, payment.key)
            monkeypatch.setattr("demur.ledger.storage.rows.append", unreachable)
    monkeypatch.undo()
    assert commits(ledger) == [] and len(ledger.entries()) == 1
    with reopened().paid(COUNT, **NAMED) as payment:
        assert np.array_equal(COUNT.apply(VALUE, payment.key), first)
    assert commits(ledger) == [None] and len(ledger.entries()) == 1


@pytest.mark.slow
def test_a_commit_that_failed_does_not_keep_the_lock(ledger, reopened):
    """As on a full disk: the transaction is still open when COMMIT has failed."""
    with commit_fails(ledger, written=False):
        with pytest.raises(OutcomeUnknown) as caught:
            ledger.paid(COUNT, label="lost")
    reopened().charge(COUNT, label="of another process")
    ledger.charge(COUNT, label="of this one")
    labels = [entry.label for entry in ledger.entries()]
    assert caught and labels == ["of another process", "of this one"]


def test_a_ledger_in_memory_survives_a_commit_that_failed():
    ledger = Ledger(BUDGET, unit=UNIT)
    ledger.charge(COUNT, label="before")
    with commit_fails(ledger, written=False):
        with pytest.raises(OutcomeUnknown):
            ledger.paid(COUNT, label="lost")
    ledger.charge(COUNT, label="after")
    assert [entry.label for entry in ledger.entries()] == ["before", "after"]


# -- a charge that is interrupted --------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_an_interrupt_during_the_charge_is_taken_up_by_its_key(ledger, written):
    with commit_fails(ledger, written=written, error=KeyboardInterrupt()):
        with pytest.raises(KeyboardInterrupt):
            ledger.paid(COUNT, **NAMED)
    with ledger.paid(COUNT, **NAMED) as payment:
        COUNT.apply(VALUE, payment.key)
    assert len(ledger.entries()) == 1 and commits(ledger) == [None]


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), None], ids=["interrupt", "lost"]
)
def test_a_charge_that_nobody_can_ask_for_leaves_no_key(ledger, written, error):
    with commit_fails(ledger, written=written, error=error):
        with pytest.raises((KeyboardInterrupt, OutcomeUnknown)):
            ledger.paid(COUNT, label="visitors", digest=DIGEST)
    assert len(ledger.entries()) == int(written)
    assert keys_left(ledger) == []


def test_an_error_of_our_own_during_the_charge_leaves_no_key(ledger, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("demur.ledger.storage.rows.append", broken)
    with pytest.raises(ZeroDivisionError):
        ledger.paid(COUNT, **NAMED)
    assert keys_left(ledger) == [] and ledger.entries() == []


# -- several at once ---------------------------------------------------------------


def together(work, threads=8):
    """What `work` returns, or raises, in several threads at once."""
    results, start = [], threading.Barrier(threads)

    def run():
        start.wait()
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@pytest.mark.slow
@pytest.mark.parametrize("named", [{"label": "visitors"}, NAMED], ids=["once", "again"])
def test_threads_that_share_a_payment_share_its_key(ledger, named):
    payment = ledger.paid(COUNT, **named)
    keys = together(lambda: payment.key)
    assert len({id(key) for key in keys}) == 1 and keys[0] is payment.key


@pytest.mark.slow
def test_of_threads_with_different_inputs_one_draws(ledger):
    payment = ledger.paid(COUNT, label="visitors")
    numbers = iter(range(8))
    results = together(lambda: COUNT.apply([float(next(numbers))], payment.key))
    refused = [result for result in results if isinstance(result, NotPaidFor)]
    assert len(refused) == 7


@pytest.mark.slow
def test_no_key_survives_a_commit_in_another_thread(ledger):
    """Either it is refused, or it was handed out and the commit wiped it."""
    for number in range(5):
        payment = ledger.paid(COUNT, label=f"visitors {number}")
        last = iter([payment.commit] + [lambda p=payment: p.key] * 3)
        for result in together(lambda todo=last: next(todo)(), threads=4):
            if result is not None and not isinstance(result, NoiseReuse):
                with pytest.raises(NoiseReuse):
                    COUNT.apply(VALUE, result)


def test_a_nested_payment_of_the_same_name_is_the_same_entry(ledger):
    with ledger.paid(COUNT, **NAMED) as outer:
        before = COUNT.apply(VALUE, outer.key)
        with ledger.paid(COUNT, **NAMED) as inner:
            assert np.array_equal(COUNT.apply(VALUE, inner.key), before)
        with pytest.raises(NoiseReuse, match="committed"):
            outer.key.stream("more")
    assert inner.entry == outer.entry and len(ledger.entries()) == 1
    assert commits(ledger) == [None]


def test_nested_payments_cannot_release_two_things(ledger):
    with pytest.raises(DemurError, match="pays for one release"):
        with ledger.paid(COUNT, **NAMED) as outer:
            with ledger.paid(COUNT, **NAMED) as inner:
                inner.released("inner")
            outer.released("outer")
    assert commits(ledger) == ["inner"]


# -- resumed, closed, copied, forked -----------------------------------------------


def test_a_resumed_payment_commits_and_has_no_key_for_an_input_it_cannot_know(ledger):
    ledger.paid(COUNT, **NAMED)
    payment = ledger.resumed("job-7")
    with pytest.raises(NoiseReuse, match="no digest was given"):
        _ = payment.key
    payment.commit("artefact")
    assert commits(ledger) == ["artefact"]
    assert ledger.resumed("no such job") is None


def test_keys_are_found_again_from_another_folder(
    new_ledger, opened, ledger_url, tmp_path, monkeypatch
):
    """A relative folder for keys is that of the opening, not of the moment."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ledger = new_ledger(keys="keys")
    payment = ledger.paid(COUNT, **NAMED)
    monkeypatch.chdir(tmp_path / "there")
    first = COUNT.apply(VALUE, payment.key)
    assert list((tmp_path / "there").iterdir()) == []
    again = opened(ledger_url, keys=tmp_path / "here" / "keys")
    assert np.array_equal(COUNT.apply(VALUE, again.paid(COUNT, **NAMED).key), first)


def test_a_durable_ledger_closed_inside_the_block_still_commits(ledger):
    with ledger.paid(COUNT, **NAMED) as payment:
        COUNT.apply(VALUE, payment.key)
        ledger.close()
    assert commits(ledger) == [None]


def test_a_ledger_in_memory_closed_inside_the_block_says_so():
    ledger = Ledger(BUDGET, unit=UNIT)
    with pytest.raises(DemurError, match="in memory and is closed"):
        with ledger.paid(COUNT, label="visitors") as payment:
            COUNT.apply(VALUE, payment.key)
            ledger.close()
    with pytest.raises(DemurError, match="Nothing was spent"):
        ledger.paid(COUNT, label="a second budget")


def test_copies_of_a_payment_are_the_same_payment(ledger):
    payment = ledger.paid(COUNT, label="visitors")
    assert copy.copy(payment) is copy.deepcopy(payment) is payment
    _ = payment.key
    assert copy.deepcopy([payment])[0] is payment
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="drawn twice"):
            pickle.dumps(payment, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("taken", [False, True])
def test_a_forked_child_gets_no_noise_of_a_payment(ledger, taken):
    payment = ledger.paid(COUNT, label="visitors")
    if taken:
        _ = payment.key
    child = os.fork()
    if child == 0:
        code = 2
        try:
            COUNT.apply(VALUE, payment.key)
            code = 1
        except NoiseReuse:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    COUNT.apply(VALUE, payment.key)  # the parent goes on


# -- what the key is bound to ------------------------------------------------------


def test_the_key_is_bound_to_the_rows_and_not_to_what_an_entry_claims(ledger):
    """A forged entry: the key of a cheap mechanism for a dear one."""
    payment = ledger.paid(COUNT, label="cheap")
    forged = replace(payment.entry, declaration=LARGE.declaration(), count=50)
    key = ledger._key(forged, None)
    assert (key.binding.fingerprint, key.binding.draws) == (COUNT.fingerprint, 1)
    with pytest.raises(NotPaidFor, match="another mechanism"):
        LARGE.apply(VALUE, key)
    with pytest.raises(AttributeError):
        payment.entry = forged


def test_a_declaration_without_a_fingerprint_is_bound_to_all_of_itself(ledger):
    plain = says(GaussianEvent(20.0))
    key = ledger.paid(plain, label="x").key
    for other in (says(GaussianEvent(21.0)), says(GaussianEvent(20.0), name="other")):
        with pytest.raises(NotPaidFor, match="another mechanism"):
            key.authorise(other.fingerprint, "d")
    drawing = key.authorise(plain.fingerprint, "d")
    assert len(drawing.stream("mine").read(8)) == 8


def test_a_count_pays_for_that_many_numbered_draws(ledger):
    payment = ledger.paid(COUNT, count=3, **NAMED)
    values = [[1.0], [2.0], [3.0]]
    draws = [
        COUNT.apply(value, payment.key, draw=i)[0] - value[0]
        for i, value in enumerate(values)
    ]
    assert len(set(draws)) == 3
    with pytest.raises(NotPaidFor, match="3 draw"):
        COUNT.apply([4.0], payment.key, draw=3)
    with pytest.raises(NoiseReuse, match="already taken"):
        COUNT.apply([5.0], payment.key, draw=0)
    assert [payment.reservation.draw().index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BudgetExceeded, match="nothing was spent"):
        payment.reservation.draw()


def test_an_interactive_mechanism_counts_its_draws_itself(ledger):
    steps = says(GaussianEvent(20.0), draws=None)
    key = ledger.paid(steps, label="steps", digest="data").key
    assert key.binding.draws is None
    for draw in range(4):
        drawing = key.authorise(steps.fingerprint, f"value {draw}", draw=draw, runs=1)
        drawing.stream("step", draw)
    with pytest.raises(NoiseReuse, match="already taken"):
        drawing.stream("step", 2)
    for runs in (None, 2):  # more than was paid for
        with pytest.raises(NotPaidFor, match="paid for 1 run"):
            key.authorise(steps.fingerprint, "value", runs=runs)


@pytest.mark.slow
def test_a_part_of_a_part_draws_for_its_own_rows_and_is_wiped_with_the_whole(ledger):
    payment = ledger.paid(COUNT, label="visitors", digest=DIGEST)
    inner = payment.key.part("half").part("quarter")
    with pytest.raises(NotPaidFor, match="another input"):
        inner.authorise(COUNT.fingerprint, "half")
    inner = inner.authorise(COUNT.fingerprint, "quarter")
    inner.stream("p", 0)
    inner.part("eighth").authorise(COUNT.fingerprint, "eighth")
    whole = payment.key.authorise(COUNT.fingerprint, DIGEST)
    with pytest.raises(NoiseReuse, match="already taken"):
        whole.stream("p", 0)
    del whole
    entry = payment.entry
    del payment  # nobody but the part holds the key any more
    gc.collect()
    ledger._commit(entry, None)
    with pytest.raises(NoiseReuse, match="committed"):
        inner.stream("p", 1)


# -- bad arguments -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        {"mechanism": object()},
        {"mechanism": None},
        {"source": 7},
        {"source": np.random.default_rng(1)},
        {"count": 0},
        {"count": 2**40 + 1},
        {"count": 1.5},
        {"label": ""},
        {"label": None},
        {"digest": ""},
        {"digest": 5},
        {"idempotency_key": ""},
    ],
    ids=[f"bad {i}" for i in range(12)],
)
def test_bad_arguments_spend_nothing(ledger, bad):
    with pytest.raises((TypeError, ValueError)) as caught:
        ledger.paid(**({"mechanism": COUNT, "label": "visitors"} | bad))
    assert next(iter(bad)) in str(caught.value)
    assert ledger.entries() == [] and keys_left(ledger) == []


def test_seeded_payments_repeat_and_are_stamped():
    draws = []
    for _ in range(2):
        ledger = Ledger(Budget(2.0, 1e-6), unit=AddOrRemoveOne())
        with ledger.paid(COUNT, label="x", source=Seeded(3)) as payment:
            draws.append(COUNT.apply(VALUE, payment.key)[0])
        assert "NOT PRIVATE" in payment.entry.statement()
    assert draws[0] == draws[1]


class Waiting(KeyStore):
    """The twin: a child goes on with the lock that the fork copied."""

    def _begin_anew_after_a_fork(self):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, ends", [(KeyStore, 0), (Waiting, -signal.SIGALRM)], ids=["ours", "twin"]
)
def test_a_fork_does_not_wait_for_a_lock_that_it_copied(kind, ends):
    """Its owner is a thread of the parent; the alarm ends a child that waits."""
    keys = kind(None)
    with keys._locked():
        child = os.fork()
        if child == 0:  # pragma: no cover
            signal.alarm(2)
            keys.wipe("entry")
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == ends
