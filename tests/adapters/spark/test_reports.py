"""Reports on Spark: those of one machine, paid once, and a key that leaves no trace."""

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from demur.adapters import BadRows, NothingDrawn
from demur.adapters.spark import (
    SparkReports,
    SparkRows,
    checked_rows,
    reports_digest,
    shares,
    write_reports,
    writing,
)
from demur.adapters.spark import local_reports as adapter
from demur.adapters.spark import privatize as spark_privatize
from demur.adapters.spark.drawing import ReportTask, probe
from demur.cluster.errors import InputChanged
from demur.core import recording
from demur.core.adjacency import Ball, ReplaceOne
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import BudgetExceeded, IdempotencyConflict, NoiseReuse
from demur.ledger import Budget, Ledger
from demur.mechanisms.bpm import BPM
from demur.mechanisms.gaussian_reports import GaussianReports
from demur.mechanisms.laplace_reports import LaplaceReports
from tests.adapters.spark.kit import (
    NAMES,
    by_id,
    closure_of,
    holding,
    plain_reports,
    plan_texts,
    same,
    same_rows,
    some_points,
    spellings,
    table_of,
    written_table,
)

pytestmark = pytest.mark.slow

privatize = partial(spark_privatize, lazy=True)
EVERY = [BPM(8.0, "auto", 2), LaplaceReports(8.0, 2), GaussianReports(8.0, 2)]
POINTS, IDS = some_points()
SHARE = "spark.demur.secret.share."


@pytest.fixture(scope="module")
def df(spark):
    return spark.createDataFrame(table_of(POINTS, IDS)).repartition(2).cache()


@pytest.fixture
def open_ledger(tmp_path):
    """A ledger that lasts, with the noise of the operating system."""

    def opened(epsilon=100.0):
        return Ledger.open(
            tmp_path / "ledger.db",
            dataset="people",
            budgets={ReplaceOne(): Budget(epsilon)},
            filter="pure",
            keys=tmp_path / "keys",
        )

    return opened


def shared(spark):
    return [name for name, _ in spark.conf.getAll.items() if name.startswith(SHARE)]


# -- the same reports ------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda m: type(m).__name__)
def test_reports_are_those_of_one_machine(df, mechanism):
    expected = plain_reports(mechanism, POINTS, IDS, Seeded(3))
    with privatize(df, mechanism, NAMES, "id", source=Seeded(3)) as reports:
        assert same(by_id(reports.dataframe), expected)
        assert reports.mechanism == mechanism and len(reports) == len(IDS)
    assert "NOT PRIVATE" in reports.entry.statement()


def test_neither_partitions_nor_repetition_change_a_report(df):
    expected = plain_reports(EVERY[0], POINTS, IDS, Seeded(5))
    other = plain_reports(EVERY[0], POINTS, IDS, Seeded(6))
    assert not same_rows(expected, other).any()  # another key: no report alike
    narrow = df.coalesce(1)
    reports = privatize(narrow, EVERY[0], NAMES, "id", source=Seeded(5))
    one = reports.dataframe
    assert one.rdd.getNumPartitions() == 1
    assert same(by_id(one), expected)
    reports.close()
    with privatize(df, EVERY[0], NAMES, "id", source=Seeded(5)) as reports:
        many = reports.dataframe
        assert many.rdd.getNumPartitions() == 2
        assert same(by_id(many), expected) and same(by_id(many), expected)
        joined = many.join(many.withColumnRenamed("x", "other"), "id")
        assert joined.where("x = other").count() == len(IDS)
        middle = int(np.median(IDS))
        few = many.repartition(3).where(F.col("id") < middle)
        assert same(by_id(few), [part[: (IDS < middle).sum()] for part in expected])


def test_any_thread_may_act(df):
    seen = {}

    def act(name, read):
        try:
            seen[name] = read()
        except Exception as error:
            seen[name] = str(error)

    reports = privatize(df, EVERY[0], NAMES, "id", source=Seeded(5))
    reads = {
        "sql": lambda: by_id(reports.dataframe),
        "rdd": lambda: reports.dataframe.rdd.count(),
    }
    for name, read in reads.items():
        thread = threading.Thread(target=act, args=(name, read))
        thread.start()
        thread.join()
    assert reports.dataframe.rdd.count() == len(IDS)
    reports.close()
    assert same(seen["sql"], plain_reports(EVERY[0], POINTS, IDS, Seeded(5)))
    # Outside Spark SQL a thread has its own properties: no key, and no other noise.
    assert "the key of these reports is not here" in seen["rdd"]


