"""Unlearning through river's pipelines: the row that is unlearned was learned."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from river import base, compose, feature_extraction, feature_selection, preprocessing
from sklearn.base import clone

from demur.unlearning import (
    RangeScaler,
    RecordMismatch,
    UnknownRecord,
    UnlearnableClassifier,
    UnlearnableRegressor,
    unlearn_one,
)
from demur.unlearning.estimators import pipelines
from demur.unlearning.models import OGD

RANGES = {"age": (0.0, 120.0), "income": (0.0, 200_000.0)}
BOUNDS = {"ridge": {"norm_bound": 2.0, "y_bound": 1.0}, "ogd": {"norm_bound": 2.0}}


def people(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(18, 90, n), rng.gamma(4.0, 12_000.0, n)])
    y = 0.01 * X[:, 0] - X[:, 1] / 200_000.0 + 0.01 * rng.normal(size=n)
    return [{"age": float(a), "income": float(b)} for a, b in X], y.tolist()


def public(mode="ridge"):
    return RangeScaler(RANGES) | UnlearnableRegressor(
        mode=mode, mode_config=BOUNDS[mode]
    )


def standardised():
    return compose.Pipeline(UnlearnableRegressor(mode="ridge", standardise=True))


def scaled_first():
    """The habit: river's scaler before the model."""
    return preprocessing.StandardScaler() | UnlearnableRegressor(
        mode="ridge", mode_config={"norm_bound": 6.0}
    )


def learner(pipeline):
    return list(pipeline.steps.values())[-1]


def state(pipeline):
    """Everything that the steps of a pipeline know."""
    parts = learner(pipeline).model_.mode.state()
    known = b"".join(parts[key].tobytes() for key in ("sums", "w"))
    for step in list(pipeline.steps.values())[:-1]:
        if isinstance(step, preprocessing.StandardScaler):
            known += repr([sorted(vars(step)[n].items()) for n in SCALER]).encode()
        if isinstance(step, Reverting):
            known += repr(step.moments).encode()
    return known


SCALER = ("counts", "means", "vars")


def forget_naively(pipeline, x, y):
    """What a user can do with a scaler that learns: scale as of today, unlearn that."""
    row = x
    for step in list(pipeline.steps.values())[:-1]:
        row = step.transform_one(row)
    learner(pipeline).unlearn_one(row, y)


class Reverting(base.Transformer):
    """A running scaler that can take a record out of its sums, exactly."""

    def __init__(self):
        self.moments = dict.fromkeys(RANGES, (0, Fraction(), Fraction()))
        self.rows = {}

    def _add(self, x, sign):
        for name, value in x.items():
            n, total, squares = self.moments[name]
            exact = Fraction(value)
            added = (n + sign, total + sign * exact, squares + sign * exact * exact)
            self.moments[name] = added

    def learn_one(self, x):
        self._add(x, 1)

    def transform_one(self, x):
        row = {}
        for name, value in x.items():
            n, total, squares = self.moments[name]
            mean, square = float(total) / n, float(squares) / n
            deviation = math.sqrt(max(square - mean * mean, 1e-12))
            row[name] = (value - mean) / deviation
        return self.rows.setdefault(tuple(x.values()), row)


def reverting_first():
    return Reverting() | UnlearnableRegressor(
        mode="ridge", mode_config={"norm_bound": 6.0}
    )


def forget_as_well_as_one_can(pipeline, x, y):
    """The scaler takes the record out, and the very row that was learned goes."""
    scaler = next(iter(pipeline.steps.values()))
    learner(pipeline).unlearn_one(scaler.rows[tuple(x.values())], y)
    scaler._add(x, -1)


# -- the attack --------------------------------------------------------------------


