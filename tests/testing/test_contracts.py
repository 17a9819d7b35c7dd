"""Every contract, on everything that the package offers."""

import ast
import inspect
import sys
from contextlib import closing
from itertools import product

import pytest

from demur.testing import SelectionCase, discover
from demur.testing.discovery import SubjectKind
from demur.testing.examples import (
    EXAMPLES,
    EXEMPT,
    READERS,
    NoExample,
    reason,
    subjects_of,
)
from demur.testing.run import checks_on_candidate
from demur.testing.subject import Subject

ALL = discover("demur")
# Whole training runs, and decoders that search: seconds for a contract.
_SLOW = (SubjectKind.PLAN, SubjectKind.ESTIMATOR)
# Further examples of a class: other decoders, noises and losses of what is tested here.
_DEEP = {
    "BallSVC, squared hinge",
    "BallSoftmaxClassifier, noisy gd",
    "PrivateGMM, clip",
    "PrivateGMM, gaussian",
    "PrivateTMM, clip",
    "PrivateTMM, gaussian",
}
# Releases and prices that are those of another class tested here, under another name.
_LIKE_ANOTHER = {
    "BPM, L = infinity",
    "BallSVC",
    "PrivateKMeans, clip",
    "PrivateTMM",
    "UnlearnableRegressor, ogd",
    "compat.bpm PrivateKMeans",
    "compat.jax_privacy BandMFConfig",
    "compat.jax_privacy BandMFExecutionPlanConfig",
}
_OF_THE_RELEASE = {
    "a declined release can be made in a larger ledger",
    "a person of several records costs more",
    "cost falls with noise",
    "cost grows with the count",
    "cost grows with the radius",
    "no noise key is left behind",
    "noise follows from the key",
    "reading changes nothing",
    "results survive json",
    "seeded noise is stamped",
    "the ledger holds no exact value",
}
_DEEP_CHECKS = {
    ("BandMFExecutionPlanConfig", "bad data costs nothing"),
    *product(_LIKE_ANOTHER, _OF_THE_RELEASE),
}


_OF_BAD_INPUT = {"bad data costs nothing", "bad parameters cost nothing"}


def _marks(candidate, check):
    found = [pytest.mark.slow] if candidate.kind in _SLOW else []
    if check.subject in _DEEP or (check.subject, check.name) in _DEEP_CHECKS:
        found.append(pytest.mark.deep)
    return found


def _shorten_posterior(patch):
    """No contract asks what the centres of a decoder are worth."""
    if posterior := sys.modules.get("demur.cluster.decoding.posterior"):
        patch.setattr(posterior, "_MOST", 24)
        patch.setattr(posterior, "_FEWEST", 24)


with pytest.MonkeyPatch.context() as while_examples_are_made:
    _shorten_posterior(while_examples_are_made)
    CASES = [
        pytest.param(check, id=str(check), marks=_marks(candidate, check))
        for candidate in ALL.candidates
        for check in checks_on_candidate(candidate)
    ]


@pytest.fixture
def short_posterior(monkeypatch):
    _shorten_posterior(monkeypatch)


def _writes(ledger):
    """How many rows of a ledger in memory were ever written, as SQLite counts them."""
    with closing(ledger._store._engine.raw_connection()) as connection:
        return connection.driver_connection.total_changes


@pytest.fixture
def one_ledger(monkeypatch):
    """Inputs that are tried one after another share a ledger until it is written to."""
    make, unwritten = Subject.ledger, []

    def ledger(subject):
        if not unwritten or unwritten[1:] != [_writes(unwritten[0]), []]:
            new = make(subject)
            unwritten[:] = [new, _writes(new), new.log]
        return unwritten[0]

    monkeypatch.setattr(Subject, "ledger", ledger)


@pytest.fixture(scope="module")
def one_entry():
    """The entry of a subject's sample, which no contract changes, is found once."""
    find, found = Subject.entry.fget, {}

    def entry(subject):
        if id(subject) not in found:
            found[id(subject)] = find(subject)
        return found[id(subject)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Subject, "entry", property(entry))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("short_posterior", "one_entry")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("check", CASES)
