"""Runs the contracts on a mechanism, an estimator, a plan, or a whole package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from demur.core.declaration import Mechanism
from demur.testing import (
    bad_input,
    builders,
    costs,
    declining,
    neighbours,
    refitting,
    secrets,
    selection,
    statements,
)
from demur.testing.discovery import Candidate, discover
from demur.testing.errors import NoExample
from demur.testing.examples import subjects_of
from demur.testing.result import Check, CheckResult, checks_of, raise_broken, run_checks
from demur.testing.selection import SelectionCase
from demur.testing.subject import Subject

CONTRACTS: tuple[Callable[[Subject], None], ...] = (
    *costs.CONTRACTS,
    *declining.CONTRACTS,
    *statements.CONTRACTS,
    *bad_input.CONTRACTS,
    *refitting.CONTRACTS,
    *secrets.CONTRACTS,
    *neighbours.CONTRACTS,
)


def check_mechanism(
    mechanism: Mechanism | Callable[..., Mechanism] | builders.Example,
    *,
    raise_on_failure: bool = False,
    **about: Any,
) -> tuple[CheckResult, ...]:
    """Results of every contract on a mechanism, or on what a function returns.

    `about` gives what cannot be inferred: `value` (data it takes), `unit`, `delta`,
    `noisier` (the changed parameters that mean more noise), `filter`, `name`; for few
    possible outputs also `neighbours` and `outcomes`. An `Example` holds all of it.

    >>> from demur.core.adjacency import ReplaceOne
    >>> from demur.mechanisms import Gaussian
    >>> results = check_mechanism(Gaussian(2.0, {ReplaceOne(): 1.0}, dimension=3))
    >>> len(results) > 20, [str(r) for r in results if not r.ok]
    (True, [])
    """
    subject = builders.of_example(mechanism, **about)
    return run_checks(checks_on(subject), raise_on_failure=raise_on_failure)


def check_estimator(
    estimator: Any,
    X: Any = None,
    y: Any = None,
    *,
    raise_on_failure: bool = False,
    **about: Any,
) -> tuple[CheckResult, ...]:
    """Results of every contract on an unfitted estimator with a `ledger` parameter.

    It is fitted many times to (X, y), by default sixty points of two classes.
    `about` may give `unit` and `delta` (default: those of a fit without a ledger),
    `fit` (default: `estimator.fit`), `unused` parameters, `filter`, `name`.
    """
    subject = builders.of_estimator(estimator, X, y, **about)
    return run_checks(checks_on(subject), raise_on_failure=raise_on_failure)


def check_plan(
    config: Any, *, raise_on_failure: bool = False, **about: Any
) -> tuple[CheckResult, ...]:
    """Results of every contract on a plan's config; each runs a few short trainings.

    `about` may give `loss`, `params`, `data`, `optimizer`, `delta`, `filter`, `name`.
    """
    subject = builders.of_plan(config, **about)
    return run_checks(checks_on(subject), raise_on_failure=raise_on_failure)


def check_selection(
    strategy: Any, examples: Any = selection.EXAMPLES, *, raise_on_failure: bool = False
) -> tuple[CheckResult, ...]:
    """Results of every contract on a batch selection strategy."""
    case = SelectionCase(type(strategy).__name__, strategy, examples)
    return run_checks(checks_on(case), raise_on_failure=raise_on_failure)


def checks_on(subject: Subject | SelectionCase) -> list[Check]:
    """The contracts for a subject, not yet run."""
    if isinstance(subject, SelectionCase):
        return checks_of(subject.name, selection.CONTRACTS, subject)
    return checks_of(subject.name, CONTRACTS, subject)


def generate_checks(package: str = "demur") -> Iterator[Check]:
    """Every contract on everything in `package` that spends, not yet run.

    For pytest: `@pytest.mark.parametrize("check", generate_checks("mine"), ids=str)`,
    and `check()` in the test.
    """
    for candidate in discover(package).candidates:
        yield from checks_on_candidate(candidate)


def checks_on_candidate(candidate: Candidate) -> list[Check]:
    """The contracts on a discovered class or function; without an example they fail."""
    try:
        subjects = subjects_of(candidate)
    except NoExample as error:
        return [Check("has an example", candidate.name, _raising(error))]
    return [check for subject in subjects for check in checks_on(subject)]


def _raising(error: Exception) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def run_all(
    package: str = "demur",
    *,
    raise_on_failure: bool = False,
    progress: Callable[[CheckResult], None] | None = None,
) -> tuple[CheckResult, ...]:
    """Results of every contract on everything in `package` that spends.

    Modules whose framework is not installed are named in a result of their own.
    `progress` is called with each result.
    """
    discovery = discover(package)
    results = [
        CheckResult("can be loaded", module, True, f"left out: {why}")
        for module, why in discovery.left_out.items()
    ]
    for candidate in discovery.candidates:
        for check in checks_on_candidate(candidate):
            results.append(check.result())
            if progress is not None:
                progress(results[-1])
    if raise_on_failure:
        raise_broken(results)
    return tuple(results)