def named_by_an_attacker(make, forget, truth, candidates):
    """Who was deleted? The attacker knows the others, and replays each candidate."""
    others, targets = people(30)
    worlds = []
    for candidate in candidates:
        pipeline = make()
        for at, (x, y) in enumerate(zip(others, targets, strict=True)):
            if at == 10:
                pipeline.learn_one(candidate, 0.3)
            pipeline.learn_one(x, y)
        forget(pipeline, candidate, 0.3)
        worlds.append(state(pipeline))
    return [i for i, world in enumerate(worlds) if world == worlds[truth]]


@pytest.mark.parametrize("make", [public, standardised])
@pytest.mark.slow
def test_the_deleted_record_cannot_be_named(make):
    """All candidates leave one and the same state: any guess is by chance."""
    candidates = people(64, seed=1)[0]
    fitting = named_by_an_attacker(make, unlearn_one, 17, candidates)
    assert fitting == list(range(64))


@pytest.mark.parametrize(
    ("make", "forget"),
    [(scaled_first, forget_naively), (reverting_first, forget_as_well_as_one_can)],
)
@pytest.mark.slow
def test_a_scaler_in_front_names_it(make, forget):
    candidates = people(64, seed=1)[0]
    assert named_by_an_attacker(make, forget, 17, candidates) == [17]


@pytest.mark.parametrize("make", [public, standardised])
def test_a_deletion_leaves_what_never_was(make):
    xs, ys = people()
    pipeline, replay = make(), make()
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        pipeline.learn_one(x, y, record_id=f"r{at}")
        if at not in (7, 33):
            replay.learn_one(x, y)
    for at in (33, 7):
        unlearn_one(pipeline, xs[at], ys[at], record_id=f"r{at}")
    assert state(pipeline) == state(replay)
    assert pipeline.predict_one(xs[7]) == replay.predict_one(xs[7])
    with pytest.raises(UnknownRecord):
        unlearn_one(pipeline, xs[7], ys[7], record_id="r7")
    with pytest.raises(UnknownRecord):
        unlearn_one(pipeline, xs[8], ys[8], record_id="a stranger")
    with pytest.raises(RecordMismatch):
        unlearn_one(pipeline, xs[8], ys[8], record_id="r9")
    with pytest.raises(UnknownRecord):
        unlearn_one(pipeline, xs[8], ys[8])  # all that are live have ids
    assert state(pipeline) == state(replay)


# -- steps -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (preprocessing.StandardScaler(), "StandardScaler"),
        (preprocessing.MinMaxScaler(), "MinMaxScaler"),
        (preprocessing.OneHotEncoder(), "OneHotEncoder"),
        (compose.Grouper(compose.Discard("name"), by="name"), "Grouper"),
        (feature_selection.PoissonInclusion(p=0.5), "PoissonInclusion"),
        (
            compose.TransformerUnion(
                compose.Select("age"), preprocessing.StandardScaler()
            ),
            "StandardScaler",
        ),
        (
            compose.TransformerUnion(
                compose.Pipeline(compose.Select("age"), preprocessing.MinMaxScaler())
            ),
            "MinMaxScaler",
        ),
    ],
)
def test_steps_that_learn_are_refused_by_name(step, name):
    model = UnlearnableRegressor(mode="ogd", gamma=1e6, mode_config={"norm_bound": 9.0})
    model.learn_one({"age": 1.0, "income": 2.0}, 0.5, record_id="r")
    digest = model.model_.mode.digest()
    for content in ((), ({"age": 1.0, "income": 2.0}, 0.5)):
        with pytest.raises(TypeError, match=f"{name} learns.*Nothing has changed"):
            unlearn_one(compose.Pipeline(step, model), *content, record_id="r")
    assert model.model_.mode.digest() == digest and "r" in model.model_.registry


