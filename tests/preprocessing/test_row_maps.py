"""Row maps: no distance grows by more than a map declares, and some reach it."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from demur.core.curve import PiecewiseLinear
from demur.core.errors import NotCovered
from demur.preprocessing import (
    ClipRows,
    NormalizeRows,
    PublicProjection,
    PublicScaler,
    RandomProjection,
    RowSpace,
)

D = 4
RNG = np.random.default_rng(0)
MAPS = {
    "clip": ClipRows(1.5),
    "scaler": PublicScaler(low=[-1, -2, 0, -3], high=[3, 2, 0.5, 3]),
    "projection": PublicProjection(RNG.normal(size=(3, D)), centre=np.ones(D)),
    "pca": PublicProjection.pca(RNG.normal(size=(50, D)), 2),
    "random": RandomProjection(2, seed=3),
}
every_map = pytest.mark.parametrize("name", MAPS)


def fitted(name):
    return clone(MAPS[name]).fit(np.zeros((3, D)))


def steepest(row_map):
    """A direction in which the map stretches most, from its own Jacobian at 0.1."""
    at = np.full(D, 0.1)
    step = 1e-4
    jacobian = np.array(
        [
            (row_map.transform([at + step * e]) - row_map.transform([at]))[0] / step
            for e in np.eye(D)
        ]
    )
    return np.linalg.svd(jacobian.T)[2][0]


@every_map
@pytest.mark.parametrize("r", [1e-9, 0.1, 3.0])
def test_no_distance_grows_by_more_than_declared(name, r):
    row_map = fitted(name)
    stretch = row_map.space_after(RowSpace("records")).from_space("records")
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(400, D)) * 10.0 ** rng.uniform(-3, 3, size=(400, 1))
    away = rng.normal(size=(400, D))
    away[::2] = steepest(row_map)
    moved = rows + r * away / np.linalg.norm(away, axis=1, keepdims=True)
    before = np.linalg.norm(moved - rows, axis=1)
    after = np.linalg.norm(row_map.transform(moved) - row_map.transform(rows), axis=1)
    assert (after <= [stretch.radius(b) for b in before]).all()


@every_map
def test_the_declared_constant_is_reached(name):
    """A twin that declares 1% less is caught."""
    row_map = fitted(name)
    stretch = row_map.space_after(RowSpace("records")).from_space("records")
    row = np.full(D, 0.1)
    moved = row + 1e-3 * steepest(row_map)
    after = np.linalg.norm(row_map.transform([moved]) - row_map.transform([row]))
    assert after > 0.99 * stretch.factor * 1e-3


def test_the_rounding_of_clipped_rows_is_carried():
    """Rows of norm 1.3e6, moved by less than the last digit of their clipped ones."""
    rng = np.random.default_rng(0)
    rows = np.c_[1.3e6 + rng.normal(size=20_000), 1e4 * rng.uniform(1, 2, 20_000)]
    moved = rows + [0.0, 9e-12]
    row_map = ClipRows(1e6).fit(rows)
    space = row_map.space_after(RowSpace("records"))
    assert space.name == "clipped records"
    before = np.linalg.norm(moved - rows, axis=1)
    after = np.linalg.norm(row_map.transform(moved) - row_map.transform(rows), axis=1)
    assert (after > 10 * before + 1e-12).any()  # twin: as if nothing were rounded
    assert after.max() <= space.from_space("records").radius(0.0)


def test_names_of_columns_go_through_the_maps():
    table = pd.DataFrame(np.zeros((3, D)), columns=list("abcd"))
    for name, row_map in MAPS.items():
        names = clone(row_map).fit(table).get_feature_names_out().tolist()
        kept = name in ("clip", "scaler")
        assert names == list("abcd") if kept else names[0].endswith("projection0")
        framed = clone(row_map).set_output(transform="pandas").fit_transform(table)
        assert framed.columns.tolist() == names


def test_division_by_the_norm_has_no_constant():
    near = np.array([[1e-9, 0.0], [-1e-9, 0.0]])
    apart = NormalizeRows().fit_transform(near)
    assert np.linalg.norm(apart[0] - apart[1]) > 1.99
    space = NormalizeRows().space_after(RowSpace("records"))
    assert space.name == "normalized records" and "records" not in space
    with pytest.raises(NotCovered, match="Measure the radius there"):
        space.from_space("records")


@every_map
def test_nothing_is_read_off_the_rows(name):
    rng = np.random.default_rng(2)
    one = clone(MAPS[name]).fit(rng.normal(size=(20, D)))
    two = clone(MAPS[name]).fit(rng.normal(size=(7, D)) * 1e6)
    rows = rng.normal(size=(5, D))
    assert np.array_equal(one.transform(rows), two.transform(rows))


def test_constants_multiply_along_a_chain():
    scaler = PublicScaler(0.0, 0.5).fit(np.zeros((2, D)))
    project = fitted("random")
    space = project.space_after(scaler.space_after(RowSpace("records")))
    assert space.name == "2 random components of cube of records"
    factor = np.linalg.norm(project.matrix_, 2)
    assert space.from_space("records").factor == pytest.approx(2 * factor, rel=1e-6)
    assert space.from_space("cube of records").factor == pytest.approx(factor, rel=1e-6)


def test_a_bound_is_carried_to_earlier_spaces():
    here = PiecewiseLinear(((0.0, 0.1), (1.0, 0.6), (2.0, 0.7)), saturates=True)
    space = RowSpace("a").then("b", 4.0, rounding=0.25)
    there = space.curves(here)["a"]
    for r in (0.0, 0.01, 0.1, 0.1875, 0.3, 0.4375, 5.0):
        exact = here(4.0 * r + 0.25)
        assert exact <= there(r) <= exact * (1 + 1e-9)


def test_wrong_parameters_are_refused():
    rows = np.zeros((3, D))
    for wrong, words in (
        (ClipRows(0.0), "norm_bound must be positive"),
        (ClipRows(1e200), "norm_bound must be from 1e-50 to 1e"),
        (RandomProjection(2, norm_bound=1e-200), "norm_bound must be from 1e-50"),
        (PublicScaler(0.0, 0.0), "high must exceed low"),
        (PublicScaler([0, 0], 1.0), "one per column"),
        (PublicProjection(np.ones((2, 3))), "must be for 4 columns"),
        (PublicProjection(np.zeros((2, 4))), "norm_of_components must be positive"),
        (RandomProjection(0), "n_components must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong.fit(rows)
    with pytest.raises(ValueError, match="at most 3"):
        PublicProjection.pca(np.zeros((3, 5)), 4)
    with pytest.raises(ValueError, match="some rows hold NaN") as refused:
        ClipRows().fit([[0.0, 1.25], [np.nan, 7.5]])
    assert "7.5" not in str(refused.value) and "imputer" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize(
    "estimator",
    [ClipRows(2.0), NormalizeRows(), PublicScaler(-9, 9), RandomProjection(2)],
)
def test_the_contract_of_scikit_learn(estimator):
    for tested, check in estimator_checks_generator(estimator):
        try:
            check(tested)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                raise
