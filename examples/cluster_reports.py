"""Cluster data that users perturb on their own devices (local differential privacy).

Draws three pictures: the points, which only their owners see; the local reports, which
are all that the server gets; and the centres of the points (not private), of plain
k-means on the reports, and of the noise-aware fit to the same reports. The points are
synthetic, so the example may draw what a real run must not. Writes
out/cluster_reports.png.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.cluster import KMeans

from demur import Ball, Budget, Ledger, ReplaceOne
from demur.cluster import PrivateKMeans
from demur.mechanisms import BPM

EPSILON, K, N = 4.0, 3, 6000
rng = np.random.default_rng(1)
towns = np.array([[0.2, 0.25], [0.75, 0.3], [0.45, 0.8]])
points = np.clip(towns[rng.integers(K, size=N)] + 0.05 * rng.normal(size=(N, 2)), 0, 1)

# On the owners' devices: one report each, charged once. A move by 0.1 costs 0.4.
ledger = Ledger(
    {Ball(0.1, space="cube"): Budget(0.5), ReplaceOne(): Budget(6.0)},
    dataset="towns",
    filter="pure",
)
bpm = BPM(EPSILON, "auto", dimension=2)
release = bpm.privatize(points, ledger=ledger, label="where people live")
print(release.statement())

# On the server: the reports and the public mechanism. Fits cost nothing.
plain = PrivateKMeans(K, EPSILON, random_state=0, decoder="plain")
aware = PrivateKMeans(K, EPSILON, random_state=0)
plain.fit_reports(release.value)
aware.fit_reports(release.value)

exact = KMeans(K, n_init=10, random_state=0).fit(points)
print(f"\nSSE on the points: not private  {exact.inertia_:8.2f}")
for name, model in (("plain k-means", plain), ("noise-aware", aware)):
    ratio = model.compute_sse(points) / exact.inertia_
    print(f"  {name:<14} {model.compute_sse(points):8.2f}  ({ratio:.2f} times)")

figure = Figure(figsize=(11.0, 3.9), layout="constrained")
left, middle, right = figure.subplots(1, 3)
dots = {"markersize": 1.5, "alpha": 0.4, "color": "#8a97a6"}
left.plot(*points.T, ".", **dots)
left.set_title("points (their owners alone)")
middle.plot(*release.value.values.T, ".", **dots)
middle.set_title(f"reports (the server), epsilon {EPSILON:g}")
right.plot(*points.T, ".", **dots)
for centres, mark, colour, label in (
    (exact.cluster_centers_, "o", "#1d2733", "not private"),
    (plain.cluster_centers_, "X", "#b3412f", "plain k-means on reports"),
    (aware.cluster_centers_, "*", "#2f6f8f", "noise-aware, same reports"),
):
    right.plot(*centres.T, mark, color=colour, markersize=10, label=label)
right.set_title("centres")
right.legend(fontsize="small")
for axes, margin in ((left, 0.1), (middle, bpm.L + 0.1), (right, 0.6)):
    axes.set(xlim=(-margin, 1 + margin), ylim=(-margin, 1 + margin), aspect="equal")
    axes.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0], color="#1d2733", linewidth=0.8)
out = Path("out")
out.mkdir(exist_ok=True)
figure.savefig(out / "cluster_reports.png", dpi=100)
print(f"\nwritten: {out / 'cluster_reports.png'}")
