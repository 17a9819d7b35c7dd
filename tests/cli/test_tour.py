"""The tour runs offline and leaves a whole ledger behind."""

import pytest

from demur.cli.tour import _empty_folder
from demur.cli.tour.session import ERASED, NEAR, REPLACED
from demur.ledger import Ledger
from tests.commands import run


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    out = tmp_path_factory.mktemp("tour") / "out"
    result = run("tour", "--out", out)
    assert result.exit_code == 0, result.output
    with Ledger.open(out / "ledger.db", tip=(out / "tip.txt").read_text()) as ledger:
        yield out, result.output, ledger


slow = pytest.mark.slow


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "ledger.db").write_text("")
    result = run("tour", "--out", tmp_path)
    assert result.exit_code == 1 and "thesis.tex" in result.output
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.tex", "ledger.db"}
    result = run("tour", "--out", tmp_path / "ledger.db")
    assert result.exit_code == 1 and "not a folder" in result.output


def test_an_earlier_tour_is_cleared_away(tmp_path):
    (tmp_path / "ledger.db-keys").mkdir()
    (tmp_path / "report.html").write_text("")
    _empty_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


@slow
def test_every_engine_charges_the_one_ledger(tour):
    _, _, ledger = tour
    assert ledger.verify(ledger.tip()).ok
    names = " ".join(entry.declaration.name for entry in ledger.entries())
    for engine in ("softmax head", "BPM", "deletion", "DP-SGD training"):
        assert engine in names
    spent = {status.unit: status.spent_epsilon for status in ledger.status()}
    for unit, budget in ledger.terms.budgets:
        assert 0 < spent[unit] <= budget.epsilon
    assert set(spent) == {NEAR, REPLACED, ERASED}
    assert all(entry.private for entry in ledger.entries())


@slow
def test_one_request_is_declined_and_leaves_no_entry(tour):
    _, output, ledger = tour
    assert "declined" in output
    assert "what is spent is unchanged" in " ".join(output.split())
    assert len(ledger.declined()) == 1
    heads = [e for e in ledger.entries() if "softmax" in e.declaration.name]
    assert len(heads) == 1


@slow
def test_figures_audit_and_deletions_are_noted_on_their_entries(tour):
    _, output, ledger = tour
    figures = {note.facts["name"] for note in ledger.notes(about="utility")}
    assert len(figures) == 2 and len(ledger.notes(about="utility")) == 3
    assert len(ledger.notes(about="deletion")) == 12
    (audit,) = ledger.notes(about="audit")
    assert audit.facts["refuted"] is False
    assert audit.facts["lower_bound"] > audit.facts["claimed"] / 2, "it has no power"
    assert "not refuted at n" in output
    assert "refuted at n" in output.replace("not ref", "")


@slow
def test_learning_is_worth_it(tour):
    """Well above chance: 0.1 for ten classes, 5 times the error for plain k-means."""
    _, _, ledger = tour
    for note in ledger.notes(about="utility"):
        value, plain = note.facts["value"], note.facts["non_private"]
        if "accuracy" in note.facts["name"]:
            assert 0.6 < value <= 1.0 and value < plain + 0.03
        else:
            assert plain <= value < 3 * plain


@slow
def test_the_page_and_the_certificate_are_there(tour):
    out, _, ledger = tour
    page = (out / "report.html").read_text()
    assert str(ledger.tip()) in page
    files = out / "certificate.json", out / "live.db"
    checked = run("unlearn", "verify", *files, "--ledger", out / "ledger.db")
    assert checked.exit_code == 0, checked.output
