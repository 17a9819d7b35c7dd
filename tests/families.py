"""Families of cases: some in every run, all of them in `make deep`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def thinned(cases: Iterable[Any], every: int, *, keep: Sequence[int] = ()) -> list[Any]:
    """Every so many-th case, and those at `keep`; the others are marked deep.

    For cases that differ in numbers and not in kind: each kind of case, each branch and
    each sabotaged twin stays in every run.
    """
    return [
        case if i % every == 0 or i in keep else _deep(case)
        for i, case in enumerate(cases)
    ]


def _deep(case: Any) -> Any:
    if isinstance(case, tuple) and hasattr(case, "marks"):  # a pytest.param
        return pytest.param(
            *case.values, id=case.id, marks=[*case.marks, pytest.mark.deep]
        )
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.deep)