def test_types_and_names_come_through(spark):
    names = ["a.b", "count", "`z`"]
    points, ids = some_points(50, d=3)
    points = points.astype(np.float32)
    table = table_of(points, np.arange(50), names).append_column(
        "note", [["private"] * 50]
    )
    df = spark.createDataFrame(table)
    df = df.withColumn("id", F.col("id").cast("int"))
    mechanism = BPM(8.0, 1.0, 3)
    named = iter(names)  # read once: what is checked is what is drawn
    with privatize(df, mechanism, named, "id", source=Seeded(1)) as reports:
        found = reports.dataframe
        assert found.dtypes == [("id", "int"), *((name, "double") for name in names)]
        expected = plain_reports(mechanism, points, np.arange(50), Seeded(1))
        assert same(by_id(found, names), expected)


# -- drawn, or not committed -----------------------------------------------------------


def test_a_lazy_dataframe_is_asked_for_before_anything_is_spent(df, open_ledger):
    with open_ledger() as ledger:
        with pytest.raises(TypeError, match="write_reports.*Nothing was spent"):
            spark_privatize(df, EVERY[0], NAMES, "id", ledger=ledger)
        assert not ledger.entries()


def test_spark_connect_is_refused_in_words(open_ledger, tmp_path):
    """Its DataFrames have no context here, so no share of a key could be destroyed."""

    class Remote(DataFrame):
        def __getattr__(self, name):  # as that of Spark Connect
            raise PySparkAttributeError("JVM_ATTRIBUTE_NOT_SUPPORTED")

    remote = object.__new__(Remote)
    with open_ledger() as ledger:
        for act in (
            lambda: privatize(remote, EVERY[0], NAMES, "id", ledger=ledger),
            lambda: write_reports(
                remote, EVERY[0], NAMES, "id", str(tmp_path / "out"), ledger=ledger
            ),
            lambda: SparkRows(remote, label="y").row_source(),
        ):
            with pytest.raises(TypeError, match="Spark Connect.*Nothing was spent"):
                act()
        assert not ledger.entries() and not (tmp_path / "out").exists()


def test_reports_that_nobody_drew_are_not_committed(df, open_ledger, monkeypatch):
    """The attack on oneself: the DataFrame leaves the `with`, and is used after it."""

    def forgetful(key):
        with privatize(
            df, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key=key
        ) as reports:
            return reports, reports.dataframe

    with open_ledger() as ledger:
        with pytest.raises(NothingDrawn, match="same idempotency key"):
            forgetful("monday")
        assert len(ledger.unfinished()) == 1  # charged, not committed: nothing is lost
        with privatize(
            df, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key="monday"
        ) as reports:
            assert reports.cached().count() == len(IDS)
        assert len(ledger.entries()) == 1 and not ledger.unfinished()
        # Without a key the handle stays open, and the call that it names works.
        with (
            pytest.raises(NothingDrawn, match="still open"),
            privatize(df, EVERY[0], NAMES, "id", ledger=ledger) as reports,
        ):
            pass
        assert reports.dataframe.count() == len(IDS)
        reports.commit()
        assert not ledger.unfinished()
        # The twin that does not count commits, and the reports can never be drawn.
        monkeypatch.setattr(
            "pyspark.accumulators.Accumulator.value", property(lambda _: len(IDS))
        )
        reports, late = forgetful("tuesday")
        assert "committed" in repr(reports) and not ledger.unfinished()
        with pytest.raises(Exception, match="after it was destroyed"):
            late.count()


def test_reports_that_were_looked_at_are_not_drawn(df, open_ledger):
    """The attack on oneself: a few rows are drawn, and then the key would go."""

    parts = df.repartition(12, "id")  # of which a glance runs five at most

    def glanced(key, rows, commits=False):
        with privatize(
            parts, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key=key
        ) as reports:
            assert len(reports.dataframe.take(rows)) == rows
            if commits:
                reports.commit()
        return reports

    with open_ledger() as ledger:
        for rows in (2, 60):
            with pytest.raises(
                NothingDrawn, match=f"these {len(IDS)} reports were not"
            ):
                glanced("monday", rows)
        assert len(ledger.unfinished()) == 1
        with privatize(
            df, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key="monday"
        ) as reports:
            assert reports.cached().count() == len(IDS)
        assert len(ledger.entries()) == 1 and not ledger.unfinished()
        # Who wants no more than those says so; the twin that does not ask does it too.
        done = glanced("tuesday", 60, commits=True)
        assert "committed" in repr(done)
        assert not ledger.unfinished()


