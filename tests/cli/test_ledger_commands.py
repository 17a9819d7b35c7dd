"""`demur ledger show | verify | export`, and `demur report`."""

import json
import sqlite3
from contextlib import closing

import pytest

from demur import AddOrRemoveOne, Ball, Declaration, Erasure, Seeded
from demur.core.accounting.events import GaussianEvent
from demur.core.cost import Cost, Fixed
from demur.ledger import Budget, Ledger
from demur.mechanisms import Gaussian
from tests.commands import run as demur

UNIT = AddOrRemoveOne()


@pytest.fixture
def ledger_path(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(
        path,
        dataset="visits",
        budgets={UNIT: Budget(1.0, 1e-6), Erasure(): Budget(1.0, 1e-6)},
    ) as ledger:
        Gaussian(20.0, {UNIT: 1.0}, name="a count").release(
            [3.0], ledger=ledger, label="May"
        )
        deletion = Declaration(
            "a deletion", Cost((Fixed(Erasure(), GaussianEvent(30.0)),))
        )
        ledger.charge(deletion, label="erase")
    return path


def test_show_prints_budgets_and_entries(ledger_path) -> None:
    result = demur("ledger", "show", ledger_path)
    assert result.exit_code == 0
    for text in ("visits", "AddOrRemoveOne()", "Erasure()", "May", "a count"):
        assert text in result.output


def test_json_equals_the_ledger(ledger_path) -> None:
    result = demur("ledger", "show", ledger_path, "--json")
    data = json.loads(result.output)
    with Ledger.open(ledger_path) as ledger:
        for row, status in zip(data["budgets"], ledger.status(), strict=True):
            assert row["spent_epsilon"] == status.spent_epsilon
            assert row["tight_epsilon"] == ledger.epsilon(unit=status.unit)
        assert [e["label"] for e in data["entries"]] == ["May", "erase"]
        assert data["tip"] == str(ledger.tip())


@pytest.mark.slow
def test_verify_says_whole_and_then_finds_an_edit(ledger_path, tmp_path) -> None:
    tip = demur("ledger", "export", ledger_path, "--tip").output.strip()
    file = tmp_path / "tip.txt"
    file.write_text(tip)
    assert demur("ledger", "verify", ledger_path, "--tip", tip).exit_code == 0
    assert demur("ledger", "verify", ledger_path, "--tip", file).exit_code == 0
    assert "give an exported tip" in demur("ledger", "verify", ledger_path).output
    with closing(sqlite3.connect(ledger_path)) as connection, connection:
        connection.execute(
            "UPDATE demur_rows SET body = replace(body, 'May', 'Mai') WHERE sequence=1"
        )
    result = demur("ledger", "verify", ledger_path, "--tip", tip)
    assert result.exit_code == 1
    assert "row 1" in result.output
    answer = json.loads(demur("ledger", "verify", ledger_path, "--json").output)
    assert not answer["ok"]


def test_registry_records_have_the_registers_columns(ledger_path) -> None:
    result = demur(
        "ledger",
        "export",
        ledger_path,
        "--registry",
        "--product",
        "P",
        "--organisation",
        "O",
    )
    (record,) = json.loads(result.output)  # a deletion budget is no privacy loss
    assert set(record) == {
        "product",
        "description",
        "year",
        "flavour",
        "privacy_loss",
        "model",
        "accounting",
        "implementation",
    }
    assert record["product"] == {"name": "P", "organisation": "O"}
    loss = record["privacy_loss"]
    with Ledger.open(ledger_path) as ledger:
        assert loss["epsilon"] == ledger.epsilon(unit=UNIT)
    assert loss["privacy_unit"] == "record-level"


def test_export_to_a_file(ledger_path, tmp_path) -> None:
    target = tmp_path / "ledger.json"
    assert demur("ledger", "export", ledger_path, "-o", target).exit_code == 0
    assert json.loads(target.read_text())["dataset"] == "visits"


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_missing_ledger_is_an_error_and_creates_nothing(command, tmp_path) -> None:
    path = tmp_path / "none.db"
    result = demur("ledger", command, path)
    assert result.exit_code == 1
    assert not path.exists()


def test_a_file_that_is_no_ledger_is_an_error(tmp_path) -> None:
    path = tmp_path / "text.db"
    path.write_text("not a database, " * 100)
    result = demur("ledger", "show", path)
    assert result.exit_code == 1
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_seeded_ledger_is_stamped(tmp_path) -> None:
    path = tmp_path / "test.db"
    with Ledger.open(
        path, dataset="t", budgets={UNIT: Budget(1.0, 1e-6)}, testing=True
    ) as ledger:
        mechanism = Gaussian(20.0, {UNIT: 1.0})
        mechanism.release([0.0], ledger=ledger, label="x", source=Seeded(1))
    assert "NOT PRIVATE" in demur("ledger", "show", path).output
    page = tmp_path / "report.html"
    assert demur("report", path, "-o", page).exit_code == 0
    assert "NOT PRIVATE" in page.read_text()


def test_ball_ledgers_are_read_at_their_ball(tmp_path) -> None:
    path = tmp_path / "ball.db"
    near = Ball(0.5, space="cube")
    Ledger.open(path, dataset="b", budgets={near: Budget(1.0, 1e-6)}).close()
    assert "space='cube'" in demur("ledger", "show", path).output
