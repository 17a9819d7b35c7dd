"""The tour runs offline and leaves a whole book behind."""

import pytest
from typer.testing import CliRunner

from demur.cli import app
from demur.ledger import Ledger


@pytest.mark.slow
def test_tour(tmp_path) -> None:
    out = tmp_path / "tour"
    result = CliRunner().invoke(app, ["tour", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "declined" in result.output and "nothing was spent" in result.output
    page = (out / "report.html").read_text()
    with Ledger.open(out / "book.db", head=(out / "head.txt").read_text()) as ledger:
        assert ledger.verify(ledger.head()).ok
        assert len(ledger.entries()) == 3, "the declined request left no entry"
        for status in ledger.status():
            assert 0 < status.spent_epsilon <= status.budget.epsilon
            assert f"<b>{status.spent_epsilon:.4g}</b>" in page
        assert str(ledger.head()) in page
