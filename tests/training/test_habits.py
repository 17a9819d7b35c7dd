"""The table of habits in docs/trainer.md, and habits that have no file of their own.

Every row of the table names tests that exist.
"""

import ast
import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur import AddOrRemoveOne, Budget, Ledger
from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import NoiseReuse
from demur.training import ClippedSum, Programs, ShapePlan, gaussian_privatizer
from tests.training.kit import make_data, make_params, make_plan, train

DATA = make_data()
ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HABITS = (
    "vmap ensemble sweep optax.chain tree.map accumulation references checkpoint"
    " custom_vjp donat shard_map pmap scan jit average bfloat16 pmean enable_x64"
)


@cache
def names_in(path):
    place = ROOT / path
    tree = ast.parse(place.read_text()) if place.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def check(page):
    table = page.split("## Habits of JAX", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    for habit in HABITS.split():
        assert any(habit in row.split(" | ")[0] for row in rows), habit
    for row in rows:
        tests = NAMED.findall(row)
        assert tests, row
        for path, test in tests:
            assert test in names_in(path), f"{path}::{test}"


def test_every_habit_names_tests_that_exist():
    page = (ROOT / "docs" / "trainer.md").read_text()
    check(page)
    for wrong in (
        page.replace("::test_members_are_refused", "::test_members_are_taken"),
        page.replace("| `pmap` |", "| map |"),
    ):
        with pytest.raises(AssertionError):
            check(wrong)


@pytest.mark.slow
def test_the_average_is_free():
    """It is computed from the released parameters, and costs what the run costs."""
    seen = []
    trained = train(
        make_plan(),
        average=0.9,
        source=Seeded(5),
        callback=lambda report: seen.append(report.params()),
    )
    average = make_params()
    for t, params in enumerate(seen):
        decay = min(0.9, (1.0 + t) / (10.0 + t))
        average = jax.tree.map(
            lambda a, p, d=decay: d * a + (1 - d) * p, average, params
        )
    for name, leaf in trained.average.items():
        np.testing.assert_allclose(leaf, average[name], rtol=1e-5, atol=1e-6)
    plan = make_plan()
    cost = trained.entry.epsilon(plan.unit, 1e-5)
    assert cost == pytest.approx(plan.price(delta=1e-5), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threefry", "lattice"])
def test_a_loop_over_members_with_one_key_is_refused(kind):
    """The key of a payment gives the noise of a step once."""
    act = gaussian_privatizer(1.0, 5, noise=kind, l2_norm_bound=1.0)
    key = NoiseKey(Seeded(1).new_key(), private=False)
    state = act.init(jnp.zeros(3))
    act.update(ClippedSum(jnp.zeros(3), 1.0), state, key=key)
    with pytest.raises(NoiseReuse):
        act.update(ClippedSum(jnp.ones(3) / 2, 1.0), state, key=key)


# -- the thread that calls fit ---------------------------------------------------------


def inside(transform):
    """`fit` inside of a transformation of JAX, over learning rates."""
    ledger = Ledger(Budget(9.0, 1e-5), unit=AddOrRemoveOne(), filter="pure")

    def run(rate):
        optimizer = optax.sgd(rate)
        return train(make_plan(), optimizer=optimizer, ledger=ledger, delta=None).value

    with pytest.raises(TypeError, match=r"inside of jax.jit, vmap.*Nothing was spent"):
        transform(run)
    assert not ledger.entries()


def test_a_run_inside_of_a_transformation_is_not_paid_for():
    inside(lambda run: jax.vmap(run)(jnp.array([0.1, 0.2])))
    inside(lambda run: jax.jit(run)(0.1))
    inside(lambda run: jax.grad(lambda rate: run(rate)["w"].sum())(0.1))
    inside(lambda run: jax.lax.scan(lambda c, r: (c, run(r)), 0, jnp.ones(2)))


def test_steps_that_cannot_be_compiled_are_not_paid_for():
    ledger = Ledger(Budget(9.0, 1e-5), unit=AddOrRemoveOne(), filter="pure")
    with jax.disable_jit(), pytest.raises(ValueError, match="Nothing was spent"):
        train(make_plan(), ledger=ledger, delta=None)
    assert not ledger.entries()


@pytest.mark.slow
def test_a_run_has_the_settings_of_its_thread():
    """Threads of a run saw others: a run in float64 was paid for, and failed."""
    data = {name: rows.astype(rows.dtype.str[1] + "8") for name, rows in DATA.items()}
    with jax.enable_x64(True):
        trained = train(make_plan(), data, params=make_params())
    assert trained.steps == 12
    assert trained.value["w"].dtype == np.float64


def test_programs_are_traced_with_the_settings_of_the_thread():
    seen = []

    def step(x):
        seen.append(jax.config.jax_default_matmul_precision)
        return x @ x

    def shape(size):
        return (jax.ShapeDtypeStruct((size, size), jnp.float32),)

    sizes = ShapePlan((2, 3), None, 1, 0.0, 0.0, 0.0)
    with jax.default_matmul_precision("float32"), Programs(step, sizes, shape) as made:
        assert float(made[2](jnp.ones((2, 2)))[0, 0]) == 2.0
    assert seen == ["float32"] * 2
