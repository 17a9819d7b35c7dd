"""Each code block of the README runs with its import lines changed, and is private."""

from __future__ import annotations

import logging
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.flatten_util import ravel_pytree

from demur.adapters.equinox.release import train_head_eqx
from demur.compat.ball_dp import api, lz
from demur.compat.ball_dp.heads import (
    logreg_eqx,
    logreg_torch,
    sqhinge_eqx,
    sqhinge_torch,
)
from demur.convex import HeadForm
from tests.compat import seed_blocks as blocks

N, D, K = 1500, 8, 3
Space = dict[str, Any]


def run(block: str, **free) -> Space:
    """The block with `quantbayes.ball_dp` renamed, and its free variables supplied."""
    changed = [
        line.replace("quantbayes.ball_dp", "demur.compat.ball_dp")
        if line.startswith(("import ", "from "))
        else line
        for line in block.splitlines()
    ]
    space = {"np": np} | free
    exec(compile("\n".join(changed), "<block>", "exec"), space)
    return space


@pytest.fixture(scope="module")
def data() -> Space:
    """Three well separated classes in 8 dimensions, raw and of any length."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, K, size=N + 300)
    centres = 4.0 * np.eye(K, D)
    X = centres[y] + rng.normal(size=(N + 300, D))
    return {
        "X": X[:N],
        "y": y[:N],
        "Xtr": X[:N],
        "ytr": y[:N],
        "Xte": X[N:],
        "yte": y[N:],
    }


@pytest.fixture(scope="module")
def ready(data) -> Space:
    """The state the first two blocks leave: normalised rows, B = 1, and a radius."""
    after = run(blocks.NORMALIZE, Xtr=data["Xtr"], Xte=data["Xte"])
    r = run(blocks.RADIUS, X=data["X"], y=data["y"])["r"]
    return data | {"Xtr": after["Xtr"], "Xte": after["Xte"], "B": after["B"], "r": r}


@pytest.fixture(scope="module")
def binary(ready) -> Space:
    return ready | {"ytr": ready["ytr"] == 0, "yte": 2 * (ready["yte"] == 0) - 1}


def accuracy(space: Space, truth) -> float:
    return float(np.mean(np.asarray(space["yhat"]) == truth))


def test_normalize(data):
    after = run(blocks.NORMALIZE, Xtr=data["Xtr"], Xte=data["Xte"])
    norms = np.linalg.norm(after["Xtr"].astype(np.float64), axis=1)
    assert after["Xtr"].dtype == np.float32
    assert norms.max() <= 1.0 and norms.min() > 1.0 - 1e-6


def test_clip(data):
    after = run(blocks.CLIP, Xtr=data["Xtr"], Xte=data["Xte"])
    norms = np.linalg.norm(after["Xtr"].astype(np.float64), axis=1)
    assert norms.max() <= 2.0 and after["Xtr"].dtype == np.float32
    inside = np.linalg.norm(data["Xtr"], axis=1) < 1.9
    np.testing.assert_array_equal(
        after["Xtr"][inside], data["Xtr"][inside].astype(np.float32)
    )


def test_radius_policy(data):
    after = run(blocks.RADIUS, X=data["X"], y=data["y"])
    policy = after["policy"]
    assert 0 < after["r"] < policy.r_std == 2.0
    assert list(policy.r_values) == [10.0, 25.0, 50.0, 75.0, 90.0]
    assert list(policy.r_values.values()) == sorted(policy.r_values.values())
    assert policy.estimated and policy.bound_check_passed


@pytest.mark.slow
def test_equinox_svm(binary):
    lam = 1e-2
    start = sqhinge_eqx.SquaredHingeSVMEqx(D, key=jax.random.key(0))
    signs = np.where(binary["ytr"], 1, -1)
    form = HeadForm("squared_hinge", lam=lam, norm_bound=1.0)
    trained = train_head_eqx(start, binary["Xtr"], signs, form)
    after = run(
        blocks.EQUINOX_SVM,
        **binary,
        **_frameworks(),
        lam=lam,
        model_trained=trained,
        lz_squared_hinge_bound=lz.lz_squared_hinge_bound,
        dp_release_erm_params_gaussian=api.dp_release_erm_params_gaussian,
        predict_eqx_svm=sqhinge_eqx.predict_eqx_svm,
    )
    assert after["theta_private"].dtype == np.float32
    assert not np.array_equal(after["theta_private"], after["theta_hat"])
    exact = sqhinge_eqx.predict_eqx_svm(trained, binary["Xte"])
    assert np.mean(exact == binary["yte"]) > 0.95
    assert set(np.unique(after["yhat"])) <= {-1, 1}


@pytest.mark.slow
def test_torch_svm(binary, caplog):
    with caplog.at_level(logging.WARNING):
        after = run(
            blocks.TORCH_SVM,
            **binary,
            SquaredHingeTorchConfig=sqhinge_torch.SquaredHingeTorchConfig,
            train_squared_hinge_svm_torch=sqhinge_torch.train_squared_hinge_svm_torch,
            lz_squared_hinge_bound=lz.lz_squared_hinge_bound,
            dp_release_torch_model_gaussian=api.dp_release_torch_model_gaussian,
            predict_squared_hinge_svm_torch=(
                sqhinge_torch.predict_squared_hinge_svm_torch
            ),
        )
    assert after["metrics"]["train_acc"] > 0.95
    assert set(np.unique(after["yhat"])) <= {-1, 1}
    assert ("no GPU" in caplog.text) != torch.cuda.is_available()
    weight = after["model"].linear.weight
    assert str(weight.dtype) == "torch.float64"


def test_equinox_logistic(binary):
    lam = 1e-1
    start = logreg_eqx.LogisticRegressorEqx(D, key=jax.random.key(0))
    form = HeadForm("logistic", lam=lam, norm_bound=1.0)
    trained = train_head_eqx(start, binary["Xtr"], binary["ytr"], form)
    before = np.asarray(trained.w)
    after = run(
        blocks.EQUINOX_LOGISTIC,
        **binary,
        lam=lam,
        model_trained=trained,
        lz_logistic_binary_bound=lz.lz_logistic_binary_bound,
        dp_release_eqx_model_gaussian=api.dp_release_eqx_model_gaussian,
    )
    assert type(after["model_private"]) is type(trained)
    assert not np.array_equal(np.asarray(after["model_private"].w), before)
    np.testing.assert_array_equal(np.asarray(trained.w), before)


@pytest.mark.slow
def test_torch_softmax(ready):
    after = run(
        blocks.TORCH_SOFTMAX,
        **ready,
        K=K,
        lam=1.0,
        LogRegTorchConfig=logreg_torch.LogRegTorchConfig,
        train_softmax_logreg_torch=logreg_torch.train_softmax_logreg_torch,
        lz_softmax_linear_bound=lz.lz_softmax_linear_bound,
        dp_release_torch_model_gaussian=api.dp_release_torch_model_gaussian,
        predict_softmax_logreg_torch=logreg_torch.predict_softmax_logreg_torch,
    )
    assert after["metrics"]["train_acc"] > 0.95
    assert accuracy(after, ready["yte"]) > 0.9


def test_prototypes(ready):
    after = run(blocks.PROTOTYPES, **ready)
    assert accuracy(after, ready["yte"]) > 0.9
    assert after["mus_private"].shape == (K, D)
    assert not np.allclose(after["mus_private"], after["mus"], atol=1e-9)


def test_every_block_says_that_its_radius_was_estimated(ready):
    dp = run(blocks.PROTOTYPES, **ready)["dp"]
    assert any("radius" in mark for mark in dp["conditional"])
    assert "CONDITIONAL on bounds estimated from the data" in dp["statement"]


# What a reader imports for the blocks that have no import lines of their own.
_IMPORTS = """
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from quantbayes.ball_dp.api import *
from quantbayes.ball_dp.heads.logreg_torch import *
from quantbayes.ball_dp.heads.sqhinge_eqx import *
from quantbayes.ball_dp.heads.sqhinge_torch import *
from quantbayes.ball_dp.lz import *
"""


@pytest.mark.slow
def test_the_text_from_top_to_bottom(data):
    """One session, one namespace: each block finds what the blocks before it left."""
    two = data["ytr"] == 0
    space = {
        "X": data["Xtr"],
        "y": two.astype(np.int64),
        "Xtr": data["Xtr"],
        "ytr": two.astype(np.int64),
        "Xte": data["Xte"],
        "lam": 1e-1,
        "K": 2,
    }
    releases: list[Space] = []

    def go(block: str) -> None:
        space.pop("dp", None)
        space.pop("out", None)
        space.update(run(block, **space))
        report = space.get("dp", space.get("out", {}))
        releases.extend([report.get("dp_report", report)] if report else [])

    def trained(head: Any, loss: str) -> Any:
        form = HeadForm(loss, lam=space["lam"], norm_bound=1.0)
        return train_head_eqx(head, space["Xtr"], two, form)

    for block in (_IMPORTS, blocks.NORMALIZE, blocks.RADIUS):
        go(block)
    svm = sqhinge_eqx.SquaredHingeSVMEqx(D, key=jax.random.key(0))
    space["model_trained"] = trained(svm, "squared_hinge")
    for block in (blocks.EQUINOX_SVM, blocks.TORCH_SVM):
        go(block)
        assert set(np.unique(space["yhat"])) <= {-1, 1}
    logistic = logreg_eqx.LogisticRegressorEqx(D, key=jax.random.key(0))
    space["model_trained"] = trained(logistic, "logistic")
    for block in (blocks.EQUINOX_LOGISTIC, blocks.TORCH_SOFTMAX, blocks.PROTOTYPES):
        go(block)
    assert accuracy(space, data["yte"] == 0) > 0.9
    assert len(releases) == 5
    for report in releases:
        assert report["private"] and report["sigma"] > 0
        assert any("radius" in mark for mark in report["conditional"])
        assert report["statement"].startswith("Released")


def _frameworks() -> Space:
    return {"eqx": eqx, "jax": jax, "jnp": jnp, "ravel_pytree": ravel_pytree}
