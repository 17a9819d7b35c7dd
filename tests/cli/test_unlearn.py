"""`demur unlearn run` and `simulate`: a stream from a file, and one made up."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demur.core.adjacency import Erasure
from demur.ledger import Ledger
from demur.unlearning.stream.workload import read_stream, simulated
from tests.commands import run

NEW = ["--create", "--budget", "erasure:1:1e-5"]


def columns(stream, subject=False):
    """A stream as a table: the rows of deletions hold ids alone."""
    rows = {"op": [], "id": [], "y": []} | {name: [] for name in stream.features}
    for delete, record in zip(stream.deletes, stream.row, strict=True):
        rows["op"].append("delete" if delete else "insert")
        rows["id"].append(stream.ids[record])
        rows["y"].append(None if delete else float(stream.Y[record]))
        for j, name in enumerate(stream.features):
            rows[name].append(None if delete else float(stream.X[record, j]))
    if subject:
        rows["subject"] = [f"person {i}" for i in rows["id"]]
    return rows


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "stream.parquet"
    made = simulated(600, 10, 1, dimension=3, warm_up=100)
    pq.write_table(pa.table(columns(made)), path)
    return path


def demur(*arguments):
    return run("unlearn", *arguments)


def test_a_stream_reads_back(parquet, tmp_path):
    made = simulated(600, 10, 1, dimension=3, warm_up=100)
    found = read_stream(parquet)
    np.testing.assert_array_equal(found.X, made.X)
    np.testing.assert_array_equal(found.Y, made.Y)
    np.testing.assert_array_equal(found.row, made.row)
    assert found.ids == made.ids and found.subjects is None
    table = columns(made, subject=True)
    with (tmp_path / "stream.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(
            ["" if v is None else v for v in row]
            for row in zip(*table.values(), strict=True)
        )
    again = read_stream(tmp_path / "stream.csv")
    np.testing.assert_allclose(again.X, made.X, rtol=1e-15)
    assert again.subjects is not None and again.subjects[3] == "person r3"


@pytest.mark.slow
def test_run_records_its_deletions(parquet, tmp_path):
    out, plot, ledger_path = (tmp_path / n for n in ("w.npz", "p.svg", "ledger.db"))
    result = demur(
        "run", parquet, "--mode", "ogd", "--epsilon", 1, "--gamma-priv", 50,
        "--calibration", 50, "--ledger", ledger_path, *NEW, "--plot", plot, "-o", out,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for text in ("average regret", "theory", "practice", "two Gaussians", "written"):
        assert text in result.output
    assert plot.read_text().lstrip().startswith("<?xml")
    with np.load(out) as kept:
        assert kept["weights"].shape == (3,) and list(kept["features"]) == [
            "x0",
            "x1",
            "x2",
        ]
    with Ledger.open(ledger_path) as ledger:
        assert ledger.verify(ledger.tip()).ok
        promise, deletions = ledger.entries()
        assert promise.declaration.cost.only_erasure()
        assert ledger.tip().sequence == 2 + 50  # one row for each deletion
        assert ledger.epsilon(unit=Erasure()) == pytest.approx(1.0, abs=1e-6)
    again = demur("run", parquet, "--gamma-priv", 50, "--ledger", ledger_path)
    assert again.exit_code == 3 and "nothing was spent" in again.output


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["gdp", "zcdp"])
def test_ogd_under_joint_scope_records_its_deletions(parquet, tmp_path, accounting):
    ledger_path = tmp_path / "b.db"
    result = demur(
        "run", parquet, "--scope", "joint", "--accounting", accounting, "--gamma-priv",
        100, "--calibration", 50, "--ledger", ledger_path, *NEW,
    )  # fmt: skip
    assert result.exit_code == 3 and "(privacy)" in result.output, result.output
    assert "mode ogd, joint" in result.output
    with Ledger.open(ledger_path) as ledger:
        (entry,) = ledger.entries()
        assert entry.count > 1 and ledger.epsilon(unit=Erasure()) <= 1.0


@pytest.mark.slow
def test_deletions_that_cannot_be_honoured_show_in_the_exit_code(parquet, tmp_path):
    out = tmp_path / "w.npz"
    result = demur("run", parquet, "--gamma-priv", 0.001, "-o", out)
    assert result.exit_code == 3, result.output
    assert "50 deletions were refused (regret)" in result.output
    assert not out.exists() and "not written" in result.output
    early = demur(
        "run", parquet, "--gamma-learn", 1e-5, "--calibration", 20, "--gamma-priv", 50
    )
    assert early.exit_code == 3
    assert (
        "N* was not reached" in early.output and "50 deletions waited" in early.output
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "forget"}, "op must be 'insert' or 'delete'"),
        ({"id": "r0"}, "is live already"),
        ({"op": "delete", "id": "nobody"}, "no live record has id"),
        ({"x1": float("nan")}, "finite numbers"),
        ({"y": None}, "finite numbers"),
        ({"id": None}, "the id is missing"),
        ({"id": ""}, "the id is missing"),
    ],
)
def test_a_bad_row_is_named(tmp_path, change, message):
    table = columns(simulated(20, 10, 1, dimension=2, warm_up=20))
    for name, value in change.items():
        table[name][7] = value
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(table), path)
    result = demur("run", path)
    assert result.exit_code == 1 and message in result.output
    assert "row 7" in result.output


def test_a_missing_subject_is_nobody_and_not_one_person(tmp_path):
    """Two people without a name share nothing, least of all their requests."""
    table = columns(simulated(60, 10, 1, dimension=2, warm_up=20), subject=True)
    owners = table["subject"]
    for at in range(len(owners)):
        owners[at] = (None, "", owners[at])[at % 3]
    path = tmp_path / "stream.parquet"
    pq.write_table(pa.table(table), path)
    subjects = read_stream(path).subjects
    assert subjects is not None and subjects[:2] == [None, None]
    assert subjects[2] == "person r2" and "None" not in subjects
    options = ("--calibration", 20, "--gamma-priv", 500, "--json")
    result = demur("run", path, *options)
    assert result.exit_code == 0 and '"refused": 0' in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("a.parquet", {"op": ["insert"], "id": ["a"]}, "lacks y"),
        ("a.parquet", {"op": ["insert"], "id": ["a"], "y": [1.0]}, "no feature"),
        ("a.parquet", {"op": [], "id": [], "y": [], "x": []}, "has no row"),
        (
            "a.parquet",
            {"op": ["insert"], "id": ["a"], "y": [1.0], "x": ["high"]},
            "'x' must hold numbers",
        ),
        ("a.json", {"op": ["insert"]}, "must be .parquet or .csv"),
    ],
)
def test_a_bad_file(tmp_path, name, table, message):
    path = tmp_path / name
    pq.write_table(pa.table(table), path)
    result = demur("run", path)
    assert result.exit_code == 1 and message in result.output
    assert demur("run", tmp_path / "none.parquet").exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ogd", "ridge", "logistic", "seed"])
def test_simulate_every_mode(mode, tmp_path):
    plot = tmp_path / "p.png"
    result = demur(
        "simulate", "--mode", mode, "--inserts", 400, "--dimension", 4,
        "--calibration", 50, "--gamma-priv", 5, "--plot", plot,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert plot.stat().st_size > 1000
    promise = {"ridge": "bit for bit", "seed": "no guarantee"}.get(
        mode, "two Gaussians"
    )
    assert promise in result.output
    if mode == "ridge":
        assert "unlimited" in result.output and "│ 35 " in result.output


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--plot", "p.xyz", "must end in .png or .svg or .pdf"),
        ("--plot", "none/p.png", "there is no folder"),
        ("--output", "weights", "must end in .npz"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_recorded(
    parquet, tmp_path, option, name, message
):
    ledger_path = tmp_path / "b.db"
    result = demur("run", parquet, "--ledger", ledger_path, *NEW, option,
                   tmp_path / name)  # fmt: skip
    assert result.exit_code == 1 and message in " ".join(result.output.split())
    assert not ledger_path.exists()


@pytest.mark.parametrize("ratio", ["10", "0:1", "a:b", "10:-1", "10:1:1"])
def test_bad_ratios(ratio):
    result = demur("simulate", "--ratio", ratio)
    assert result.exit_code == 1 and "--ratio must be like 10:1" in result.output


def test_the_simulated_workload_has_its_ratio():
    made = simulated(1000, 10, 2, dimension=3, warm_up=0)
    assert made.deletes.sum() == 200
    live = set()
    for delete, record in zip(made.deletes, made.row, strict=True):
        if delete:
            live.remove(record)  # only live ones are deleted, none twice
        else:
            live.add(record)
    np.testing.assert_allclose(np.linalg.norm(made.X, axis=1), 1.0)
