"""Metrics, bounds, radii, bundles and their files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import demur as dm
from demur.compat.ball_dp import adjacency, api, metrics, radius
from demur.core.errors import NotPrivate
from tests.adapters import kit


def test_metrics():
    assert metrics.l2_dist([1.0, 2.0], [4.0, 6.0]) == 5.0
    np.testing.assert_allclose(metrics.l2_norms([[3.0, 4.0], [0.0, 0.0]]), [5.0, 0.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_hold_after_rounding(dtype):
    rows = np.random.default_rng(0).normal(size=(3000, 37)).astype(dtype)
    clipped = metrics.clip_l2_rows(rows, 1.3)
    normal = metrics.maybe_l2_normalize(rows, True)
    for found, bound in ((clipped, 1.3), (normal, 1.0)):
        assert found.dtype == dtype
        assert np.linalg.norm(found.astype(np.longdouble), axis=1).max() <= bound
        assert np.linalg.norm(found.astype(np.float64), axis=1).max() > bound - 1e-5


def test_rows_that_need_nothing_stay():
    rows = np.array([[0.1, 0.2], [0.0, 0.0]], dtype=np.float32)
    np.testing.assert_array_equal(metrics.clip_l2_rows(rows, 1.0), rows)
    np.testing.assert_array_equal(metrics.maybe_l2_normalize(rows, False), rows)
    assert not metrics.maybe_l2_normalize(rows, True)[1].any()


def test_bad_rows():
    with pytest.raises(ValueError, match="max_norm"):
        metrics.clip_l2_rows([[1.0]], 0.0)
    with pytest.raises(ValueError, match="finite|NaN"):
        metrics.clip_l2_rows([[np.nan]], 1.0)


def test_adjacency():
    ball = adjacency.BallAdjacency(metrics.l2_dist, 1.0)
    assert ball.is_neighbor_record([0.0], [1.0])
    assert not ball.is_neighbor_record([0.0], [1.1])
    assert ball.unit("minilm") == dm.Ball(1.0, space="minilm")
    with pytest.raises(AttributeError):
        ball.r = 2.0  # type: ignore[misc]


def test_nearest_neighbours_against_brute_force():
    X, y = kit.rows(), kit.labels("softmax")
    found = radius.within_class_nn_distances(X, y, num_classes=kit.K, per_class=1000)
    wanted = []
    for label in range(kit.K):
        own = X[y == label]
        apart = np.linalg.norm(own[:, None] - own, axis=2) + 9.0 * np.eye(len(own))
        wanted += apart.min(axis=1).tolist()
    np.testing.assert_allclose(np.sort(found), np.sort(wanted), rtol=1e-5)
    few = radius.within_class_nn_distances(X, y, num_classes=kit.K, per_class=20)
    assert few.dtype == np.float32 and few.size == 20 * kit.K
    again = radius.within_class_nn_distances(X, y, num_classes=kit.K, per_class=20)
    np.testing.assert_array_equal(few, again)


def test_nearest_pairs_and_their_tables():
    X, y = kit.rows(), kit.labels("softmax")
    X = np.vstack([X, X[:3], X[:3]])  # three equal rows: none is its own neighbour
    y = np.concatenate([y, y[:3], y[:3]])
    y[7] = 5  # a class of one record has no pair
    pairs = radius.within_class_nn_pairs(X, y, num_classes=6, per_class=30, seed=4)
    distances = radius.within_class_nn_distances(
        X, y, num_classes=6, per_class=30, seed=4
    )
    np.testing.assert_array_equal(pairs.dist, distances)
    assert (pairs.i != pairs.j).all() and 7 not in pairs.i
    assert (y[pairs.i] == pairs.cls).all() and (y[pairs.j] == pairs.cls).all()
    apart = np.linalg.norm(X[pairs.i] - X[pairs.j], axis=1)
    np.testing.assert_allclose(apart, pairs.dist, atol=1e-6)
    # The sample is the original's: one draw for each class that has two records.
    rng = np.random.default_rng(4)
    drawn = [
        rng.choice(np.flatnonzero(y == c), min(30, int((y == c).sum())), replace=False)
        for c in range(6)
        if (y == c).sum() > 1
    ]
    np.testing.assert_array_equal(pairs.i, np.concatenate(drawn))
    table = radius.per_class_tail_stats_from_nn_pairs(pairs, r=0.2, thresholds=(1.5,))
    tails = [float(str(row["mult_p99"])) for row in table]
    assert tails == sorted(tails, reverse=True) and len(table) == kit.K
    first = distances[pairs.cls == table[0]["class"]]
    assert table[0]["nn_med"] == pytest.approx(np.median(first))
    assert table[0]["frac_mult_gt_1.5"] == np.mean(first / 0.2 > 1.5)
    assert table[0]["n_pairs"] == len(first)
    far = radius.top_outlier_pairs(pairs, top_k=3)
    assert [row["dist"] for row in far] == sorted(distances, reverse=True)[:3]
    assert set(far[0]) == {"i", "j", "class", "dist"}


def test_percentiles_and_coverage():
    radii = radius.radii_from_percentiles([3.0, 1.0, 2.0], [0, 50, 100])
    assert radii == {0.0: 1.0, 50.0: 2.0, 100.0: 3.0}
    at, covered = radius.coverage_curve([3.0, 1.0, 2.0, 2.0], [0.5, 2.0, 9.0])
    np.testing.assert_allclose(at, [0.5, 2.0, 9.0])
    np.testing.assert_allclose(covered, [0.0, 0.75, 1.0])


@pytest.mark.parametrize(
    ("mode", "B"), [("public", 1.5), ("max", 1.0), ("quantile", 0.9)]
)
def test_policy_modes(mode, B):
    X, y = kit.rows(), kit.labels("softmax")
    policy = api.compute_radius_policy(
        X, y, B_mode=mode, B_public=1.5, B_quantile=0.5, percentiles=(50,)
    )
    assert policy.r_std == 2 * policy.B
    assert policy.bound_check_passed == (mode == "public")
    assert policy.max_norm == pytest.approx(1.0, abs=1e-9)
    assert set(policy.nn_dists_summary) == {
        "nn_min",
        "nn_med",
        "nn_p95",
        "nn_max",
        "n_nn",
    }
    if mode != "quantile":
        assert policy.B == pytest.approx(B, abs=1e-9)


def test_bad_policies():
    X, y = kit.rows(), kit.labels("softmax")
    with pytest.raises(ValueError, match="B_public"):
        api.compute_radius_policy(X, y)
    with pytest.raises(ValueError, match="norm"):
        api.compute_radius_policy(X, y, B_public=0.5)
    api.compute_radius_policy(X, y, B_public=0.5, check_public_bound=False)
    with pytest.raises(ValueError, match="B_mode"):
        api.compute_radius_policy(X, y, B_mode="median")  # type: ignore[arg-type]


def test_a_quantile_needs_a_public_grid():
    with pytest.raises(NotPrivate, match="grid"):
        radius.dp_quantile_exponential_mechanism([1.0, 2.0], 0.5, 1.0)


def test_a_quantile_between_public_ends():
    values = np.linspace(0.0, 2.0, 501)
    found = radius.dp_quantile_exponential_mechanism(
        values, 0.25, 5.0, lo=0.0, hi=2.0, grid_size=21
    )
    assert found in np.linspace(0.0, 2.0, 21) and abs(found - 0.5) < 0.11
    with pytest.raises(NotPrivate, match="lo= and hi="):
        radius.dp_quantile_exponential_mechanism(values, 0.5, 1.0, lo=0.0)


@pytest.mark.slow
def test_a_quantile_from_a_public_grid():
    values = np.random.default_rng(0).uniform(0.0, 2.0, size=2000)
    grid = np.linspace(0.0, 2.0, 41)
    found = [
        radius.dp_quantile_exponential_mechanism(values, 0.25, 1.0, grid=grid)
        for _ in range(20)
    ]
    assert set(found) <= set(grid.tolist())
    assert max(abs(f - 0.5) for f in found) < 0.11
    one, two = (
        radius.dp_quantile_exponential_mechanism(
            values, 0.5, 0.01, grid=grid, rng=dm.Seeded(3)
        )
        for _ in range(2)
    )
    assert one == two


def test_a_quantile_is_charged():
    ledger = dm.Ledger(dm.Budget(1.0), unit=dm.ReplaceOne())
    call: dict[str, Any] = {"grid": [0.5, 1.0], "ledger": ledger}
    radius.dp_quantile_exponential_mechanism([0.1], 0.5, 0.7, **call)
    assert ledger.epsilon() == pytest.approx(0.7)
    with pytest.raises(dm.BudgetExceeded):
        radius.dp_quantile_exponential_mechanism([0.1], 0.5, 0.7, **call)


def bundle() -> api.EmbeddingBundle:
    rng = np.random.default_rng(0)
    return api.EmbeddingBundle(
        Ztr=rng.normal(size=(5, 2)).astype(np.float32),
        ytr=np.arange(5),
        Zte=rng.normal(size=(3, 2)).astype(np.float32),
        yte=np.arange(3),
        meta={"l2_normalize": True, "shape": (5, 2), "note": "ü"},
    )


def test_bundles_round_trip(tmp_path: Path):
    path = tmp_path / "new" / "bundle.npz"
    kept = bundle()
    api.save_embeddings_npz(kept, path)
    found = api.load_embeddings_npz(path)
    for name in ("Ztr", "ytr", "Zte", "yte"):
        np.testing.assert_array_equal(getattr(found, name), getattr(kept, name))
    assert found.meta == {"l2_normalize": True, "shape": [5, 2], "note": "ü"}
    assert found.Ztr.dtype == np.float32 and found.ytr.dtype == np.int64


class Payload:
    """What a pickle could do on loading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_a_pickle_in_a_file_is_not_run(tmp_path: Path):
    marker, path = tmp_path / "ran", tmp_path / "original.npz"
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # the payload works ...
    marker.unlink()
    kept = bundle()
    np.savez(
        path,
        Ztr=kept.Ztr,
        ytr=kept.ytr,
        Zte=kept.Zte,
        yte=kept.yte,
        meta=np.array([Payload(marker)], dtype=object),
    )
    found = api.load_embeddings_npz(path)
    assert not marker.exists()  # ... and was not run
    assert "pickle" in str(found.meta["meta"])
    np.testing.assert_array_equal(found.Ztr, kept.Ztr)


