"""The catalogue of sabotages: patches that come off again, and that the audit finds."""

import importlib
import os
import subprocess
import sys

import pytest

from demur.core.accounting import events
from demur.core.accounting.gdp import mu_of_pure
from demur.ledger.rules import admission
from demur.testing import discrete_secrets
from demur.testing.audit_suite import Size, all_cases
from demur.testing.sabotages import CATALOGUE, Category, found_by_audit, sabotage
from demur.testing.sabotages.patches import Sabotage, _found, in_children

TWELVE = {
    "the clip norm times the root of 2",
    "the noise of a plan divided twice",
    "one stream for all blocks of a key",
    "BPM reports drawn at twice their epsilon",
    "noise before the charge",
    "batches at twice the rate",
    "the same threefry keys in every step",
    "a reservation priced as one run",
    "a filter that counts a quarter of mu squared",
    "convex sensitivities times 0.7",
    "the shift of ogd times 0.4",
    "k records of a person at the price of one",
}
QUICK = [each for each in CATALOGUE if each.quick]


def test_the_catalogue_is_large_named_and_of_every_category():
    names = [each.name for each in CATALOGUE]
    assert len(names) == len(set(names)) >= 42
    assert TWELVE <= {each.name for each in QUICK}
    assert {each.category for each in CATALOGUE} == set(Category)
    for each in CATALOGUE:
        assert each.quick or each.why_not, each.name


@pytest.mark.slow
@pytest.mark.parametrize("each", CATALOGUE, ids=str)
def test_a_sabotage_replaces_its_places_and_puts_them_back(each):
    found = [_found(place) for place in each.places]
    before = [owner.__dict__[name] for owner, name in found]
    with pytest.raises(ZeroDivisionError), each.applied():
        for (owner, name), right in zip(found, before, strict=True):
            assert owner.__dict__[name] is not right
        raise ZeroDivisionError
    for (owner, name), right in zip(found, before, strict=True):
        assert owner.__dict__[name] is right


def test_copies_of_a_name_in_other_modules_are_replaced_too():
    right = events.for_group
    holders = [
        module
        for key, module in sys.modules.items()
        if key.startswith("demur.")
        and getattr(module, "__dict__", {}).get("for_group") is right
    ]
    assert len(holders) > 1
    with sabotage("k records of a person at the price of one").applied():
        assert all(module.for_group is not right for module in holders)
    assert all(module.for_group is right for module in holders)
    # A class that others match on is replaced in one place alone.
    with sabotage("a reservation priced as one run").applied():
        assert admission.Repeated is not events.Repeated
    assert admission.Repeated is events.Repeated


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="noise before the charge"):
        sabotage("something else")


def test_a_sabotage_in_this_process_is_refuted_and_its_absence_is_not():
    (case,) = [
        case
        for case in all_cases(["accounting"], twins=False)
        if case.name == "persons with several records"
    ]
    assert not case.audit(Size.QUICK).result.refuted
    with sabotage("a unit of one record that covers persons of several").applied():
        assert case.audit(Size.QUICK).result.refuted


def test_numbers_and_properties_can_be_sabotaged():
    wrong = Sabotage(
        "another number",
        Category.SCALE,
        "ledger",
        ("demur.testing.discrete_secrets:LEAST",),
        lambda right: right + 1,
    )
    with wrong.applied():
        assert discrete_secrets.LEAST == 65
    assert discrete_secrets.LEAST == 64


@pytest.mark.slow
def test_processes_that_are_started_inside_are_sabotaged_and_others_are_not():
    ask = "from demur.core.accounting.gdp import mu_of_pure; print(mu_of_pure(1.0))"

    def answer():
        command = [sys.executable, "-c", ask]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout)

    right, before = answer(), dict(os.environ)
    with in_children("half of a pure release's mu"):
        assert answer() == right / 2.0
        # Modules that are searched for what spends are loaded, too.
        importlib.import_module("demur.testing.sabotages.children.sitecustomize")
        assert mu_of_pure(1.0) == right
    assert dict(os.environ) == before


@pytest.mark.deep
@pytest.mark.parametrize("each", QUICK, ids=str)
def test_the_quick_audit_refutes_every_quick_sabotage(each):
    finding = found_by_audit(each.name)
    assert finding.found, finding