def test_cached_reports_are_drawn_at_once(df):
    expected = plain_reports(EVERY[0], POINTS, IDS, Seeded(5))
    with privatize(df, EVERY[0], NAMES, "id", source=Seeded(5)) as reports:
        kept = reports.cached()
        assert kept.is_cached and same(by_id(kept), expected)
    assert "committed" in repr(reports)
    with pytest.raises(Exception, match="after it was destroyed"):
        kept.collect()
    kept.unpersist()


def test_one_line_writes_reports_and_commits_to_them(
    spark, df, open_ledger, tmp_path, monkeypatch
):
    bound, commit = [], Ledger._commit

    def noted(ledger, entry, artefact):
        bound.append(artefact)
        commit(ledger, entry, artefact)

    monkeypatch.setattr(Ledger, "_commit", noted)
    path = tmp_path / "out"
    with open_ledger() as ledger:

        def write(place=path, **options):
            return write_reports(
                df, EVERY[0], NAMES, "id", str(place), ledger=ledger, **options
            )

        entry = write()
        assert len(ledger.entries()) == 1 and not ledger.unfinished()
        written = spark.read.parquet(str(path))
        assert written.dtypes == [("id", "bigint"), ("x", "double"), ("y", "double")]
        ids, values = by_id(written)
        assert same((ids, ids), (np.sort(IDS), np.sort(IDS))) and len(values) == 400
        assert bound == [reports_digest(written, NAMES, "id")]
        names = {file.name for file in path.iterdir()}
        assert "_SUCCESS" in names and not [n for n in names if "attempts" in n]
        assert not shared(spark) and entry.label == "local reports on Spark"
        with pytest.raises(ValueError, match="new or an empty folder"):
            write()
        assert len(ledger.entries()) == 1  # refused before the charge
        # The same numbers as through Spark's own writer, under one key.
        with (
            pytest.raises(ZeroDivisionError),
            privatize(
                df, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key="k"
            ) as reports,
        ):
            reports.dataframe.write.parquet(str(tmp_path / "by spark"))
            raise ZeroDivisionError
        write(tmp_path / "by tasks", idempotency_key="k")
        both = [spark.read.parquet(str(tmp_path / n)) for n in ("by spark", "by tasks")]
        assert same(*map(by_id, both))


def test_files_of_other_attempts_are_not_taken(spark, df, tmp_path, monkeypatch):
    """A copy of a task writes a file too; the twin takes all files for reports."""
    call = writing.WriteTask.__call__

    class Twice(writing.WriteTask):
        def __call__(self, batches):
            batches = list(batches)
            list(call(self, batches))  # an attempt whose result is lost
            yield from call(self, batches)

    seen = []

    def move(checked, width):
        folder = next((tmp_path / "out").glob("_attempts-*"))
        seen.append(len(list(folder.iterdir())))
        return checked_rows.checked_reports(checked, width)

    monkeypatch.setattr(writing, "WriteTask", Twice)
    monkeypatch.setattr(writing, "checked_reports", move)
    write_reports(df, EVERY[0], NAMES, "id", str(tmp_path / "out"), source=Seeded(1))
    parts = list((tmp_path / "out").glob("part-*.parquet"))
    assert seen == [2 * len(parts)]
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(IDS)