def test_the_contract_holds(check, request):
    if check.name in _OF_BAD_INPUT:
        request.getfixturevalue("one_ledger")
    check()


def test_what_is_left_to_the_deep_run_exists():
    """A renamed example would otherwise come back unnoticed."""
    if ALL.left_out:
        pytest.skip(f"machine: frameworks are missing: {sorted(ALL.left_out)[:3]}")
    checks = [case.values[0] for case in CASES]
    assert {check.subject for check in checks} >= _DEEP
    assert {(check.subject, check.name) for check in checks} >= _DEEP_CHECKS
    assert {check.name for check in checks} >= _OF_BAD_INPUT


@pytest.mark.slow
def test_everything_that_spends_has_an_example_or_a_reason():
    for candidate in ALL.candidates:
        subjects_of(candidate)  # NoExample names whoever has neither
    assert all(len(words) > 10 for words in [*EXEMPT.values(), *READERS.values()])


def test_nothing_is_exempt_or_exemplified_that_does_not_exist():
    """A renamed class would otherwise be left out by a stale line."""
    if ALL.left_out:
        pytest.skip(f"machine: frameworks are missing: {sorted(ALL.left_out)[:3]}")
    names = {candidate.name for candidate in ALL.candidates}
    assert set(EXAMPLES) | set(EXEMPT) <= names
    assert not set(EXAMPLES) & set(EXEMPT)


def test_no_mechanism_estimator_or_plan_is_exempt():
    exempt = {
        f.name
        for f in ALL.candidates
        if reason(f) and f.kind is not SubjectKind.SPENDER
    }
    assert exempt <= {"demur.training.plans.base_config:BasePlanConfig"}  # a base class


@pytest.mark.parametrize("package", sorted(READERS))
def test_what_only_reads_never_charges(package):
    if package == "demur.ledger":
        return  # it is the ledger that charges
    for module in [m for m in sys.modules.values() if _within(m, package)]:
        tree = ast.parse(inspect.getsource(module))
        called = {
            node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & {"charge", "paid", "reserve", "privatize"}, module.__name__


def _within(module, package):
    return (getattr(module, "__name__", "") + ".").startswith(package + ".")


def test_every_kind_is_found():
    kinds = {candidate.kind for candidate in ALL.candidates}
    assert kinds == set(SubjectKind) or ALL.left_out
    names = {candidate.name.split(":")[1] for candidate in ALL.candidates}
    assert {"BPM", "Gaussian", "BallSVC", "PrivateGMM", "DPExecutionPlan"} <= names
    assert {"ReportMechanism", "Mechanism", "BatchSelectionStrategy"}.isdisjoint(names)


def test_a_new_class_without_an_example_is_named(tmp_path, monkeypatch):
    package = tmp_path / "newcomer"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from demur.core.declaration import Declaration\n"
        "class Unheard:\n"
        "    def declaration(self) -> Declaration: ...\n"
        "class _Private:\n"
        "    def declaration(self) -> Declaration: ...\n"
        "def spends(x, ledger=None): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    candidates = discover("newcomer").candidates
    assert [c.name for c in candidates] == ["newcomer:Unheard", "newcomer:spends"]
    for candidate in candidates:
        with pytest.raises(NoExample, match="_example"):
            subjects_of(candidate)


def test_a_missing_framework_is_left_out_and_a_broken_module_is_not(
    tmp_path, monkeypatch
):
    package = tmp_path / "halfway"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "needs.py").write_text(
        "raise ImportError('no jax here', name='jax.numpy')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert discover("halfway").left_out == {"halfway.needs": "jax is not installed"}
    (package / "broken.py").write_text("import a_module_nobody_has\n")
    with pytest.raises(ImportError, match="a_module_nobody_has"):
        discover("halfway")


@pytest.mark.slow
def test_the_selections_are_there():
    if any(name.startswith("demur.training") for name in ALL.left_out):
        pytest.skip("machine: training is not installed")
    cases = [s for candidate in ALL.candidates for s in subjects_of(candidate)]
    assert sum(isinstance(case, SelectionCase) for case in cases) >= 8
