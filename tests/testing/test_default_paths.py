"""What demur does by default is what the audit drives."""

import inspect
from dataclasses import fields
from enum import Enum

import pytest

from demur.testing.audit_suite import Size, all_cases
from demur.testing.audit_suite import defaults as suite
from demur.testing.audit_suite.layouts.training import LAYOUTS
from demur.testing.audit_suite.recorded_fit import plan
from demur.testing.discovery import Candidate, SubjectKind, discover
from demur.testing.examples import subjects_of
from demur.training import Resources
from demur.training.noise.privatizer import KINDS

# Set by the unit or the data of an example: what they choose has no default of its own.
_WORDS = {"label", "space", "name", "split_key", "fingerprint"}


def chosen_by_default(definition):
    """Parameters whose default picks one way of several: words, flags, choices."""
    return {
        (name, parameter.default)
        for name, parameter in inspect.signature(definition).parameters.items()
        if isinstance(parameter.default, str | bool | Enum) and name not in _WORDS
    }


@pytest.mark.slow
def test_everything_that_spends_is_audited_or_left_out_for_a_reason():
    named = {case.name for case in all_cases(["defaults"])}
    for candidate in suite.spenders():
        why = suite.left_out(candidate.name)
        if why is None:
            examples = list(suite._subjects(candidate))
            assert examples, f"{candidate.name} has no example that can be replayed"
            assert {example.name for example in examples} <= named
        else:
            assert len(why) > 10, candidate.name


def test_no_reason_is_left_over():
    names = [candidate.name for candidate in suite.spenders()]
    for start in suite.LEFT_OUT:
        assert any(name.startswith(start) for name in names), start


def missing_defaults(candidate, made):
    """The defaults of a class that none of its audited examples has."""
    return {
        (candidate.name, name, default)
        for name, default in chosen_by_default(candidate.definition)
        if not any(getattr(each, name, default) == default for each in made)
    }


def test_the_audited_examples_are_built_with_the_defaults():
    missing = set()
    for candidate in suite.audited():
        if inspect.isclass(candidate.definition):
            made = [subject.make() for subject in subjects_of(candidate)]
            missing |= missing_defaults(candidate, made)
    assert missing == set()


def test_a_new_default_would_be_noticed(monkeypatch):
    """Twin: the class has another default than every one of its examples."""
    candidate = next(c for c in suite.audited() if c.name.endswith(":BallSVC"))
    made = [subject.make() for subject in subjects_of(candidate)]
    right = candidate.definition.__init__
    loss = inspect.signature(right).parameters["loss"]
    changed = inspect.signature(right).replace(
        parameters=[
            p.replace(default="a new loss") if p.name == "loss" else p
            for p in inspect.signature(right).parameters.values()
            if p.name != "self"
        ]
    )
    assert loss.default == "huber"
    monkeypatch.setattr(candidate.definition, "__signature__", changed, raising=False)
    assert missing_defaults(candidate, made) == {(candidate.name, "loss", "a new loss")}


def test_a_new_spender_without_an_example_would_be_noticed(monkeypatch):
    known = suite.spenders()
    stranger = Candidate(SubjectKind.MECHANISM, "demur.new:Spender", object)
    monkeypatch.setattr(suite, "spenders", lambda: (*known, stranger))
    with pytest.raises(Exception, match=r"demur\.new:Spender"):
        suite.cases()


def test_the_recorded_run_names_no_generator():
    spec = plan(2).noise_addition_transform.spec
    assert spec.noise == "threefry"
    assert "noise" not in inspect.signature(plan).parameters


def test_the_recorded_lattice_run_pays_for_the_rounding_of_its_sums():
    """Hardened noise takes float64 sums by default, and so does what is audited."""
    spec = plan(2, noise="lattice").noise_addition_transform.spec
    assert spec.most_rows is not None
    assert 0.0 < spec.sum_rounding < 0.01


def test_every_way_to_draw_batches_that_has_a_price_is_audited():
    """By name of what the suite drives: `fit` and its batches, allocation, persons."""
    driven = {
        "CyclicPoissonSampling": "participation of records",
        "RandomAllocationSampling": "steps of an allocated record",
        "UserSelectionStrategy": "records of a person in a batch",
    }
    named = {case.name for case in all_cases(["training"], twins=False)}
    assert set(driven.values()) <= named
    offered = {
        c.name.rpartition(":")[2] for c in suite.spenders() if ".batches." in c.name
    }
    # Without a sampled account of their own: priced as participations, which
    # "sensitivity over steps" tries pattern by pattern.
    by_pattern = {"BMinSepSampling", "BallsInBinsSampling", "FixedBatchSampling"}
    assert offered == set(driven) | by_pattern


# -- layouts ---------------------------------------------------------------------------

# Fields of Resources that spread nothing.
NO_LAYOUT = {
    "minibatch_size": "`training`, a step in several minibatches",
    "shapes": "sizes to compile: padding alone",
    "check_loss": "a check before the run",
    "memory": "forms of the clipped gradient: tests/training/clipping compares them",
    "store_programs": "compiled programs on the disk",
}


def layouts_that_are_not_audited(names):
    """What spreads a run over devices or processes, and no audit drives."""
    audited = {name for layout in LAYOUTS.values() for name in layout.chosen_by}
    return names - audited - set(NO_LAYOUT)


def test_every_layout_of_a_run_is_audited():
    named = {case.name for case in all_cases(["training"], size=Size.STANDARD)}
    for layout in LAYOUTS.values():
        assert any(name.startswith(f"{layout.what}: ") for name in named)
    offered = {field.name for field in fields(Resources)}
    assert layouts_that_are_not_audited(offered) == set()
    assert set(NO_LAYOUT) <= offered
    # Beside those: rows of processes, and each generator over several devices. The
    # default one is that of every layout which names none.
    more = set(KINDS) - {"threefry"} | {"ProcessRows"}
    assert layouts_that_are_not_audited(more) == set()
    chosen = {name for layout in LAYOUTS.values() for name in layout.chosen_by}
    assert chosen <= offered | more


def test_a_new_layout_would_be_noticed():
    offered = {field.name for field in fields(Resources)} | {"pipeline_stages"}
    assert layouts_that_are_not_audited(offered) == {"pipeline_stages"}


def test_the_quick_audit_has_no_layouts():
    quick = {str(case) for case in all_cases(["training", "cluster"])}
    whole = all_cases(["training", "cluster"], size=Size.STANDARD)
    assert {str(case) for case in whole if not case.full} == quick
    assert any(case.full for case in whole)


def test_what_spends_on_spark_is_audited():
    """`write_reports` is `privatize` whose tasks write what they draw to files."""
    found = {each.name for each in discover("demur.adapters.spark").candidates}
    module = "demur.adapters.spark.local_reports"
    assert found == {f"{module}:privatize", f"{module}:write_reports"}
