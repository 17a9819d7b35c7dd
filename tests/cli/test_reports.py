"""`demur reports make | cluster | inspect | sweep`."""

import csv
import io
import json
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from rich.console import Console
from sklearn.datasets import make_blobs

from demur.cli import resumable_jobs
from demur.cli.list_options import spread
from demur.cli.local_report_tables import sweep_table
from demur.cli.resumable_jobs import Job
from demur.cluster import PrivateKMeans, UnsupportedClusters
from demur.cluster.files.report_files import read_reports
from demur.cluster.metrics import Quality
from demur.cluster.sweep import METRICS, Sweep, Trial
from demur.core.adjacency import Ball, ReplaceOne
from demur.ledger import Ledger
from demur.mechanisms import BPM
from tests.commands import run

CENTRES = np.array([[20.0, 1.2], [50.0, 1.9], [80.0, 1.4]])
BOX = ["--low", "0", "1", "--high", "100", "2"]
NEW = ["--create", "--budget", "replace-one:9"]


def demur(*arguments: object):
    return run("reports", *arguments)


def words(result) -> str:
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Towns: three heaps of 1000 points in [0, 100] x [1, 2], and a name each."""
    place = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    X = np.repeat(CENTRES, 1000, axis=0) + rng.normal(size=(3000, 2)) * [2.0, 0.02]
    table = pa.table(
        {
            "person": np.arange(3000),
            "age": X[:, 0],
            "size": X[:, 1],
            "name": ["x"] * 3000,
        }
    )
    pyarrow.parquet.write_table(table, place / "in.parquet")
    pyarrow.csv.write_csv(table, place / "in.csv")
    made = demur("make", place / "in.parquet", place / "reports.parquet", *BOX,
                 "--epsilon", 16, "--columns", "age,size",
                 "--id-column", "person")  # fmt: skip
    assert made.exit_code == 0, made.output
    return place


# -- make ----------------------------------------------------------------------------


@pytest.mark.slow
def test_make_says_what_it_promises(folder, tmp_path):
    out = tmp_path / "out.csv"
    made = demur("make", folder / "in.csv", out, "--epsilon", 4, "--L", 0.5,
                 "--columns", "age,size", "--label", "towns", *BOX)  # fmt: skip
    assert made.exit_code == 0, made.output
    text = words(made)
    assert '("towns"), dataset' in text and "Not recorded" in text
    assert "4 * min(r, 0.5) for a move by r, and 2 for any replacement" in text
    assert "--clip" not in text and f"written: {out}" in text
    assert len(read_reports(out).reports) == 3000
    assert pyarrow.csv.read_csv(out).column_names == ["cube_age", "cube_size"]


@pytest.mark.slow
def test_make_charges_a_ledger_once(folder, tmp_path):
    common = ["--epsilon", 4, "--L", 0.5, "--columns", "age,size", *BOX]
    charged = ["--ledger", tmp_path / "ledger.db", "--create", "--budget", "replace:2"]
    first = demur(
        "make", folder / "in.parquet", tmp_path / "a.parquet", *common, *charged
    )
    assert first.exit_code == 0 and "Recorded as entry 1" in words(first)
    assert "a new ledger" in words(first) and "epsilon 2 at delta 0" in words(first)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.epsilon(unit=ReplaceOne()) == pytest.approx(2.0)
        assert len(ledger.entries()) == 1
    again = demur(
        "make", folder / "in.parquet", tmp_path / "b.parquet", *common, *charged
    )
    assert again.exit_code == 3 and "Declined" in words(again)
    assert "a new ledger" not in words(again)
    assert not (tmp_path / "b.parquet").exists()


def test_a_refused_job_makes_no_ledger(folder, tmp_path):
    found = demur("make", folder / "in.parquet", tmp_path / "a.parquet", "--epsilon", 4,
                  "--columns", "age,size", "--low", 0, "--high", 100,
                  "--ledger", tmp_path / "ledger.db", *NEW)  # fmt: skip
    assert found.exit_code == 0
    found = demur("make", folder / "in.parquet", tmp_path / "b.parquet", "--epsilon", 4,
                  "--columns", "age,size", "--low", 0, "--high", 50,
                  "--ledger", tmp_path / "other.db", *NEW)  # fmt: skip
    assert found.exit_code == 1 and "column 'age' has values outside" in words(found)
    assert not (tmp_path / "other.db").exists()


def test_clip_is_said(folder, tmp_path):
    found = demur("make", folder / "in.parquet", tmp_path / "a.parquet", "--epsilon", 4,
                  "--columns", "age", "--low", 0, "--high", 50, "--clip")  # fmt: skip
    assert found.exit_code == 0 and "moved to them (--clip)" in words(found)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--low", "a"], "--low must be numbers; got 'a'"),
        (["--L", "b"], "--L must be numbers; got 'b'"),
        (["--columns", "age,none"], "no column 'none'"),
        (["--columns", "name"], "'name' must hold numbers"),
        (["--epsilon", "-1"], "epsilon must be positive"),
        (["--idempotency-key", "k"], "needs a ledger that lasts"),
    ],
)
def test_refusals_are_one_line(folder, tmp_path, more, text):
    found = demur("make", folder / "in.parquet", tmp_path / "o.parquet", "--epsilon", 4,
                  "--low", 0, "--high", 100, "--columns", "age", *more)  # fmt: skip
    assert found.exit_code == 1 and text in words(found)
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_begin_at_once_the_first_names_the_job(tmp_path):
    """Another name would be another entry, paid for as well."""
    one, two = (Job(tmp_path / "out.csv", wanted=True) for _ in range(2))
    assert one.known(None) is None and two.known(None) is None
    name = one.key(None)
    two._begin()  # it had looked before the file was there
    assert one.known(None) == two.known(None) == two.key(None) == name
    assert [path.name for path in tmp_path.iterdir()] == [".out.csv.job"]
    with two:
        pass
    assert list(tmp_path.iterdir()) == [] and one.key(None) != name


def test_a_job_that_another_run_finishes_meanwhile_is_begun_anew(tmp_path, monkeypatch):
    """Never without a name: what is paid for could not be taken up."""
    one, two = (Job(tmp_path / "out.csv", wanted=True) for _ in range(2))
    one.key(None)
    read = type(one.path).read_text

    def finished_right_before_reading(path, *given):
        path.unlink()
        monkeypatch.setattr(type(one.path), "read_text", read)
        return read(path, *given)

    monkeypatch.setattr(type(one.path), "read_text", finished_right_before_reading)
    name = two.key(None)
    assert name is not None and name.startswith("job ")
    monkeypatch.undo()
    assert two.known(None) == name


def test_the_name_of_a_job_is_durable_before_it_is_paid_for(tmp_path, monkeypatch):
    """Or a power cut after the charge would make it another job, paid for again."""
    one, synced = Job(tmp_path / "out.csv", wanted=True), []
    monkeypatch.setattr(
        resumable_jobs, "sync_folder", lambda at: synced.append((at, one.path.exists()))
    )
    one.key(None)
    assert synced == [(tmp_path, True)]


def test_a_finished_job_leaves_the_name_of_the_next_one(tmp_path):
    one, late, next_one = (Job(tmp_path / "out.csv", wanted=True) for _ in range(3))
    assert one.key(None) == late.key(None)
    with one:
        pass
    name = next_one.key(None)
    with late:
        pass
    assert next_one.known(None) == name


def test_a_job_file_that_leads_nowhere_is_damaged(tmp_path):
    one = Job(tmp_path / "out.csv", wanted=True)
    one.path.symlink_to(tmp_path / "nothing")
    for ask in (one.known, one.key):
        with pytest.raises(ValueError, match="is damaged: remove it"):
            ask(None)


def test_a_key_of_ones_own_needs_no_file(tmp_path):
    own = Job(tmp_path / "out.csv", wanted=False)
    assert own.key("monday") == own.known("monday") == "monday"
    assert own.key(None) is None and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"idempotency_key": 7}'])
def test_a_damaged_job_is_not_begun_anew_in_silence(folder, tmp_path, text):
    (tmp_path / ".a.parquet.job").write_text(text)
    found = demur("make", folder / "in.parquet", tmp_path / "a.parquet", "--epsilon", 4,
                  "--columns", "age", "--low", 0, "--high", 100,
                  "--ledger", tmp_path / "ledger.db", *NEW)  # fmt: skip
    assert found.exit_code == 1 and "is damaged: remove it" in words(found)
    assert [path.name for path in tmp_path.iterdir()] == [".a.parquet.job"]


# -- cluster -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["kmeans", *(pytest.param(a, marks=pytest.mark.deep) for a in ("gmm", "tmm"))],
)
def test_cluster_finds_the_towns_in_their_own_units(folder, tmp_path, algorithm):
    out = tmp_path / "centres.parquet"
    found = demur("cluster", folder / "reports.parquet", "-k", 3, "-o", out,
                  "--algorithm", algorithm, "--seed", 0)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "original units" in words(found) and "Decoder: noise_aware" in words(found)
    table = pyarrow.parquet.read_table(out)
    assert table.column_names[:6] == [
        "cluster", "share", "age", "size", "cube_age", "cube_size"]  # fmt: skip
    ends = [f"{name}_{side}" for name in ("share", "age", "size")
            for side in ("low", "high")]  # fmt: skip
    assert table.column_names[6:] == (ends if algorithm == "kmeans" else [])
    if algorithm == "kmeans":
        assert "95% of the posterior" in words(found) and "±" in words(found)
        for name in ("share", "age", "size"):
            low, middle, high = (
                table[name + end].to_numpy() for end in ("_low", "", "_high")
            )
            assert ((low < middle) & (middle < high)).all()
        # 1,000 reports at epsilon 16: a town's age is known within a year or two.
        assert (table["age_high"].to_numpy() - table["age_low"].to_numpy()).max() < 5
    rows = np.column_stack([table["age"], table["size"]])
    rows = rows[np.argsort(rows[:, 0])]
    assert np.abs((rows - CENTRES) / [100.0, 1.0]).max() < 0.03
    assert np.allclose(table["share"], 1 / 3, atol=0.1)
    np.testing.assert_allclose(table["cube_age"].to_numpy() * 100, table["age"])


def test_cluster_without_bounds_stays_in_the_cube(folder, tmp_path):
    reports = pyarrow.parquet.read_table(
        folder / "reports.parquet", columns=["cube_age", "cube_size"]
    ).rename_columns(["age", "size"])
    bare = tmp_path / "bare.csv"
    pyarrow.csv.write_csv(reports, bare)
    refused = demur("cluster", bare, "-k", 3)
    assert refused.exit_code == 1 and "give --epsilon and --L" in words(refused)
    L = read_reports(folder / "reports.parquet").metadata.mechanism.L
    found = demur("cluster", bare, "-k", 3, "--epsilon", 16, "--L", repr(L),
                  "--decoder", "clip", "-o", tmp_path / "c.csv")  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "unit cube" in words(found) and "Decoder: clip" in words(found)
    names = pyarrow.csv.read_csv(tmp_path / "c.csv").column_names
    assert names == ["cluster", "share", "cube_age", "cube_size"]


@pytest.mark.slow
def test_cluster_refuses_what_is_not_reports(folder, tmp_path):
    assert "give --epsilon" in words(demur("cluster", folder / "in.parquet", "-k", 3))
    assert "no file" in words(demur("cluster", tmp_path / "none.parquet", "-k", 3))
    other = demur("cluster", folder / "reports.parquet", "-k", 3, "--epsilon", 1)
    assert other.exit_code == 1 and "was made with epsilon 16" in words(other)
    many = demur("cluster", folder / "reports.parquet", "-k", 20_000)
    assert many.exit_code == 1 and "error:" in many.output
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 no")
    damaged = demur("cluster", tmp_path / "damaged.parquet", "-k", 3)
    assert damaged.exit_code == 1 and "cannot be read" in words(damaged)


def test_a_picture_of_three_columns_is_refused_before_the_work(tmp_path):
    out, centres = tmp_path / "out.csv", tmp_path / "c.csv"
    (tmp_path / "in.csv").write_text("a,b,c\n0.1,0.2,0.3\n0.4,0.5,0.6\n")
    made = demur("make", tmp_path / "in.csv", out, "--epsilon", 8,
                 "--low", 0, "--high", 1)  # fmt: skip
    assert made.exit_code == 0, made.output
    refused = demur("cluster", out, "-k", 1, "--decoder", "clip", "-o", centres,
                    "--plot", tmp_path / "c.png")  # fmt: skip
    assert refused.exit_code == 1 and "these have 3" in words(refused)
    assert not centres.exists()


def test_centres_do_not_replace_reports_or_columns(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({name: rng.random(300) for name in ("share", "cube_share")})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    made = demur("make", tmp_path / "in.parquet", out, "--epsilon", 8,
                 "--low", 0, "--high", 1)  # fmt: skip
    assert made.exit_code == 0, made.output
    before = out.read_bytes()
    lost = demur("cluster", out, "-k", 2, "--decoder", "clip", "-o", out)
    assert lost.exit_code == 1 and "must not be the reports" in words(lost)
    assert out.read_bytes() == before
    twice = tmp_path / "both.csv"
    lost = demur("cluster", out, "-k", 2, "--decoder", "clip", "-o", twice,
                 "--labels", tmp_path / "." / "both.csv")  # fmt: skip
    assert lost.exit_code == 1 and "must be two files" in words(lost)
    assert not twice.exists()
    found = demur("cluster", out, "-k", 2, "--decoder", "clip",
                  "-o", tmp_path / "c.parquet")  # fmt: skip
    assert found.exit_code == 0, found.output
    centres = pyarrow.parquet.read_table(tmp_path / "c.parquet")
    assert centres.column_names == [
        "cluster", "share_", "share", "cube_share", "cube_share_",
        "cube_cube_share"]  # fmt: skip
    assert sum(centres["share_"].to_pylist()) == pytest.approx(1.0)
    np.testing.assert_allclose(centres["share"], centres["cube_share_"])


# -- inspect -------------------------------------------------------------------------


@pytest.mark.slow
def test_inspect_shows_constants_and_counts(tmp_path):
    plot = tmp_path / "out.png"
    found = demur("inspect", "--epsilon", 2, "--L", 0.3, "--dimension", 2,
                  "--samples", 2000, "--plot", plot, "--seed", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    text = words(found)
    for piece in ("0.132857", "0.693834", "0.0251927", "1.44127", "agrees"):
        assert piece in text
    assert "2 * min(r, 0.3) for a move by r, and 0.6 for any replacement" in text
    assert plot.stat().st_size > 5000
    assert (
        demur("inspect", "--epsilon", 2, "--dimension", 3, "--samples", 0).exit_code
        == 0
    )
    refused = demur("inspect", "--epsilon", 0, "--dimension", 3)
    assert refused.exit_code == 1 and "epsilon must be positive" in words(refused)


# -- sweep ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80])
def test_no_number_of_a_sweep_is_cut(width):
    unit = Ball(0.2, space="cube")
    bpm, fit = BPM(812.5, 0.0124, 2), Quality(*([1.234e-05] * len(METRICS)))
    one = (812.5, "auto", 0, "noise_aware", fit, bpm, unit)
    for models in (["kmeans"], ["kmeans", "gmm"]):
        found = Sweep(fit, tuple(Trial(name, *one) for name in models))
        assert [band.price for band in found.bands()] == [
            bpm.event(unit).epsilon
        ] * len(models)
        shown = Console(width=width, file=io.StringIO())
        shown.print(sweep_table(found, "x", 1))
        text = shown.file.getvalue()
        assert "…" not in text and max(map(len, text.splitlines())) <= width
        assert "a move by at most 0.2" in " ".join(text.split())
        assert width < 80 or "1.23e-05" in text and "812" in text


def test_an_id_column_and_too_many_clusters_are_told_in_words(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "t.csv").write_text("user_id,a\n1,0.5\n2,0.7\n")
    found = demur("sweep", "--dataset", tmp_path / "t.csv", "-k", 1)
    assert found.exit_code == 1 and "--id-column" in words(found), found.output
    assert "--exclude" not in words(found) and words(found).count("--columns") == 1

    def thin(model, reports):
        warnings.warn("the reports do not show 3", UnsupportedClusters, stacklevel=1)
        return fit(model, reports)

    fit = PrivateKMeans.fit_reports
    monkeypatch.setattr(PrivateKMeans, "fit_reports", thin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = demur(
            "cluster", folder / "reports.parquet", "-k", 3, "--decoder", "clip"
        )
    assert told.exit_code == 0, told.output
    assert "Note: the reports do not show 3" in words(told)


@pytest.mark.slow
def test_sweep_of_iris(tmp_path):
    out, plot = tmp_path / "s.csv", tmp_path / "s.png"
    found = demur("sweep", "--dataset", "iris", "--epsilons", 4, 64,
                  "--Ls", 0.5, "auto", "--trials", 1, "--csv", out,
                  "--plot", plot)  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "compares with the raw data" in words(found)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 1 + 2 * 2 and rows[0]["algorithm"] == "not private"
    assert {row["asked_L"] for row in rows[1:]} == {"0.5", "auto"}
    assert all(float(row["L"]) > 0.0 for row in rows[1:])
    best = float(rows[0]["sse"])
    assert all(float(row["sse"]) >= best * 0.999 for row in rows[1:])
    strong = [
        float(r["sse"])
        for r in rows
        if (r["epsilon"], r["asked_L"]) == ("64.0", "auto")
    ]
    assert max(strong) < 1.5 * best
    assert plot.stat().st_size > 10_000


@pytest.mark.slow
def test_sweep_of_a_file(folder, tmp_path):
    X, y = make_blobs(120, 2, centers=2, cluster_std=0.5, random_state=1)
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "same": np.ones(120), "kind": y})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    common = ["--epsilons", "32", "--trials", "1", "--decoder", "clip"]
    found = demur(
        "sweep", "--dataset", tmp_path / "t.parquet", "--label", "kind", *common
    )
    assert found.exit_code == 0, found.output
    assert "1 constant columns were left out" in words(found)
    pyarrow.parquet.write_table(table.drop_columns(["kind"]), tmp_path / "u.parquet")
    bare = demur("sweep", "--dataset", tmp_path / "u.parquet", *common)
    assert bare.exit_code == 1 and "-k must say" in words(bare)
    told = demur("sweep", "--dataset", tmp_path / "u.parquet", "-k", 2, *common)
    assert told.exit_code == 0 and "against non-private k-means" in words(told)
    assert max(len(line) for line in told.output.splitlines()) <= 80


@pytest.mark.slow
def test_sweep_at_a_price_leaves_the_id_column_out(folder, tmp_path):
    common = ["-k", "3", "--trials", "1", "--decoder", "clip", "--json"]
    asked = ["--dataset", folder / "in.parquet", "--prices", 6, "--Ls", 0.5, "auto"]
    # An id among the columns is refused by its name, and left out when it is named.
    for more in (
        ["--columns", "age,size"],
        ["--id-column", "person", "--columns", "age,size"],
    ):
        found = demur("sweep", *asked, *more, *common)
        assert found.exit_code == 0, found.output
        settings = json.loads(found.stdout)["settings"]
        assert [s["price"] for s in settings] == pytest.approx([6.0, 6.0])
        assert settings[0]["threshold"] == 0.5
        # Three heaps of 1000 in the plane, not of the 3000 numbers of persons.
        assert settings[1]["median"]["ari"] >= 0.0
    wrong = demur("sweep", "--dataset", "iris", "--columns", "a", *common)
    assert wrong.exit_code == 1 and "about a file" in words(wrong)
    wrong = demur("sweep", "--dataset", "iris", "--radius", 0.1, *common)
    assert wrong.exit_code == 1 and "--prices" in words(wrong)


@pytest.mark.slow
def test_a_price_at_the_unit_of_the_ledger_and_labels(folder, tmp_path):
    out, ledger = tmp_path / "out.parquet", tmp_path / "l.db"
    common = ["--columns", "age,size", "--id-column", "person", *BOX]
    made = demur("make", folder / "in.parquet", out, "--price", 4, "--ledger", ledger,
                 *NEW, *common)  # fmt: skip
    assert made.exit_code == 0, made.output
    bpm = read_reports(out).metadata.mechanism
    assert 3.999 < bpm.event(ReplaceOne()).epsilon <= 4.0 and bpm.L < 0.5
    for more in (["--epsilon", 4, "--price", 4], [], ["--price", 4, "--L", 1]):
        refused = demur(
            "make", folder / "in.parquet", tmp_path / "x.csv", *common, *more
        )
        assert refused.exit_code == 1 and "Nothing was spent" in words(refused)
    labels, plot = tmp_path / "labels.csv", tmp_path / "centres.png"
    found = demur("cluster", folder / "reports.parquet", "-k", 3, "--decoder", "clip",
                  "--labels", labels, "--plot", plot)  # fmt: skip
    assert found.exit_code == 0, found.output
    table = pyarrow.csv.read_csv(labels)
    assert table.column_names == ["person", "cluster"] and table.num_rows == 3000
    for heap in np.split(np.asarray(table["cluster"]), 3):  # in the order of persons
        assert np.bincount(heap, minlength=3).max() > 800
    assert plot.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--dataset", "none"], "dataset must be one of"),
        (["--dataset", "none.csv"], "there is no file"),
        (["--epsilons", "-1"], "epsilon must be positive"),
        (["--Ls", "x"], "--Ls must be numbers"),
        (["--algorithms", "tree"], "algorithms must be of"),
        (["--trials", "0"], "trials must be at least 1"),
        (["--prices", "4", "--Ls", "0"], "L must be above 0"),
    ],
)
def test_sweep_refusals(more, text):
    found = demur("sweep", *more)
    assert found.exit_code == 1 and text in words(found)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("sweep --csv none/s.csv", "there is no folder none"),
        ("sweep --csv {}", "is a folder"),
        ("sweep --plot none/s.png", "there is no folder none"),
        ("sweep --plot s", "must be a picture"),
        ("inspect --epsilon 2 --dimension 2 --plot s.txt", "must be a picture"),
        ("cluster {}/reports.parquet -k 3 -o none/c.csv", "there is no folder none"),
    ],
)
def test_a_place_that_cannot_take_a_file_is_refused_before_the_work(
    folder, command, text, monkeypatch
):
    def never(*_, **__):
        raise AssertionError("the work was done first")

    monkeypatch.setattr("demur.cluster.sweep.sweep", never)
    monkeypatch.setattr("demur.cluster.inspection.inspect", never)
    monkeypatch.setattr("demur.cluster.files.centre_tables.fit_centres", never)
    found = demur(*command.format(folder).split())
    assert found.exit_code == 1 and text in words(found)


@pytest.mark.parametrize("decoder", ["noise_aware", "plain"])
def test_cluster_names_a_report_that_cannot_be(tmp_path, decoder):
    """One hostile client among many: the row is named, and what it may hold."""
    lines = ["a,b", *["0.25,0.5"] * 300]
    lines[78] = "0.25,1e160"
    (tmp_path / "r.csv").write_text("\n".join(lines))
    found = demur("cluster", tmp_path / "r.csv", "-k", 2, "--epsilon", 4,
                  "--L", "inf", "--decoder", decoder)  # fmt: skip
    assert found.exit_code == 1 and "position 77 " in words(found)
    assert "[-162.747, 163.747]" in words(found)


# -- values --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--Ls", "0.3", "0.5", "auto", "--trials", "2"],
         ["--Ls", "0.3", "--Ls", "0.5", "--Ls", "auto", "--trials", "2"]),
        (["--Ls=0.3", "inf", "in.csv"], ["--Ls=0.3", "--Ls", "inf", "in.csv"]),
        (["--low", "-1", "-2e3", "a", "3"], ["--low", "-1", "--low", "-2e3", "a", "3"]),
        (["in.csv", "--low", "0,1", "2"], ["in.csv", "--low", "0,1", "--low", "2"]),
        (["--low", "--high", "1"], ["--low", "--high", "1"]),
        (["--low"], ["--low"]),
    ],
)  # fmt: skip
def test_values_that_follow_an_option_belong_to_it(given, meant):
    assert spread(given, {"--Ls", "--low", "--high"}) == meant


def test_metadata_are_readable_json(folder):
    schema = pyarrow.parquet.read_schema(folder / "reports.parquet")
    kept = json.loads(schema.metadata[b"demur.reports"])
    assert kept["epsilon"] == 16.0 and kept["low"] == [0.0, 1.0]
