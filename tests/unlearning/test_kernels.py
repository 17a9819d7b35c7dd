"""The compiled loops, and what every mode must do alike, bit for bit."""

import ast
import inspect
import json
import math

import numpy as np
import pytest

from demur.unlearning import make_mode
from demur.unlearning.models import MODES, Mode, kernels, newton_kernels
from demur.unlearning.models.inputs import clipped, with_noise
from tests.unlearning.modes_kit import EVERY_MODE, records

KERNELS = (kernels, newton_kernels)
every_mode = pytest.mark.parametrize("make", EVERY_MODE.values(), ids=EVERY_MODE)


def same(one, two):
    a, b = one.state(), two.state()
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@every_mode
@pytest.mark.parametrize("d", [1, 2, 7, 20, 40])
def test_many_rows_are_single_events_bit_for_bit(make, d):
    X, Y = records(300, d, seed=d)
    one, two, three = make(d), make(d), make(d)
    alone = np.array([one.insert(x, float(y)) for x, y in zip(X, Y, strict=True)])
    assert np.array_equal(alone, two.insert_many(X, Y))
    parts = [
        three.insert_many(X[a:b], Y[a:b]) for a, b in ((0, 1), (1, 140), (140, 300))
    ]
    assert np.array_equal(alone, np.concatenate(parts))
    assert same(one, two) and same(one, three)
    assert one.digest() == two.digest()
    assert np.ptp(alone) > 0.01  # the model does learn


@every_mode
def test_slow_inputs_give_the_same_as_fast_ones(make):
    X, Y = records(40, 5)
    fast, slow = make(5), make(5)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        other = [x.tolist(), np.asfortranarray(x), np.repeat(x, 2)[::2]][i % 3]
        assert fast.insert(x, float(y)) == slow.insert(other, int(y))
    assert same(fast, slow)
    huge = X.copy()
    huge[3] *= 1e200  # its square overflows
    one, many = make(5), make(5)
    if not one.clips:
        for act in (lambda: one.insert(huge[3], 1.0), lambda: one.insert_many(huge, Y)):
            with pytest.raises(ValueError, match="beyond feature_bound"):
                act()
        assert same(one, many)
        return
    for x, y in zip(huge, Y, strict=True):
        one.insert(x, float(y))
    many.insert_many(huge, Y)
    assert same(one, many)
    assert np.isfinite(one.published()).all()


def test_huge_rows_are_clipped_alike_on_every_way_in():
    """Where squares are large but finite, kernels clip the row themselves."""
    rng = np.random.default_rng(0)
    for row in rng.normal(size=(200, 6)) * 1e120:
        assert np.array_equal(clipped(row, 1.0), kernels.clip(row, 1.0))


@every_mode
def test_a_checked_record_is_the_same_record(make):
    X, Y = records(50, 6, seed=2)
    raw, checked = make(6), make(6)
    for x, y in zip(X, Y, strict=True):
        row, target = raw.check(x, y)
        again, _ = raw.check(row, target)
        assert np.array_equal(row, again)
        if raw.clips:
            assert np.linalg.norm(row) <= raw.norm_bound * (1 + 1e-12)
        else:
            assert np.array_equal(row, x)
        checked.insert(row, target)
        raw.insert(x, float(y))
    assert same(raw, checked)


@every_mode
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1.0, 2.0], 1.0, "shape"),
        ([[0.1, 0.2, 0.3]], 1.0, "shape"),
        ([0.1, math.nan, 0.3], 1.0, "finite"),
        ([0.1, math.inf, 0.3], 1.0, "finite"),
        (["a", "b", "c"], 1.0, "numbers"),
        ([0.1, 0.2, 0.3], math.nan, "finite"),
        ([0.1, 0.2, 0.3], -math.inf, "finite"),
        ([0.1, 0.2, 0.3], "1", "number"),
    ],
)
def test_bad_records_are_refused_and_change_nothing(make, x, y, message):
    mode = make(3)
    mode.insert_many(*records(20, 3))
    before = mode.state()
    for form in (x, np.array(x) if message != "numbers" else x):
        with pytest.raises((ValueError, TypeError), match=message):
            mode.insert(form, y)
    rows = np.array([[0.1, 0.2, 0.3], [0.1, math.nan, 0.2]])
    with pytest.raises(ValueError, match="row 1"):
        mode.insert_many(rows, [1.0, 1.0])
    with pytest.raises(ValueError, match="Y must hold"):
        mode.insert_many(rows[:1], [1.0, 1.0])
    with pytest.raises(ValueError, match="shape"):
        mode.insert_many(np.zeros((2, 4)), [1.0, 1.0])
    assert all(np.array_equal(before[k], v) for k, v in mode.state().items())
    assert mode.insert_many(np.zeros((0, 3)), []).shape == (0,)


@pytest.mark.parametrize("name", ["ogd, logistic", "logistic"])
def test_labels_are_zero_and_one_or_minus_one_and_one(name):
    one, two, three = (EVERY_MODE[name](2) for _ in range(3))
    X, Y = records(30, 2)
    one.insert_many(X, Y)
    two.insert_many(X, 2 * Y - 1)
    for x, y in zip(X, Y, strict=True):
        three.insert(x, bool(y))
    assert same(one, two) and same(one, three)
    with pytest.raises(ValueError, match="class"):
        one.insert([0.1, 0.1], 0.5)
    with pytest.raises(ValueError, match="class"):
        one.insert_many([[0.1, 0.1]], [2.0])