def test_a_folder_that_executors_do_not_share_is_told(df, tmp_path, monkeypatch):
    class Elsewhere(writing.WriteTask):
        def __call__(self, batches):
            for part in super().__call__(batches):
                Path(self.folder, part.column("file")[0].as_py()).unlink()
                yield part

    monkeypatch.setattr(writing, "WriteTask", Elsewhere)
    with pytest.raises(ValueError, match="all executors share"):
        write_reports(df, EVERY[0], NAMES, "id", str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_one_column_of_arrays_is_as_good_as_many(spark, df):
    arrays = df.select("id", F.array("x", "y").alias("at"))
    with privatize(arrays, EVERY[0], "at", "id", source=Seeded(5)) as reports:
        found = by_id(reports.dataframe, ["at_0", "at_1"])
    assert same(found, plain_reports(EVERY[0], POINTS, IDS, Seeded(5)))
    odd, plain = F.col("id") == int(IDS.min()), F.array("x", "y")
    for array in (F.array("x"), F.array("x", "y", "x")):
        wrong = df.select("id", F.when(odd, array).otherwise(plain).alias("at"))
        with pytest.raises(BadRows, match="1 rows have no value .*another length"):
            privatize(wrong, EVERY[0], "at", "id")
    with pytest.raises(TypeError, match="one column of arrays"):
        privatize(df, EVERY[0], "x", "id")
    with pytest.raises(ValueError, match="'at_1' already"):
        privatize(arrays.withColumn("at_1", F.lit(1.0)), EVERY[0], "at", "id")


# -- paid once -------------------------------------------------------------------------


def test_a_run_that_failed_is_repeated_and_pays_once(spark, df, open_ledger, tmp_path):
    def run(idempotency_key="monday", table=df):
        return privatize(
            table, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key=idempotency_key
        )

    with open_ledger() as ledger:
        with pytest.raises(ZeroDivisionError), run() as reports:
            first = by_id(reports.dataframe)
            raise ZeroDivisionError
        with pytest.raises(NoiseReuse, match="are closed"):
            _ = reports.dataframe
        spent = ledger.epsilon()
        with run() as reports:
            reports.close()  # no commit: it is taken up below
    assert (
        "closed" in repr(reports)
        and not shared(spark)
        and list((tmp_path / "keys").glob("*.key"))
    )
    with open_ledger() as ledger:
        moved = table_of(np.clip(POINTS + 1e-9, 0, 1), IDS)
        with pytest.raises(IdempotencyConflict):
            run(table=spark.createDataFrame(moved))
        with run(table=df.orderBy("y")) as reports:
            reports.dataframe.write.parquet(str(tmp_path / "out"))
        assert same(by_id(spark.read.parquet(str(tmp_path / "out"))), first)
        assert ledger.epsilon() == spent and len(ledger.entries()) == 1
        assert "NOT PRIVATE" not in reports.entry.statement()
        with pytest.raises(NoiseReuse, match="is committed"):
            run()
        names = {path.name for path in (tmp_path / "keys").glob("*.key")}
        assert names == {"input-digests.key"}  # no noise key is left
        reports = run("tuesday")
        assert not same_rows(by_id(reports.dataframe), first).any()
        reports.close()
        assert len(ledger.entries()) == 2 and ledger.verify()


def test_a_declined_charge_draws_nothing(spark, df, monkeypatch):
    def draw(*_):
        raise AssertionError("a key was shared for nothing")

    monkeypatch.setattr(shares.KeyShares, "__init__", draw)
    ledger = Ledger(Budget(1.0), unit=Ball(0.2, space="cube"), filter="pure")
    with pytest.raises(BudgetExceeded, match="nothing was spent"):
        privatize(df, EVERY[0], NAMES, "id", ledger=ledger)
    assert ledger.epsilon() == 0.0 and not ledger.entries() and not shared(spark)


def test_after_commit_there_is_no_noise(spark, df, monkeypatch):
    reports = privatize(df, EVERY[0], NAMES, "id")
    kept = reports.dataframe
    assert kept.count() == len(IDS) and shared(spark)
    looked = []

    def look(rows):
        # Rows that change after the last look would get the noise unseen.
        with pytest.raises(NoiseReuse, match="are being committed"):
            _ = reports.dataframe
        looked.append(shared(spark))
        return checked_rows.check_dataframe_points(rows)

    monkeypatch.setattr(adapter, "check_dataframe_points", look)
    reports.commit()
    assert looked == [[]]
    reports.commit()  # the exit of a `with` may follow
    assert not shared(spark)
    with pytest.raises(NoiseReuse, match="are committed and their key is gone"):
        _ = reports.dataframe
    with pytest.raises(Exception, match="after it was destroyed"):
        kept.collect()
    assert "secret" not in repr(reports) and "committed" in repr(reports)


def test_the_commit_can_name_the_reports_as_written(
    spark, df, open_ledger, tmp_path, monkeypatch
):
    bound, commit = [], Ledger._commit

    def noted(ledger, entry, artefact):
        bound.append(artefact)
        commit(ledger, entry, artefact)

    monkeypatch.setattr(Ledger, "_commit", noted)
    path = str(tmp_path / "out")
    with open_ledger() as ledger:
        reports = privatize(df, EVERY[0], NAMES, "id", ledger=ledger)
        reports.dataframe.write.parquet(path)
        written = spark.read.parquet(path)
        low, high = int(IDS.min()), int(IDS.max())
        twice = F.when(F.col("id") == high, low).otherwise(F.col("id"))
        hole = F.when(F.col("id") != low, F.col("x"))
        for wrong, match in (
            (written.where(F.col("id") != low), "one report for each of 400 .* 399"),
            (written.withColumn("id", twice), "one report for each of 400 ids"),
            (written.withColumn("x", hole), "1 rows have no value"),
        ):
            with pytest.raises(ValueError, match=f"{match}.*othing was committed"):
                reports.commit(wrong)
        reports.commit(written)
    turned = written.orderBy("y")
    assert bound == [reports_digest(turned, NAMES, "id")]
    moved = written.withColumn("x", F.col("x") + 1e-3)
    assert reports_digest(moved, NAMES, "id") != bound[0]


# -- refused ---------------------------------------------------------------------------


def spoiled(**cells):
    points, ids = POINTS[:40].copy(), IDS[:40].copy()
    for name, value in cells.items():
        (ids if name == "id" else points[:, NAMES.index(name)])[[7, 30]] = value
    return table_of(points, ids)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"x": np.nan}, "2 rows hold NaN or infinity"),
        ({"y": -7.654321}, "2 rows lie outside the unit cube"),
        ({"id": [-77654321, 5]}, "1 rows have a negative id"),
        ({"id": 77654321}, "1 of them occur more than once"),
    ],
    ids=["nan", "outside", "negative", "twice"],
)
def test_bad_rows_cost_nothing_and_are_not_shown(spark, cells, message):
    df = spark.createDataFrame(spoiled(**cells)).repartition(2, "id")
    ledger = Ledger(Budget(100.0), unit=ReplaceOne(), filter="pure")
    with pytest.raises(ValueError, match=message) as refused:
        privatize(df, EVERY[0], NAMES, "id", ledger=ledger)
    assert "Nothing was spent" in str(refused.value)
    assert "7654321" not in str(refused.value) and not ledger.entries()


