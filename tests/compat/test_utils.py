"""Small helpers, and what happens where a framework is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demur.compat.ball_dp.utils import io, plotting, seeding, torch_utils


def test_files(tmp_path: Path):
    folder = io.ensure_dir(tmp_path / "a" / "b")
    assert folder.is_dir()
    io.write_json(tmp_path / "c" / "x.json", {"a": [1, 2]})
    assert io.read_json(tmp_path / "c" / "x.json") == {"a": [1, 2]}
    io.write_csv_rows(
        tmp_path / "d" / "x.csv", [{"a": 1, "b": 2}], fieldnames=["a", "b"]
    )
    assert (tmp_path / "d" / "x.csv").read_text().split() == ["a,b", "1,2"]
    rows = [{"a": 1, "more": 2}]
    io.write_csv_rows(tmp_path / "d" / "x.csv", rows, fieldnames=["a", "b"])
    assert (tmp_path / "d" / "x.csv").read_text().split() == ["a,b", "1,"]


def test_packages_export_what_the_original_does():
    for package, names in (
        ("attacks", "gaussian_llr llr_attack_predict run_llr_audit_trials"),
        (
            "heads",
            "fit_ridge_prototypes predict_nearest_prototype prototypes_sensitivity_l2"
            " train_softmax_logreg_torch predict_softmax_logreg_torch",
        ),
        (
            "utils",
            "set_global_seed ensure_dir write_json read_json write_csv_rows"
            " save_errorbar_plot save_line_plot",
        ),
    ):
        module = importlib.import_module(f"demur.compat.ball_dp.{package}")
        assert set(module.__all__) == set(names.split())
        assert all(callable(getattr(module, name)) for name in names.split())


@pytest.mark.slow
def test_plots(tmp_path: Path):
    named: dict[str, Any] = {"title": "t", "xlabel": "x", "ylabel": "y"}
    one, two = tmp_path / "p" / "one.png", tmp_path / "p" / "two.png"
    curves = {"ours": ([1.0, 2.0], [0.1, 0.2])}
    plotting.save_errorbar_plot([1.0, 10.0], curves, out_path=one, **named)
    plotting.save_line_plot(np.arange(3), np.arange(3), out_path=two, **named)
    assert one.stat().st_size > 1000 and two.stat().st_size > 1000


def test_seeding():
    seeding.set_global_seed(5)
    first = (np.random.random(), torch.rand(1).item())
    seeding.set_global_seed(5)
    assert first == (np.random.random(), torch.rand(1).item())


def test_deterministic_torch_is_left_alone_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seeding.set_global_seed(5)
    assert not torch.backends.cudnn.deterministic and torch.backends.cudnn.benchmark
    seeding.set_global_seed(5, deterministic_torch=True)
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark


def test_tensors():
    x = torch.ones(2, requires_grad=True)
    assert torch_utils.to_numpy(x).tolist() == [1.0, 1.0]
    assert torch_utils.get_device("cpu") == torch.device("cpu")


_BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "jax", "equinox", "optax"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Absent())
import numpy as np
import demur.adapters
from demur.compat.ball_dp import api, lz, metrics
from demur.compat.ball_dp.heads.prototypes import fit_ridge_prototypes
mus, counts = fit_ridge_prototypes(np.eye(4), [0, 0, 1, 1], num_classes=2, lam=0.1)
api.dp_release_ridge_prototypes_gaussian(mus, counts, r=.1, lam=.1, eps=1., delta=1e-6)
for call in (
    lambda: api.dp_release_torch_model_gaussian(
        None, lz=1.0, r=.1, lam=.1, n=5, eps=1., delta=1e-6),
    lambda: demur.adapters.release_torch,
    lambda: demur.adapters.release_equinox,
    lambda: __import__("demur.compat.ball_dp.heads.logreg_torch"),
    lambda: __import__("demur.compat.ball_dp.heads.softmax_eqx"),
    lambda: __import__("demur.compat.ball_dp.rff"),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""


@pytest.mark.slow
def test_without_frameworks():
    """NumPy parts work, and the others say which extra to install."""
    found = subprocess.run(
        [sys.executable, "-c", _BLOCKED], capture_output=True, text=True, check=True
    )
    lines = found.stdout.splitlines()
    extras = ["torch", "torch", "jax", "torch", "jax", "jax"]
    assert len(lines) == len(extras), found.stdout + found.stderr
    for line, extra in zip(lines, extras, strict=True):
        assert f"pip install 'demur[{extra}]'" in line