def test_pickled_arrays_are_refused(tmp_path: Path):
    marker, path = tmp_path / "ran", tmp_path / "bad.npz"
    evil = np.array([Payload(marker)], dtype=object)
    np.savez(path, Ztr=evil, ytr=[0], Zte=[[0.0]], yte=[0])
    with pytest.raises(ValueError, match="allow_pickle"):
        api.load_embeddings_npz(path)
    assert not marker.exists()
    with pytest.raises(TypeError, match="Ztr must hold numbers"):
        api.save_embeddings_npz(
            api.EmbeddingBundle(evil, evil, evil, evil, {}), tmp_path / "x.npz"
        )
    np.savez(path, Ztr=[[0.0]])
    with pytest.raises(ValueError, match="lacks ytr"):
        api.load_embeddings_npz(path)


def inputs(n: int) -> torch.Tensor:
    return torch.arange(4.0 * n).reshape(n, 4) + 1.0


def loader(n: int = 10) -> Any:
    return DataLoader(TensorDataset(inputs(n), torch.arange(n) % 2), batch_size=4)


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def test_embedding_loaders():
    found = api.embed_torch_dataloaders(
        train_loader=loader(10), test_loader=loader(6), encoder=encoder(), device="cpu"
    )
    assert found.Ztr.shape == (10, 3) and found.Zte.shape == (6, 3)
    assert found.Ztr.dtype == np.float32 and found.ytr.dtype == np.int64
    assert found.meta["Ztr_shape"] == (10, 3)
    with torch.no_grad():
        wanted = encoder()(inputs(10)).numpy()
    np.testing.assert_allclose(found.Ztr, wanted, rtol=1e-5)


def test_embeddings_are_bounded():
    Z, _, meta = api.embed_torch_loader(
        loader=loader(), encoder=encoder(), device="cpu", l2_clip_norm=0.5
    )
    assert np.linalg.norm(Z.astype(np.float64), axis=1).max() <= 0.5
    assert meta["l2_clip_norm"] == 0.5
    Z, twice, y, meta = api.embed_torch_loader_aug_pairs(
        loader=loader(),
        encoder=encoder(),
        augment_fn=lambda x: 2.0 * x,
        device="cpu",
        l2_normalize=True,
        encode_fn=lambda x: (x, "more"),
    )
    np.testing.assert_allclose(Z, twice, rtol=1e-5)
    assert np.linalg.norm(Z.astype(np.float64), axis=1).max() <= 1.0
    assert meta["Z_aug_shape"] == (10, 4) and y.tolist() == [0, 1] * 5


def test_an_empty_loader():
    with pytest.raises(ValueError, match="yielded nothing"):
        api.embed_torch_loader(loader=[], encoder=encoder(), device="cpu")