def test_ids_that_meet_in_two_partitions_are_found(spark):
    half = len(IDS) // 2
    left = spark.createDataFrame(table_of(POINTS[:half], IDS[:half])).coalesce(1)
    again = np.r_[IDS[half:-1], IDS[3]]
    right = spark.createDataFrame(table_of(POINTS[half:], again)).coalesce(1)
    with pytest.raises(ValueError, match="1 of them occur more than once"):
        privatize(left.union(right), EVERY[0], NAMES, "id")


def test_missing_values_cost_nothing(spark):
    df = spark.createDataFrame([(1, 0.5, None), (None, 0.5, 0.5), (3, 0.1, 0.2)]).toDF(
        "id", *NAMES
    )
    with pytest.raises(ValueError, match="2 rows have no value"):
        privatize(df, EVERY[0], NAMES, "id")


def test_arguments_are_looked_at_before_any_job(spark, df):
    bpm = EVERY[0]

    def refused(
        error, match, *, table=df, mechanism=bpm, columns=NAMES, name="id", **k
    ):
        with pytest.raises(error, match=match) as caught:
            privatize(table, mechanism, columns, name, **k)
        assert "Nothing was spent" in str(caught.value)

    refused(TypeError, "must be a Spark DataFrame", table=[1])
    refused(TypeError, "mechanism of local reports", mechanism="bpm")
    refused(TypeError, "list of names", columns="xy")
    refused(ValueError, "2 different columns", columns=["x"])
    refused(ValueError, "2 different columns", columns=["x", "x"])
    refused(ValueError, "2 different columns", columns=["x", "id"])
    refused(ValueError, "one column 'z'", columns=["x", "z"])
    refused(ValueError, "must be one of tinyint", columns=["id", "y"], name="x")
    refused(ValueError, "an idempotency key needs a ledger", idempotency_key="k")
    refused(TypeError, "must be a Ledger or None", ledger="ledger.db")
    refused(ValueError, "got string", table=df.withColumn("x", F.lit("a")))
    refused(ValueError, "got boolean", table=df.withColumn("x", F.lit(True)))
    refused(ValueError, "decimal", table=df.withColumn("x", F.lit(1).cast("decimal")))
    twin = df.select("id", "x", "y", F.col("y").alias("x"))
    refused(ValueError, "it has 2", table=twin)
    chance = df.withColumn("x", F.rand())
    refused(ValueError, "non-deterministic", table=chance)
    refused(ValueError, "non-deterministic", table=chance.cache())
    numbered = df.withColumn("id", F.monotonically_increasing_id())
    refused(ValueError, "non-deterministic", table=numbered)
    with pytest.raises(ValueError, match="no rows"):
        privatize(df.where("x > 2"), bpm, NAMES, "id")
    with recording.watching(recording.Tape()):
        refused(NoiseReuse, "cannot watch executors", source=Seeded(1))


