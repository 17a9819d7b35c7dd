"""Audits of runs over several devices, processes and executors."""

import json
from dataclasses import replace

import numpy as np
import pytest

from demur.audit import NoPower, shared_noise_test
from demur.audit.distributions import normal
from demur.core.entropy import Seeded
from demur.testing.audit_suite import Size, all_cases
from demur.testing.audit_suite.layouts import spark, training
from demur.testing.audit_suite.layouts.children import results_of
from demur.testing.audit_suite.layouts.training import LaidOutRun
from demur.testing.sabotages import CATALOGUE, found_by_audit

FULL = [each for each in CATALOGUE if each.full]
CASES = [
    case
    for case in all_cases(["training", "cluster"], size=Size.STANDARD, twins=False)
    if case.full
]


def some_run():
    rng = np.random.default_rng(0)
    return LaidOutRun(rng.normal(size=(90, 512)), np.tile([0.0, 1.0], 45))


def refuted(monkeypatch, run):
    """Which audits of a layout refute a run, without starting it."""
    monkeypatch.setattr(training, "laid_out_run", lambda *_: run)
    found = {
        what: audit("sharded", "x", Size.STANDARD, 0).refuted
        for what, _, audit in training._AUDITS
    }
    return {what for what, is_refuted in found.items() if is_refuted}


def one_noise_for_all_parts(run):
    leaves = run.noise.reshape(90, 2, 8, 32)
    same = np.broadcast_to(leaves[:, :, :1], leaves.shape).reshape(90, 512)
    return replace(run, noise=same)


def half_of_the_noise_lost(run):
    return replace(run, noise=np.where(np.arange(512) % 256 < 128, run.noise, 0.0))


def a_step_twice(run):
    noise = run.noise.copy()
    noise[70] = noise[3]
    return replace(run, noise=noise)


def a_record_that_is_not_clipped(run):
    return replace(run, moves=run.moves * 1.01)


@pytest.mark.parametrize(
    ("wrong", "by"),
    [
        (lambda run: run, set()),
        (one_noise_for_all_parts, {"noise of parts"}),
        (half_of_the_noise_lost, {"noise"}),
        (a_step_twice, {"noise of steps"}),
        (a_record_that_is_not_clipped, {"one record"}),
    ],
)
def test_each_error_of_a_layout_is_refuted_by_the_audit_for_it(monkeypatch, wrong, by):
    found = refuted(monkeypatch, wrong(some_run()))
    assert by <= found and (by or not found)


def test_a_record_that_never_takes_part_shows_nothing(monkeypatch):
    with pytest.raises(NoPower, match="takes part"):
        refuted(monkeypatch, replace(some_run(), moves=np.zeros(90)))


def spark_reports(seed):
    zeros = np.zeros((spark._ROWS, 2))
    return spark.MECHANISM.privatize(
        zeros, ledger=None, source=Seeded(seed)
    ).value.values


def test_each_error_of_reports_on_spark_is_refuted(monkeypatch):
    first, other = spark_reports(0), spark_reports(1)
    parts = np.repeat(np.arange(8.0), len(first) // 8)
    same = np.tile(first[: len(first) // 8], (8, 1))
    wide = spark.SparkRun(1.1 * first, 1.1 * first, other, parts)
    cases = (
        (spark.SparkRun(first, first, other, parts), set()),
        (
            spark.SparkRun(same, same, other, parts),
            {"partitions, coordinates and runs"},
        ),
        (
            spark.SparkRun(first, first, first, parts),
            {"partitions, coordinates and runs"},
        ),
        (spark.SparkRun(first, other, other, parts), {"reports drawn twice"}),
        (wide, {"reports"}),
    )
    for run, by in cases:
        monkeypatch.setattr(spark, "spark_run", lambda *_, run=run: run)
        audits = {what: audit(Size.STANDARD, 0) for what, _, audit in spark._AUDITS}
        found = {what for what, result in audits.items() if result.refuted}
        assert by <= found and (by or not found)


@pytest.mark.slow
def test_a_short_run_over_eight_devices_is_what_was_charged():
    run = training.laid_out_run("sharded", 12, 0)
    assert run.noise.shape == (12, 512) and run.moves.max() < 1.0 + training._ROUNDING
    assert 0.9 < run.noise.std() < 1.1
    parts = training.by_part(run.noise)
    assert not shared_noise_test(parts, normal(1.0)).refuted


@pytest.mark.slow
def test_what_a_process_that_fails_has_to_say_is_told():
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*No module named"):
        results_of("no_such_run", [[]])


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=str)
def test_promises_hold_over_several_processes(case):
    outcome = case.audit(Size.STANDARD)
    assert outcome.as_expected, outcome.result.statement()
    assert outcome.result.level is case.level
    assert json.loads(json.dumps(outcome.to_json()))["as_expected"]


@pytest.mark.deep
def test_another_seed_is_another_run():
    one, two = (training.laid_out_run("sharded", 3, seed).noise for seed in (0, 1))
    assert not np.isin(one, two).any()


@pytest.mark.deep
@pytest.mark.parametrize("each", FULL, ids=str)
def test_the_full_audit_refutes_every_sabotage_of_a_layout(each):
    if each.engine == "cluster" and spark.lacking() is not None:
        pytest.skip(f"machine: {spark.lacking()}")
    finding = found_by_audit(each.name, Size.STANDARD)
    assert finding.found, finding
    assert finding.by in {str(case) for case in CASES}
