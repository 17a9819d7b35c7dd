"""The networks of the benchmark: tiny, both forms give what the plain method gives."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import jax
import pytest

from demur.training import clipped_grad
from tests.training.clipping.kit import QUICK_TO_COMPILE, distance, length

PATH = Path(__file__).parents[3] / "benchmarks" / "clipping_parts" / "zoo.py"


def load():
    spec = importlib.util.spec_from_file_location("demur_benchmark_zoo", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ZOO = load()
QUICK = ("dlrm", "llama-tied")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.deep)
        for name in ZOO.ZOO
    ],
)
def test_sums_agree(name):
    case = ZOO.build(name, "tiny")
    numbers = tuple(range(1, 1 + len(case.batch)))

    def total(**options):
        grad = clipped_grad(
            case.loss, l2_clip_norm=0.1, batch_argnums=numbers, **options
        )
        program = jax.jit(grad, compiler_options=QUICK_TO_COMPILE)
        return program(case.params, *case.batch, *case.fixed).value

    plain = total(method="vmap")
    assert length(plain) > 0.01
    assert distance(total(memory="fast"), plain) < 2e-6
    # 2^-16 is taken off the clip norm there.
    assert distance(total(memory="ordinary"), plain) < 2e-5


def test_there_are_twelve():
    assert len(ZOO.ZOO) == 12