def rebuilt(kind, values, _):
    return kind(**values)


class Heavy(BPM):
    """More than Spark carries in a closure: it writes such a one to a file."""

    def __reduce__(self):
        return rebuilt, (*super().__reduce__()[1], bytes(2**21))


class Locked(BPM):
    """One that cannot be pickled."""

    def __reduce__(self):
        return rebuilt, (*super().__reduce__()[1], threading.Lock())


def test_a_mechanism_that_cannot_travel_costs_nothing(spark, df):
    ledger = Ledger(Budget(100.0), unit=ReplaceOne(), filter="pure")
    for kind, error, match in (
        (Heavy, ValueError, "UDFCompressionThreshold"),
        (Locked, TypeError, "can be pickled"),
    ):
        with pytest.raises(error, match=f"{match}.*Nothing was spent"):
            privatize(df, kind(8.0, "auto", 2), NAMES, "id", ledger=ledger)
    assert not ledger.entries() and not shared(spark)


def test_a_heavy_closure_would_lie_beside_another_share(
    df, spark, spark_files, monkeypatch
):
    monkeypatch.setattr(adapter, "check_closure", lambda *_: None)
    reports = privatize(df, Heavy(8.0, "auto", 2), NAMES, "id")
    found = holding(spark_files, reports._shares.task_key.share)
    reports.close()
    assert found and all("local" in path.parts for path in found)
    with pytest.raises(Exception, match="pickle"):
        privatize(df, Locked(8.0, "auto", 2), NAMES, "id")
    assert not shared(spark)  # what fails after the charge keeps no key either


def test_input_that_changes_is_refused_at_commit(spark, open_ledger, tmp_path):
    folder = tmp_path / "in"
    df = spark.read.parquet(written_table(folder, POINTS, IDS))
    moved = POINTS.copy()
    moved[3, 1] = np.nextafter(moved[3, 1], 0.0)
    with open_ledger() as ledger:

        def run():
            return privatize(
                df, EVERY[0], NAMES, "id", ledger=ledger, idempotency_key="k"
            )

        reports = run()
        first = by_id(reports.dataframe)
        written_table(folder, moved, IDS)
        with pytest.raises(InputChanged, match="Destroy what was"), reports:
            reports.dataframe.collect()
        with pytest.raises(NoiseReuse):
            _ = reports.dataframe
        with pytest.raises(IdempotencyConflict):
            run()
        written_table(folder, POINTS, IDS)  # the first files come back
        with pytest.raises(InputChanged):
            reports.commit()  # but not for what was drawn meanwhile
        with run() as reports:
            assert same(by_id(reports.dataframe), first)
        assert len(ledger.entries()) == 1


def test_the_draw_refuses_rows_that_no_survey_passed(spark, tmp_path):
    folder = tmp_path / "in"
    df = spark.read.parquet(written_table(folder, POINTS, IDS))
    reports = privatize(df, EVERY[0], NAMES, "id")
    outside = POINTS.copy()
    outside[5] = 7.654321
    written_table(folder, outside, IDS)
    with pytest.raises(Exception, match="1 rows lie outside") as caught:
        reports.dataframe.collect()
    text = str(caught.value)
    assert "7.654" not in text and str(IDS[5]) not in text
    with pytest.raises(InputChanged):
        reports.commit()


# -- the key ---------------------------------------------------------------------------


def keys_of(seed):
    """The entry's key of a seeded source, and the key of its rows."""
    key = Seeded(seed).new_key()
    return key, EVERY[0].row_key(NoiseKey(key, private=False))


