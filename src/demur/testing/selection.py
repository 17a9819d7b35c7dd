"""Contracts of batch selection: valid indices, fresh randomness, public parameters."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np

from demur.core.entropy import NoiseKey, OsEntropy, Seeded
from demur.core.errors import NoiseReuse
from demur.testing.errors import ContractBroken
from demur.testing.result import require

EXAMPLES = 60


@dataclasses.dataclass(frozen=True)
class SelectionCase:
    """A strategy, and what its `batch_iterator` takes for the examples."""

    name: str
    strategy: Any
    examples: Any = EXAMPLES


def batches_hold_valid_indices(case: SelectionCase) -> None:
    """One batch for each step; indices below n, none twice unless with replacement."""
    batches = _batches(case, _key())
    require(
        len(batches) == case.strategy.iterations,
        f"{len(batches)} batches for {case.strategy.iterations} steps",
    )
    for batch in batches:
        require(batch.dtype.kind in "iu", f"indices are {batch.dtype}")
        require(
            not batch.size or (batch.min() >= 0 and batch.max() < EXAMPLES),
            "an index lies outside the examples",
        )
        if not getattr(case.strategy, "replace", False) and batch.ndim == 1:
            require(
                len(np.unique(batch)) == len(batch), "an index comes twice in a batch"
            )


def batches_follow_from_the_key_alone(case: SelectionCase) -> None:
    """The same key repeats a run and resumes it; another key, or none, does not."""
    run = _batches(case, _repeated_key())
    again = _batches(case, _repeated_key())
    require(_equal(run, again), "the same key gave other batches: no run can resume")
    late = _batches(case, _repeated_key(), start=2)
    require(_equal(run[2:], late), "a resumed run has other batches")
    for other in (_batches(case, _key()), _batches(case, None)):
        require(not _equal(run, other), "another key gave the same batches")
    require(
        not _equal(_batches(case, None), _batches(case, None)),
        "two runs without a key have the same batches: the randomness is fixed",
    )


def a_key_selects_once(case: SelectionCase) -> None:
    """A key that has selected one run cannot select a second one."""
    key = _key()
    _batches(case, key)
    try:
        _batches(case, key)
    except NoiseReuse:
        return
    raise ContractBroken("one key selected two runs: their batches are the same")


def a_strategy_holds_only_public_parameters(case: SelectionCase) -> None:
    """Frozen, picklable and unchanged by a run; batches do not print their indices."""
    before = repr(case.strategy)
    batches = case.strategy.batch_iterator(case.examples, _key())
    require("secret" in repr(batches), f"batches print themselves: {batches!r:.80}")
    list(batches)
    require(repr(case.strategy) == before, "a run changed the strategy")
    require(
        pickle.loads(pickle.dumps(case.strategy)) == case.strategy,
        "the strategy comes back from a pickle as another one",
    )
    name = next(f.name for f in dataclasses.fields(case.strategy))
    try:
        setattr(case.strategy, name, None)
    except (AttributeError, TypeError):
        return
    raise ContractBroken(f"{name} can be changed after the plan was priced")


def bad_parameters_are_refused(case: SelectionCase) -> None:
    """NaN, words and negative numbers, for every number a strategy is made from."""
    problems = []
    for field in dataclasses.fields(case.strategy):
        good = getattr(case.strategy, field.name)
        if isinstance(good, bool) or not isinstance(good, int | float):
            continue
        for bad in (float("nan"), "many", -1, -0.5, float("inf"), 1j, ()):
            try:
                dataclasses.replace(case.strategy, **{field.name: bad})
            except (ValueError, TypeError) as error:
                if field.name not in str(error):
                    problems.append(f"{field.name}={bad!r}: {error} (no name)")
                continue
            problems.append(f"{field.name}={bad!r} was accepted")
    for count in (-1, 2.5, "many", float("nan"), None):
        try:
            list(case.strategy.batch_iterator(count, _key()))
        except (ValueError, TypeError):
            continue
        problems.append(f"{count!r} examples were accepted")
    require(not problems, " | ".join(problems))


CONTRACTS = (
    batches_hold_valid_indices,
    batches_follow_from_the_key_alone,
    a_key_selects_once,
    a_strategy_holds_only_public_parameters,
    bad_parameters_are_refused,
)


def _key() -> NoiseKey:
    return NoiseKey.free(OsEntropy())


def _repeated_key() -> NoiseKey:
    return NoiseKey.free(Seeded(17))


def _batches(
    case: SelectionCase, key: NoiseKey | None, *, start: int = 0
) -> list[np.ndarray[Any, Any]]:
    return list(case.strategy.batch_iterator(case.examples, key, start=start))


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a, b) for a, b in zip(one, other, strict=True)
    )