def test_a_step_that_writes_into_the_record_is_refused():
    """river's loop hands one dict to predict and to learn: renamed twice, swapped back.

    The other steps on the list leave a record as it is, and so does unlearn_one.
    """
    swap = compose.Renamer({"age": "t", "income": "age", "t": "income"})
    model = UnlearnableRegressor(mode="ridge", standardise=True)
    pipeline, record = swap | model, {"age": 40.0, "income": 9_000.0}
    pipeline.learn_one({"age": 1.0, "income": 2.0}, 0.1)
    x = dict(record)
    pipeline.predict_one(x)
    assert x != record, "if it leaves records alone one day, it may be on the list"
    with pytest.raises(TypeError, match="Renamer writes into the record"):
        unlearn_one(pipeline, record, 0.1)
    assert model.model_.mode.records == 1
    for name in sorted(pipelines._FIXED):
        module = next(
            m for m in (compose, preprocessing, feature_extraction) if hasattr(m, name)
        )
        step = getattr(module, name)(*STEPS.get(name, ()))
        kept = dict(record)
        step.transform_one(kept)
        assert kept == record, name

    def clears(row):
        copy = dict(row)
        row.clear()
        return copy

    pipeline = compose.FuncTransformer(clears) | model.clone()
    pipeline.learn_one(dict(record), 0.1)
    unlearn_one(pipeline, record, 0.1)
    assert record == {"age": 40.0, "income": 9_000.0}


STEPS = {
    "Discard": ("age",),
    "FuncTransformer": (dict,),
    "Prefixer": ("p",),
    "Select": ("age",),
    "SelectType": (float,),
    "Suffixer": ("s",),
}


def test_steps_that_learn_nothing_are_not():
    class Halved(compose.FuncTransformer):
        fixed_map = True

    steps = [
        compose.Discard("name"),
        RangeScaler(RANGES),
        feature_extraction.PolynomialExtender(degree=2) + compose.Prefixer("p_"),
        Halved(lambda x: {name: value / 2 for name, value in x.items()}),
    ]
    model = UnlearnableRegressor(mode="ridge", mode_config={"norm_bound": 4.0})
    pipeline, alone = compose.Pipeline(*steps, model), model.clone()
    xs, ys = people(20)
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        pipeline.learn_one(x | {"name": "somebody"}, y)
        row, _ = pipeline._transform_one(x)
        if at != 3:
            alone.learn_one(row, y)
    unlearn_one(pipeline, xs[3] | {"name": "somebody"}, ys[3])
    assert model.model_.mode.digest() == alone.model_.mode.digest()


class Unknown:
    """Says that it learns nothing, and is no transformer in river's eyes."""

    fixed_map = True
    _supervised = False

    def learn_one(self, x):
        pass

    def transform_one(self, x):
        return {name: value / 2 for name, value in x.items()}


def test_a_step_that_river_does_not_apply_is_refused():
    model = UnlearnableRegressor(mode="ridge")
    pipeline = compose.Pipeline(Unknown(), model)
    for i in range(3):
        pipeline.learn_one({"age": 0.2 + i / 10}, 0.1)
    with pytest.raises(TypeError, match="Unknown is no Transformer of river"):
        unlearn_one(pipeline, {"age": 0.2}, 0.1)
    assert model.model_.mode.records == 3


