"""Loggers of a run: TensorBoard, Weights & Biases or a plain file, public values alone.

A logger keeps and often uploads what it gets. So it gets the number of the step, the
epsilon so far, and what a function computes from the noisy parameters: nothing that is
an exact function of the data, whatever else the run reports.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from demur.core import validate
from demur.training.run.step_reports import Exact, StepReport

Metrics: TypeAlias = Callable[[Any], Mapping[str, Any]]


class Logger(Protocol):
    """What takes numbers by name, at a step; a run of Weights & Biases is one."""

    def log(self, values: dict[str, float], step: int) -> Any:
        """Keep the values of a step."""
        ...


class _Lines:
    """A line of JSON for each step, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def log(self, values: dict[str, float], step: int) -> None:
        told = {n: v if math.isfinite(v) else None for n, v in values.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step} | told) + "\n")


class _Scalars:
    """A SummaryWriter of TensorBoard."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)


def log_to(
    *targets: Any, every: int = 1, metrics: Metrics | None = None
) -> Callable[[StepReport], None]:
    """A callback for `Reporting` that hands public numbers to loggers.

    `targets` are runs of Weights & Biases (anything with `log(values, step=)`),
    TensorBoard's SummaryWriters (with `add_scalar`), or paths of files, which get a
    line of JSON each time. They get "epsilon" so far and "delta", and what
    `metrics(params)` computes from the noisy parameters, every so many steps and at the
    last one. That has to use public examples: an accuracy on private ones is exact.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "log.jsonl")
    >>> callback = log_to(file, metrics=lambda params: {"size": len(params)})
    >>> callback(StepReport(3, 9, 0.5, 1e-6, 7.0, params=lambda: [0.0, 1.0]))
    >>> file.read_text()
    '{"step": 3, "epsilon": 0.5, "delta": 1e-06, "size": 2.0}\\n'
    """
    validate.count(every=every)
    loggers = [_logger(target) for target in targets]
    if not loggers:
        raise TypeError("log_to takes at least one logger, or the path of a file")

    def callback(report: StepReport) -> None:
        if report.step % every and report.step != report.iterations:
            return
        values = {"epsilon": report.epsilon, "delta": report.delta}
        if metrics is not None:
            computed = metrics(report.params())
            values |= {name: _number(name, v) for name, v in computed.items()}
        for logger in loggers:
            logger.log(dict(values), step=report.step)

    return callback


def _logger(target: Any) -> Logger:
    if isinstance(target, str | os.PathLike):
        return _Lines(Path(target))
    if callable(getattr(target, "add_scalar", None)):
        return _Scalars(target)
    if callable(getattr(target, "log", None)):
        logger: Logger = target
        return logger
    raise TypeError(
        "a logger has log(values, step=) or add_scalar(name, value, step), or is the"
        f" path of a file; got a {type(target).__name__}. Nothing was spent."
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, Exact):
        raise TypeError(
            f"{name!r} is exact, not private, and is not logged: compute it from the"
            " noisy parameters and public examples"
        )
    return float(value)
