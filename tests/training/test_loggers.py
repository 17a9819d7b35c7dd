"""Loggers get public numbers, whatever a run reports."""

import json

import jax.numpy as jnp
import pytest

from demur.training import Exact, log_to
from demur.training.run.step_reports import StepReport
from tests.training import kit


class Board:
    """A SummaryWriter."""

    def __init__(self):
        self.told = []

    def add_scalar(self, name, value, step):
        self.told.append((name, value, step))


class Run:
    """A run of Weights & Biases."""

    def __init__(self):
        self.told = []

    def log(self, values, step=None):
        self.told.append((step, values))


PUBLIC = {"epsilon", "delta", "norm"}


def norm(params):
    return {"norm": jnp.abs(params["w"]).sum()}


@pytest.mark.slow
def test_every_logger_gets_public_numbers_alone(tmp_path):
    board, run, path = Board(), Run(), tmp_path / "log.jsonl"
    callback = log_to(board, run, path, every=5, metrics=norm)
    kit.train(kit.make_plan(), callback=callback, exact_metrics=True)
    assert [step for step, _ in run.told] == [5, 10, 12]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.pop("step") for line in lines] == [5, 10, 12]
    for values in (*lines, *(told for _, told in run.told)):
        assert set(values) == PUBLIC
    assert {name for name, _, _ in board.told} == PUBLIC
    assert run.told[0][1]["epsilon"] < run.told[-1][1]["epsilon"]


def report(**changes):
    values = {"step": 1, "iterations": 2, "epsilon": 0.1, "delta": 1e-6}
    return StepReport(**values, steps_per_second=3.0, params=dict, **changes)


def test_an_exact_value_is_not_logged():
    """The twin: a metric that opens nothing, and hands the seal on."""
    run = Run()
    callback = log_to(run, metrics=lambda params: {"loss": Exact(0.5)})
    with pytest.raises(TypeError, match="'loss' is exact"):
        callback(report())
    assert run.told == []
    log_to(run)(report(exact=Exact({"loss": 0.5})))
    assert run.told == [(1, {"epsilon": 0.1, "delta": 1e-6})]


def test_a_metric_that_is_no_number_ends_no_run(tmp_path):
    path = tmp_path / "log"
    log_to(path, metrics=lambda params: {"loss": float("nan")})(report())
    assert json.loads(path.read_text())["loss"] is None


@pytest.mark.parametrize("targets", [(), (3,)])
def test_what_is_no_logger_is_refused(targets):
    with pytest.raises(TypeError, match="logger"):
        log_to(*targets)
