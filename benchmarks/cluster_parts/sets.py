"""Public sets of points of the unit cube, real and made, for benchmarks/cluster.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import (
    load_digits,
    load_iris,
    load_sample_image,
    load_wine,
    make_blobs,
)

DATA = Path(os.environ.get("DEMUR_DATA", "../shared/data"))


@dataclass(frozen=True)
class Task:
    """Points of the unit cube, and what k-means makes of them without noise."""

    name: str
    points: np.ndarray
    k: int

    @cached_property
    def best(self) -> float:
        found = KMeans(self.k, n_init=10, random_state=0).fit(self.points)
        return float(found.inertia_)

    def floor(self, epsilon: float) -> float:
        return 1 + self.k * self.points.shape[1] ** 2 / (epsilon**2 * self.best)


def scaled(name: str, X: np.ndarray, k: int) -> Task:
    low, high = X.min(axis=0), X.max(axis=0)
    return Task(name, (X - low) / np.where(high > low, high - low, 1.0), k)


def mixed(
    name: str, centers: np.ndarray, weights: list[float], width: float, n: int
) -> Task:
    """Round clusters of one width at given centres, clipped to the cube."""
    rng = np.random.default_rng(len(name))
    shares = np.array(weights) / np.sum(weights)
    which = rng.choice(len(centers), n, p=shares)
    drawn = centers[which] + width * rng.normal(size=(n, centers.shape[1]))
    return Task(name, np.clip(drawn, 0.0, 1.0), len(centers))


# -- sets of the first round -----------------------------------------------------------


def blobs(n: int) -> Task:
    X, _ = make_blobs(n, 2, centers=3, cluster_std=0.5, random_state=42)
    return scaled(f"blobs, n = {n:,}", X, 3)


def china(n: int) -> Task:
    pixels = load_sample_image("china.jpg").reshape(-1, 3) / 255.0
    chosen = np.random.default_rng(0).choice(len(pixels), n, replace=False)
    return Task(f"china.jpg, {n:,} pixels", pixels[chosen], 8)


def adult() -> Task:
    with np.load(DATA / "adult.npz") as data:
        # Six numeric columns, scaled by public ranges.
        points = np.clip(data["Xtr"][:, :6].astype(np.float64), 0.0, 1.0)
    return Task("Adult, 6 numbers", points, 5)


def other_blobs(state: int, k: int, width: float) -> Task:
    """Blobs like those of the first round at other places, scaled to the cube."""
    X, _ = make_blobs(300, 2, centers=k, cluster_std=width, random_state=state)
    return scaled(f"{k} other blobs of width {width:g}, n = 300", X, k)


def inner(k: int, n: int = 300) -> Task:
    """Round clusters that fill a part of the cube, as public bounds leave them."""
    centers = 0.25 + 0.5 * np.random.default_rng(k).random((k, 2))
    return mixed(f"{k} inner clusters, n = {n}", centers, [1.0] * k, 0.05, n)


def iris() -> Task:
    return scaled("iris", load_iris().data, 3)


def wine() -> Task:
    return scaled("wine", load_wine().data, 3)


def digits() -> Task:
    return scaled("digits, d = 64", load_digits().data, 10)


# -- families --------------------------------------------------------------------------


def minority(n: int = 30_120) -> Task:
    centers = np.array([[0.25, 0.25], [0.7, 0.3], [0.3, 0.75], [0.85, 0.85]])
    rest = (1 - 1 / 120) / 3
    return mixed("minority of 1 in 120", centers, [rest] * 3 + [1 / 120], 0.05, n)


def unbalanced(n: int) -> Task:
    centers = np.array([[0.2, 0.3], [0.75, 0.7], [0.8, 0.15]])
    return mixed(f"unbalanced 100:10:1, n = {n:,}", centers, [100, 10, 1], 0.06, n)


def anisotropic(n: int) -> Task:
    X, _ = make_blobs(n, 2, centers=4, cluster_std=0.6, random_state=4)
    turned = X @ np.array([[0.6, -0.6], [-0.4, 0.8]])
    return scaled(f"anisotropic, n = {n:,}", turned, 4)


def fifteen(n: int = 15_000) -> Task:
    grid = np.array([[i / 4, j / 2] for i in range(5) for j in range(3)]) * 0.8 + 0.1
    return mixed("fifteen clusters", grid, [1.0] * 15, 0.03, n)


def uniform(n: int) -> Task:
    points = np.random.default_rng(6).random((n, 2))
    return Task(f"uniform, n = {n:,}", points, 5)


def many_dimensions(d: int, n: int = 3000) -> Task:
    rng = np.random.default_rng(d)
    centers = np.clip(0.5 + 0.12 * rng.normal(size=(6, d)), 0.1, 0.9)
    return mixed(f"six clusters, d = {d}, n = {n:,}", centers, [1.0] * 6, 0.1, n)


def separated(d: int, n: int) -> Task:
    centers = 0.1 + 0.8 * np.random.default_rng(d).random((4, d))
    return mixed(f"four far clusters, d = {d}, n = {n}", centers, [1.0] * 4, 0.1, n)


def patches(n: int = 3000) -> Task:
    image = load_sample_image("china.jpg") / 255.0
    rng = np.random.default_rng(1)
    rows = rng.integers(0, image.shape[0] - 4, n)
    columns = rng.integers(0, image.shape[1] - 4, n)
    cut = [
        image[y : y + 4, x : x + 4].ravel() for y, x in zip(rows, columns, strict=True)
    ]
    return Task("4 x 4 colour patches, d = 48", np.stack(cut), 8)


def four_in_eight() -> Task:
    rng = np.random.default_rng(8)
    centers = 0.15 + 0.7 * rng.random((4, 8))
    return mixed("four clusters, d = 8", centers, [1.0] * 4, 0.06, 10_000)


# Each with the epsilons at which it is measured.
FAMILIES: list[tuple[Callable[[], Task], list[float]]] = [
    (lambda: blobs(300), [1.0, 2.0, 4.0]),
    (lambda: other_blobs(9, 2, 0.5), [2.0]),
    (lambda: other_blobs(7, 3, 0.5), [2.0]),
    (lambda: other_blobs(12, 3, 2.0), [2.0]),
    (lambda: other_blobs(8, 4, 1.0), [2.0]),
    (lambda: inner(3), [2.0]),
    (lambda: inner(4), [4.0]),
    (lambda: blobs(3000), [4.0]),
    (lambda: blobs(30_000), [4.0]),
    (iris, [4.0, 8.0]),
    (wine, [4.0]),
    (adult, [4.0]),
    (lambda: china(30_000), [4.0]),
    (lambda: unbalanced(300), [1.0, 2.0]),
    (lambda: unbalanced(3000), [4.0]),
    (lambda: anisotropic(300), [2.0]),
    (lambda: anisotropic(3000), [4.0]),
    (lambda: uniform(300), [2.0]),
    (lambda: uniform(3000), [4.0]),
    (fifteen, [8.0]),
    (minority, [8.0]),
    (digits, [4.0, 8.0]),
    (patches, [4.0, 8.0]),
    (lambda: many_dimensions(32), [8.0]),
    (lambda: many_dimensions(64, 400), [4.0, 8.0]),
    (lambda: separated(64, 400), [4.0, 8.0]),
]
