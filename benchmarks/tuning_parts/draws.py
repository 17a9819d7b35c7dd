"""Draws of an experiment, kept as they come, and the table that is made of them.

A draw is one division of the training rows into public, trained on and held back, and
one draw of all noise. Every method is run on the same division, so that differences
between methods are paired by draw.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

OUT = Path("out") / "tuning.jsonl"

Array = np.ndarray


def line(**facts: Any) -> None:
    """Written to the file of results, and shown."""
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("a") as file:
        file.write(json.dumps(facts) + "\n")
    print(json.dumps(facts), flush=True)


def known(**which: Any) -> list[dict[str, Any]]:
    """The lines of earlier runs that agree with `which`."""
    if not OUT.exists():
        return []
    facts = [json.loads(each) for each in OUT.read_text().splitlines()]
    return [f for f in facts if all(f.get(k) == v for k, v in which.items())]


def measured(
    part: str,
    draws: int,
    epsilons: list[float],
    one: Callable[[int, float], dict[str, Any]],
) -> None:
    """`one(draw, epsilon)` for each draw that no earlier run has, then the table.

    It has the accuracy of every fixed setting ("fixed"), the number of the setting that
    public rows chose ("chosen"), and the accuracies "paid" and "composed".
    """
    for draw in range(draws):
        for epsilon in epsilons:
            if not known(part=part, draw=draw, epsilon=epsilon):
                line(part=part, draw=draw, epsilon=epsilon, **one(draw, epsilon))
    for epsilon in epsilons:
        print(row(part, epsilon, known(part=part, epsilon=epsilon)), flush=True)


def row(part: str, epsilon: float, found: list[dict[str, Any]]) -> str:
    """One line of the table: means and standard errors, paired differences."""
    fixed = np.array([f["fixed"] for f in found])
    paid, composed = (np.array([f[k] for f in found]) for k in ("paid", "composed"))
    public = np.array([f["fixed"][f["chosen"]] for f in found])
    means = fixed.mean(axis=0)
    cells = [
        f"{part}, {fixed.shape[1]} settings",
        f"{epsilon:g}",
        *map(cell, (paid, public, fixed[:, int(means.argmax())], composed)),
        f"{means.min():.3f}",
        interval(paid - public),
        interval(paid - composed),
        str(len(found)),
    ]
    return "| " + " | ".join(cells) + " |"


def cell(values: Array) -> str:
    """Mean and standard error."""
    wide = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.3f} ± {wide:.3f}"


def interval(values: Array) -> str:
    """The mean, with the half width of a 95% interval."""
    n = len(values)
    if n < 2:
        return f"{values.mean():+.3f}"
    wide = student.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return f"{values.mean():+.3f} ± {wide:.3f}"