def test_a_task_draws_only_with_the_mechanism_that_was_paid_for(df):
    """A sharper mechanism in the closure would give the raw points at the old price."""
    sharp = BPM(1e6, "auto", 2)
    with privatize(df, EVERY[0], NAMES, "id", source=Seeded(5)) as reports:
        task = ReportTask(
            EVERY[0],
            ("id", *NAMES),
            reports._shares.task_key,
            probe(EVERY[0]),
            reports.entry.declaration.fingerprint,
        )
        other = replace(task, mechanism=sharp, expected=probe(sharp))

        def drawn(function):
            rows = df.select("id", *NAMES)
            return by_id(rows.mapInArrow(function, reports.dataframe.schema))

        assert same(drawn(task), by_id(reports.dataframe))
        with pytest.raises(Exception, match="another mechanism or other parameters"):
            drawn(other)
        # The twin: a task that believes what it is given.
        _, values = drawn(replace(other, paid_for=sharp.fingerprint))
        assert np.median(np.abs(values - POINTS[np.argsort(IDS)])) < 1e-4


def traces(reports, secrets, folder):
    """Where a secret is found while its job runs: files, plans, settings, closure."""
    df = reports.dataframe
    df.write.format("noop").mode("overwrite").save()
    df.repartition(2).collect()
    texts = [text.encode() for text in plan_texts(df)]
    texts.append(str(df.sparkSession.sql("SET -v").collect()).encode())
    wanted = [spelling for secret in secrets for spelling in spellings(secret)]
    found = {str(path.relative_to(folder)) for path in holding(folder, *secrets)}
    if any(spelling in text for text in texts for spelling in wanted):
        found.add("plan")
    if any(spelling in closure_of(df) for spelling in wanted):
        found.add("closure")
    return found


def test_no_file_plan_or_log_holds_the_key(spark, df, spark_files):
    secrets = keys_of(21)
    with privatize(df, EVERY[0], NAMES, "id", source=Seeded(21)) as reports:
        assert same(
            by_id(reports.dataframe), plain_reports(EVERY[0], POINTS, IDS, Seeded(21))
        )
        assert not traces(reports, secrets, spark_files)
        key = reports._shares.task_key
        closure, broadcast = key.share, key.broadcast.value
        logged = bytes.fromhex(spark.conf.get(key.property))
        assert shares._xor(closure, shares._xor(broadcast, logged)) == secrets[1]
        # One share in each place, and no place with two.
        assert traces(reports, [closure], spark_files) == {"closure"}
        files = holding(spark_files, broadcast)
        assert files and all("local" in path.parts for path in files)
        log = holding(spark_files, logged)
        assert log and all("events" in path.parts for path in log)
    assert not holding(spark_files, broadcast, closure, *secrets)


@pytest.mark.parametrize("place", ["closure", "broadcast", "property"])
def test_a_key_that_travels_whole_would_be_found(df, spark_files, monkeypatch, place):
    secrets = keys_of(22)
    nothing = bytes(32)
    random = {
        "closure": [secrets[1], nothing],
        "broadcast": [nothing, secrets[1]],
        "property": [nothing, nothing],
    }[place]
    broken = SimpleNamespace(token_bytes=lambda n: random.pop(0), token_hex=str)
    monkeypatch.setattr(shares, "secrets", broken)
    with privatize(df, EVERY[0], NAMES, "id", source=Seeded(22)) as reports:
        found = traces(reports, secrets, spark_files)
    where = {"closure": "closure", "broadcast": "local/", "property": "events/"}[place]
    assert found and all(name.startswith(where) for name in found)


def test_shares_say_nothing_by_themselves(spark):
    key = bytes(range(32))
    splits = [shares.KeyShares(spark, key) for _ in range(2)]
    for place in (
        lambda b: b.share,
        lambda b: b.broadcast.value,
        lambda b: bytes.fromhex(spark.conf.get(b.property)),
    ):
        one, other = (place(split.task_key) for split in splits)
        assert one != other and key not in (one, other)
    for split in splits:
        split.destroy()
        split.destroy()  # the exit of a `with` may follow a commit
    assert "secret" in repr(splits[0]) and not shared(spark)


def test_the_handle_is_what_is_exported():
    assert SparkReports.__module__ == "demur.adapters.spark.local_reports"