@pytest.mark.slow
def test_a_scaler_made_before_river_is_loaded_is_applied():
    code = (
        "import sys\nfrom demur.unlearning import RangeScaler, UnlearnableRegressor\n"
        "assert 'river' not in sys.modules\n"
        "scaler, model = RangeScaler({'a': (0, 10)}), UnlearnableRegressor()\n"
        "from river import compose\n"
        "compose.Pipeline(scaler, model).learn_one({'a': 10}, 0.5)\n"
        "print(*model.model_.theta)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    weight, constant = map(float, done.stdout.split())
    assert weight == constant != 0.0, "the row was (1, 1), not (10, 1)"


def test_the_last_step_must_be_able_to():
    wrapped = preprocessing.TargetStandardScaler(regressor=UnlearnableRegressor())
    with pytest.raises(TypeError, match="TargetStandardScaler, cannot unlearn"):
        unlearn_one(compose.Pipeline(RangeScaler(RANGES), wrapped), {"age": 1.0}, 0.1)
    model = UnlearnableRegressor(mode="ridge")
    model.learn_one({"age": 0.5}, 0.1)
    unlearn_one(model, {"age": 0.5}, 0.1)  # without a pipeline, too
    assert model.model_.mode.records == 0


# -- which modes standardise -------------------------------------------------------


@pytest.mark.parametrize("mode", ["ogd", "logistic", "seed"])
def test_other_modes_say_why_they_do_not_standardise(mode):
    model = UnlearnableClassifier(mode=mode, standardise=True)
    with pytest.raises(ValueError, match=f"'{mode}' cannot standardise.*RangeScaler"):
        model.learn_one({"a": 1.0}, 1)
    assert not hasattr(model, "model_")


def shift_over_bound(scaler, deviations=30.0):
    """Distance to the replay over the bound of ogd, rows going through `scaler`."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 3))
    y = np.sign(X @ [1.0, -0.5, 0.3])
    X[50] = [deviations, 0.0, 0.0]

    def run(skipped):
        step, mode = scaler(), OGD(3, norm_bound=2.0)
        for t, x in enumerate(X):
            if t == 50 and skipped:
                mode.skip()
                continue
            row = dict(enumerate(x.tolist()))
            step.learn_one(row)
            mode.insert(np.array(list(step.transform_one(row).values())), float(y[t]))
        return mode

    world, replay = run(False), run(True)
    shift = np.linalg.norm(world.published() - replay.published())
    return shift / world.shift_bound()


def test_the_bound_of_ogd_holds_behind_public_ranges_and_not_behind_a_scaler():
    assert shift_over_bound(lambda: RangeScaler(dict.fromkeys(range(3), (-3, 3)))) <= 1
    # The figures on docs/unlearning_theory.md.
    scaler = preprocessing.StandardScaler
    assert shift_over_bound(scaler, 30.0) == pytest.approx(7.6, abs=0.05)
    assert shift_over_bound(scaler, 1000.0) == pytest.approx(31.0, abs=0.5)


# -- declared ranges ---------------------------------------------------------------


def test_public_ranges():
    scaler = RangeScaler(RANGES)
    assert scaler.transform_one({"age": 90, "income": 1e9}) == {
        "age": 0.5,
        "income": 1.0,
    }
    for ranges, x, message in (
        ({"age": (0, 1)}, {"size": 1.0}, "no range"),
        ({"age": (1, 1)}, {"age": 1.0}, "low < high"),
        ({"age": (0, float("inf"))}, {"age": 1.0}, "finite"),
        ({"age": (0, 1)}, {"age": float("nan")}, "finite"),
        ({"age": (0, 1)}, {"age": "old"}, "numbers"),
        ({"age": (0, 1)}, {"age": "0.5"}, "numbers"),
        ({"age": (0, 1)}, {"age": b"0.5"}, "numbers"),
        ({"age": (0, 1)}, {"age": np.complex64(0.5)}, "numbers"),
        ({"age": (0, 5e-324)}, {"age": 0.0}, "too narrow"),
    ):
        with pytest.raises(ValueError, match=message):
            RangeScaler(ranges).transform_one(x)
    wide = RangeScaler({"a": (1e308, 1.5e308), "b": (-1.7e308, 1.7e308)})
    assert wide.transform_one({"a": 1.25e308, "b": 0.85e308}) == {"a": 0.0, "b": 0.5}


def test_a_scaler_quotes_no_name_and_keeps_its_own_ranges():
    ranges = {"age": (0.0, 100.0)}
    scaler = RangeScaler(ranges)
    with pytest.raises(ValueError, match="1 of the 2 features") as refusal:
        scaler.transform_one({"age": 1.0, "patient Ada": 1.0})
    assert "Ada" not in str(refusal.value)
    ranges["age"] = (0.0, 1.0)
    scaler.ranges["age"] = (0.0, 1.0)
    for one in (scaler, scaler.clone(), clone(scaler)):
        assert one.transform_one({"age": 75.0}) == {"age": 0.5}
        assert one.get_params() == {"ranges": {"age": (0.0, 100.0)}}
