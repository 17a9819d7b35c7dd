"""Places where a mutation sample found no test (docs/mutation.md, fourth sample)."""

import errno
import inspect
from pathlib import Path

import pytest

from demur import Budget, Ledger, ReplaceOne
from demur.durable import atomic_files
from demur.ledger.calls import LedgerCalls
from demur.ledger.run_ledger import RunLedger
from demur.ledger.series import over_time
from demur.mechanisms import Gaussian

UNIT = ReplaceOne()
COUNT = Gaussian(20.0, {UNIT: 1.0})


def filled(charges):
    ledger = Ledger(Budget(8.0, 1e-6), unit=UNIT)
    for number in range(charges):
        ledger.paid(COUNT, label=f"{number}")
    return ledger


@pytest.mark.parametrize(
    ("most", "shown"), [(10, [1, 2, 3, 4, 5]), (2, [2, 5]), (3, [1, 3, 5]), (1, [5])]
)
def test_thinned_moments_end_with_the_last_entry(most, shown):
    moments = over_time(filled(5), most)
    assert [moment.sequence for moment in moments] == shown
    spent = [moment.spent_epsilon[0] for moment in moments]
    assert spent == sorted(spent) and spent[-1] > 0


def test_a_ledger_in_memory_has_no_folder_of_keys():
    (left,) = filled(1).unfinished()
    assert left.key is None


def test_a_repeated_request_leaves_no_key_behind(tmp_path):
    """The key that was drawn for a repeat is wiped, whichever id is the larger."""
    place = tmp_path / "ledger.db"
    job = {"label": "one", "digest": "the data", "idempotency_key": "june"}
    with Ledger.open(place, dataset="x", budgets={UNIT: Budget(8.0, 1e-6)}) as ledger:
        first = ledger.paid(COUNT, **job).entry
        before = sorted(path.name for path in tmp_path.rglob("*.key"))
        for _ in range(24):  # a mutant that compares ids by < passes with 2^-24
            assert ledger.paid(COUNT, **job).entry == first
        assert f"{first.id}.key" in before
        assert sorted(path.name for path in tmp_path.rglob("*.key")) == before


def test_charges_are_announced_and_those_of_a_secret_run_are_not(monkeypatch, capsys):
    monkeypatch.setenv("DEMUR_ANNOUNCE", "1")
    ledger = filled(1)
    assert "Charged '0'" in capsys.readouterr().out
    payment = ledger.paid(COUNT, label="a search")
    capsys.readouterr()
    key = payment.key.authorise(COUNT.declaration().fingerprint, "not named")
    with RunLedger(ledger.terms, key, 0, [(COUNT.declaration(), 1)]) as own:
        own.paid(COUNT, label="a run")
    assert capsys.readouterr().out == ""


def test_files_that_belong_together_get_all_their_names_or_none(tmp_path):
    for name in ("a.new", "b.new"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b").write_text("another file")
    pairs = [(tmp_path / f"{name}.new", tmp_path / name) for name in ("a", "b")]
    with pytest.raises(FileExistsError, match="another file is there"):
        atomic_files.name_all(pairs)
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b").read_text() == "another file"


def test_a_file_that_cannot_be_opened_fails_with_its_own_error(tmp_path, monkeypatch):
    def full(self, *args, **options):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="no space left") as raised:
        atomic_files.written_aside(tmp_path / "a", "a line")
    assert raised.value.errno == errno.ENOSPC


CALLS = sorted(
    name
    for name, call in inspect.getmembers(LedgerCalls, inspect.isfunction)
    if list(inspect.signature(call).parameters) == ["self", "actor", "data"]
    and name != "header"  # it reads no field
)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_fields_that_it_does_not_have_is_refused(name):
    assert len(CALLS) > 5
    call = getattr(LedgerCalls(filled(1)), name)
    with pytest.raises(ValueError, match="a call has the fields"):
        call("somebody", {"a field of another call": 1})
