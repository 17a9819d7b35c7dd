"""Results in notebooks: HTML, pictures, short declines, a line after each charge."""

import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from demur import AddOrRemoveOne, Ball, Budget, BudgetExceeded, Ledger, Release, Seeded
from demur.cluster import PrivateKMeans
from demur.convex import BallPrototypeClassifier
from demur.core.display import NotebookBar, in_notebook
from demur.errors import LedgerUnreachable
from demur.mechanisms import Gaussian
from demur.report import pictures, views
from demur.unlearning import UnlearningService
from tests.report.ledgers import NASTY
from tests.tuning.test_search import ledger_at, searching

UNIT = AddOrRemoveOne()


def counted(ledger: Ledger, label: str, sigma: float = 8.0) -> Release[np.ndarray]:
    return Gaussian(sigma, {UNIT: 1.0}, dimension=3).release(
        [4.0, 5.0, 6.0], ledger=ledger, label=label
    )


@pytest.fixture
def ledger():
    return Ledger(Budget(1.0, 1e-6), unit=UNIT, dataset="visits")


@pytest.fixture
def notebook(monkeypatch):
    """A kernel, as IPython shows it, and what was displayed."""
    shown = []

    def display(page, **_):
        shown.append(page)
        return SimpleNamespace(update=shown.append)

    shell = SimpleNamespace(kernel=object())
    tools = SimpleNamespace(display=display, HTML=str)
    python = SimpleNamespace(get_ipython=lambda: shell, display=tools)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", tools)
    return shown


def results(ledger, folder):
    """One of each kind that has HTML."""
    release = counted(ledger, NASTY)
    rows = np.random.default_rng(0).normal(size=(40, 2)) / 4
    head = BallPrototypeClassifier(
        epsilon=1.0, delta=1e-6, radius=0.2, classes=[0, 1]
    ).fit(rows, (rows[:, 0] > 0).astype(int))
    with UnlearningService.open(
        folder / "m.db", mode="ridge", dimension=2, record_store="encrypted"
    ) as live:
        live.insert([0.3, 0.1], 1.0, record_id="a")
        certificate = live.delete("a")
    status = ledger.status()
    return [ledger, status, status[0], release, head.privacy_, certificate]


def test_every_kind_has_html_that_is_escaped_and_a_picture(ledger, tmp_path):
    for result in results(ledger, tmp_path):
        page = result._repr_html_()
        assert page.startswith("<div") and "<script>alert" not in page, type(result)
        axes = result.plot()
        assert axes.get_xlabel() and axes.figure is not None
        pictures.pyplot.close(axes.figure)
    assert "epsilon 0.5039 of 1" in ledger._repr_html_()
    assert "&lt;script&gt;" in ledger._repr_html_()


def test_clusters_are_drawn_and_unfitted_ones_refused():
    clusters = PrivateKMeans(n_clusters=2)
    with pytest.raises(ValueError, match="fit the clusters"):
        clusters.plot()
    clusters.cluster_centers_ = np.array([[0.2, 0.3], [0.7, 0.8]])
    figure = pictures.pyplot.figure()
    axes = clusters.plot(figure.add_subplot())
    drawn = axes.collections[-1].get_offsets()
    np.testing.assert_array_equal(drawn, clusters.cluster_centers_)
    pictures.pyplot.close("all")


def test_what_is_not_known_has_no_view():
    with pytest.raises(TypeError, match="no view"):
        views.html(Ball(0.2, space="x"))


def test_a_status_is_a_tuple_still(ledger):
    counted(ledger, "first")
    (one,) = ledger.status()
    assert ledger.status() == (one,) and str(one).startswith("AddOrRemoveOne(): 0.5039")
    assert 0.0 < one.left_epsilon < 1 - one.spent_epsilon + 1e-9


@pytest.mark.parametrize(
    "spent, said",
    [
        (0.0, "3 of 3 left"),
        (1.00001, "1.999 of 3 left"),  # rounded down
        (3 - 2**-8, "0.003906 of 3 left"),  # above a thousandth of the budget
        (3 - 2**-9, "almost nothing left (less than 0.1% of 3)"),
        (3 - 1.382e-05, "almost nothing left (less than 0.1% of 3)"),
        (3.0, "nothing left of 3"),
    ],
)
def test_what_is_left_in_words(ledger, spent, said):
    (one,) = ledger.status()
    budget = replace(one.budget, epsilon=3.0)
    status = replace(one, budget=budget, spent_epsilon=spent)
    assert status.shown_left == said


def test_a_decline_is_three_lines(ledger, monkeypatch):
    with pytest.raises(BudgetExceeded) as caught:
        counted(ledger, "too much", sigma=1.0)
    lines = caught.value._render_traceback_()
    assert len(lines) <= 3 and lines[0].startswith("BudgetExceeded: 'too much'")
    assert "nothing was spent" in lines[-1]
    monkeypatch.setenv("DEMUR_TRACEBACK", "1")
    assert any("Traceback" in line for line in caught.value._render_traceback_())


def test_one_line_after_every_spend_in_a_notebook(ledger, notebook, capsys):
    assert in_notebook()
    counted(ledger, "first")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Charged 'first': epsilon 0.5039. AddOrRemoveOne(): 0.496")
    assert line.endswith("of 1 left")
    with pytest.raises(BudgetExceeded):
        counted(ledger, "too much", sigma=1.0)
    key = {"label": "again", "idempotency_key": "k"}
    counts = Gaussian(100.0, {UNIT: 1.0})
    for _ in range(2):  # a repeat costs nothing, and is not announced
        ledger.charge(counts, **key)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_line_that_cannot_be_printed_costs_nobody_their_entry(
    ledger, notebook, monkeypatch
):
    def gone(_):
        raise LedgerUnreachable("the server is gone")

    monkeypatch.setattr(Ledger, "status", gone)
    assert counted(ledger, "first").value.shape == (3,)


def test_nothing_is_printed_anywhere_else(ledger, capsys):
    assert not in_notebook()
    counted(ledger, "first")
    assert capsys.readouterr().out == ""


def test_the_runs_of_a_search_are_not_announced(notebook, capsys, tmp_path):
    """Their number is secret: one line, of the search."""
    search, seen = searching()
    for seed in range(3):
        with ledger_at(tmp_path / f"ledger{seed}.db") as ledger:
            search.run(ledger, label="search", digest="d", source=Seeded(seed))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(
        line.startswith("Charged 'search'") for line in lines
    )
    assert "delta 0 of 1e-06" in lines[0], "nothing is left of delta"
    assert len(seen) > 3, "there were more runs than searches"
    assert notebook == [], "and no bar"


def test_a_bar_is_drawn_in_its_place(notebook):
    bar = NotebookBar(4)
    bar.show(1, "epsilon <1>")
    bar.show(4, "done")
    assert len(notebook) == 2 and "&lt;1&gt;" in notebook[0]
    widths = [re.findall(r"width:([\d.]+)%", page) for page in notebook]
    assert widths == [["25.0"], ["100.0"]]
