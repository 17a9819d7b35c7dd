"""Chart of the cost of a whole ledger by the distance that a record may move.

    python examples/epsilon_by_distance.py docs/images/epsilon_by_distance.svg

Three engines charge one ledger about the same points of the unit square; then the
ledger is read at every distance. Without an argument the picture goes to out/.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

import demur as dm
from demur.convex import BallLogisticRegression
from demur.mechanisms import BPM
from demur.training import dp_sgd

DELTA = 1e-6
NEAR = 0.1
FARTHEST = 2**0.5  # the diagonal of the square
INK, QUIET, RULE, LEDGER = "#1d2733", "#5f6c7b", "#e3e8ee", "#2f6f8f"
ENTRIES = {  # label: colour, line, position of its name (distance, epsilon)
    "a head, released once": ("#b3412f", (0, (5, 2)), (0.78, 1.23)),
    "reports made by their owners": ("#4f7d3a", (0, (1, 1)), (0.78, 2.10)),
    "a network, by DP-SGD": ("#8a6d1f", (0, (5, 2, 1, 2)), (0.78, 0.74)),
}


def recorded() -> dm.Ledger:
    """A ledger in memory with one entry of each of three engines."""
    budgets = {dm.Ball(NEAR, space="square"): dm.Budget(2.5, DELTA)}
    ledger = dm.Ledger(budgets, dataset="points", filter=dm.Filter.gaussian(blocks=0.7))
    points = np.random.default_rng(0).uniform(size=(4000, 2))
    above = (points.sum(axis=1) > 1).astype(int)
    head, reports, network = ENTRIES
    BallLogisticRegression(
        epsilon=0.3,
        delta=1e-7,
        radius=NEAR,
        norm_bound=FARTHEST,
        lam=0.01,
        space="square",
        classes=[0, 1],
        ledger=ledger,
        label=head,
    ).fit(points, above)
    BPM(4.0, L=0.5, dimension=2).privatize(
        points, ledger=ledger, label=reports, space="square"
    )
    plan = dp_sgd(
        iterations=200,
        sampling_prob=0.05,
        epsilon=1.0,
        delta=DELTA,
        neighboring_relation="REPLACE_ONE",
        l2_clip_norm=1.0,
        normalize_by=200.0,
    ).make()
    plan.paid(ledger, label=network)
    return ledger


def curves(ledger: dm.Ledger, distances: np.ndarray) -> dict[str, list[float]]:
    """Epsilon at each distance: of the whole ledger, and of each entry alone."""
    balls = [dm.Ball(float(r), space="square") for r in distances]
    epsilons = {"the whole ledger": [ledger.epsilon(DELTA, ball) for ball in balls]}
    for entry in ledger.entries():
        epsilons[entry.label] = [entry.epsilon(ball, DELTA) for ball in balls]
    return epsilons


def draw(ledger: dm.Ledger, to: Path) -> None:
    """Write the picture, with its numbers in the file's description."""
    distances = np.append(np.linspace(0.02, 0.5, 13), np.linspace(0.55, FARTHEST, 18))
    values = curves(ledger, distances)
    whole = values.pop("the whole ledger")
    near, far = (
        ledger.epsilon(DELTA, dm.Ball(r, space="square")) for r in (NEAR, FARTHEST)
    )
    figure = Figure(figsize=(7.6, 4.1), facecolor="white")
    axes = figure.add_axes((0.07, 0.125, 0.915, 0.78))
    axes.plot(distances, whole, color=LEDGER, linewidth=3)
    axes.fill_between(distances, whole, color=LEDGER, alpha=0.10, linewidth=0)
    axes.text(0.56, 3.28, "the whole ledger", color=LEDGER, weight="bold", size=10.5)
    for label, (colour, dashes, place) in ENTRIES.items():
        axes.plot(
            distances, values[label], color=colour, linestyle=dashes, linewidth=1.7
        )
        axes.text(*place, label, color=colour, size=9)
    marks = [
        ((NEAR, near), (0.025, 2.35), f"a move by {NEAR}:\nepsilon {near:.2f}"),
        ((FARTHEST, far), (0.87, 4.36), f"any move, label kept: epsilon {far:.2f}"),
    ]
    for at, words, text in marks:
        axes.plot(*at, "o", color=INK, markersize=6, clip_on=False, zorder=3)
        axes.annotate(
            text,
            at,
            xytext=words,
            color=INK,
            size=9.5,
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.8},
        )
    axes.set_title(
        "One ledger, read at every distance", loc="left", color=INK, size=12, pad=10
    )
    axes.set_xlabel("how far one record may move in the unit square", color=INK)
    axes.set_ylabel(f"epsilon, at delta {DELTA:g}", color=INK)
    axes.set_xlim(0, FARTHEST)
    axes.set_ylim(0, 4.7)
    axes.tick_params(colors=QUIET, labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    to.parent.mkdir(parents=True, exist_ok=True)
    numbers = f"epsilon {near:.3f} at distance {NEAR}, {far:.3f} anywhere"
    with matplotlib.rc_context({"svg.hashsalt": "demur"}):
        figure.savefig(to, metadata={"Date": None, "Description": numbers})
    print(f"{to}: {numbers}")


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "out/epsilon_by_distance.svg"
    draw(recorded(), Path(target))