@every_mode
def test_a_restored_mode_goes_on_bit_for_bit(make):
    X, Y = records(200, 40, seed=3)
    mode = make(40)
    mode.insert_many(X[:150], Y[:150])
    noise = None if mode.exact else np.full(40, 1e-3)
    mode.delete(X[3], Y[3], noise)
    twin = mode.fresh()
    assert type(twin) is type(mode) and twin.digest() != mode.digest()
    twin.restore(mode.state())
    assert twin.digest() == mode.digest()
    state = mode.state()
    for array in state.values():  # copies, never views
        array[...] = 0
    assert twin.digest() == mode.digest()
    for world in (mode, twin):
        world.skip()
        world.insert_many(X[150:], Y[150:])
        world.delete(X[7], Y[7], noise)
        world.forget_nothing(noise)
    assert same(mode, twin)
    assert np.array_equal(mode.published(), twin.published())
    assert mode.predict(X[0]) == twin.predict(X[0])
    with pytest.raises(ValueError):
        make(39).restore(mode.state())


@every_mode
def test_configuration_is_plain_json_and_makes_the_mode_again(make):
    mode = make(4)
    config = json.loads(json.dumps(mode.config()))
    assert make_mode(mode.name, 4, **config).digest() == mode.digest()
    assert mode.digest() != make(5).digest()


def test_modes_by_name():
    assert set(MODES) == {"ogd", "ridge", "standardised_ridge", "logistic", "seed"}
    with pytest.raises(ValueError, match="one of"):
        make_mode("sgd", 3)
    with pytest.raises(TypeError, match="'ridge' has no option 'lam': it has"):
        make_mode("ridge", 3, lam=1.0)
    with pytest.raises(ValueError, match="dimension"):
        make_mode("ogd", 0)


@every_mode
def test_deletions_want_what_they_need_and_change_nothing_without_it(make):
    mode: Mode = make(3)
    X, Y = records(20, 3)
    mode.insert_many(X, Y)
    before = mode.digest()
    noise = np.zeros(3)
    wrong = [np.zeros(2), np.array([0.0, math.nan, 0.0])]
    for bad in [noise] if mode.exact else [None, *wrong]:
        with pytest.raises(ValueError):
            mode.delete(X[0], Y[0], bad)
    good = None if mode.exact else noise
    if mode.needs_record:
        with pytest.raises(ValueError, match="needs the record"):
            mode.delete(None, None, good)
        with pytest.raises(ValueError, match="were handed in"):
            mode.delete(X[:2], Y[:2], good)
        with pytest.raises(ValueError, match="are live"):
            mode.delete(np.tile(X, (2, 1)), np.tile(Y, 2), good, records=40)
    with pytest.raises((ValueError, TypeError)):
        mode.delete(X[0], Y[0], good, records=0)
    with pytest.raises((ValueError, TypeError)):
        mode.shift_bound(0)
    assert mode.digest() == before


def test_sums_of_products_keep_their_error_bound():
    rng = np.random.default_rng(0)
    for n in (1, 3, 4, 17, 1000):
        a = rng.normal(size=n) * 10.0 ** rng.uniform(-8, 8, size=n)
        b = rng.normal(size=n)
        exact = math.fsum(
            float(x) for pair in zip(a, b, strict=True) for x in _product(*pair)
        )
        bound = (n / 4 + 4) * 2.0**-53 * np.linalg.norm(a) * np.linalg.norm(b)
        assert abs(kernels._dot(a, b, n) - exact) <= bound


def _product(a, b):
    """a * b as two floats without error (Dekker's splitting)."""
    high = a * b
    a1 = a * 134217729.0
    a1 = a1 - (a1 - a)
    b1 = b * 134217729.0
    b1 = b1 - (b1 - b)
    a2, b2 = a - a1, b - b1
    return high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2


def test_clipping_is_a_projection_that_leaves_clipped_rows_alone():
    rng = np.random.default_rng(1)
    for scale in (1e-300, 1e-3, 1.0, 1e3, 1e160, 1e300):
        row = rng.normal(size=6) * scale
        short = clipped(row, 1.5)
        assert np.linalg.norm(short) <= 1.5 * (1 + 1e-12)
        assert clipped(short, 1.5) is short
        big = row / np.max(np.abs(row))
        cosine = big @ short / np.linalg.norm(big) / max(np.linalg.norm(short), 1e-320)
        assert cosine == pytest.approx(1.0) or scale == 1e-300


def test_noise_on_a_grid_is_exact():
    rng = np.random.default_rng(2)
    grid = 2.0**-20
    value, noise = rng.normal(size=50), rng.integers(-(2**30), 2**30, size=50) * grid
    found = with_noise(value, noise, grid, 50)
    assert np.array_equal(found / grid, np.rint(value / grid) + noise / grid)
    assert not np.array_equal(with_noise(value, noise, None, 50), found)
    with pytest.raises(ValueError, match="power of two"):
        with_noise(value, noise, 0.3, 50)
    with pytest.raises(ValueError, match="too large"):
        with_noise(value * 1e30, noise, grid, 50)


def compiled(module):
    """The functions of a kernel module, as they are written."""
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("module", KERNELS, ids=lambda module: module.__name__)
def test_kernels_are_self_contained(module):
    """numba's cache does not notice when a function in another file changes."""
    tree = ast.parse(inspect.getsource(module))
    imported = [
        getattr(node, "module", None) or node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not [name for name in imported if name.startswith("demur")]


def test_what_kernels_share_is_the_same_code():
    """Each module has its own copies, and they must not drift apart."""
    known = {}
    shared = 0
    for module in KERNELS:
        for name, node in compiled(module).items():
            if not name.startswith("_"):
                continue
            text = ast.dump(node)
            shared += name in known
            assert known.setdefault(name, text) == text, (module.__name__, name)
    assert shared == 3  # _dot, _sigmoid, _scale
