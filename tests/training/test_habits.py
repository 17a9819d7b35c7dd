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
import pytest

from demur.core.entropy import NoiseKey, Seeded
from demur.core.errors import NoiseReuse
from demur.training import ClippedSum, gaussian_privatizer
from tests.training.kit import make_params, make_plan, train

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HABITS = (
    "vmap ensemble sweep optax.chain tree.map accumulation references checkpoint"
    " custom_vjp donat shard_map pmap scan jit average bfloat16"
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
