"""Compile the numba kernels once, before test workers would each do it.

    python -m tools.compile_kernels

They are kept beside the source. What this leaves out is compiled by whoever needs it.
"""

from __future__ import annotations

import numpy as np

from demur.cluster import PrivateGMM, PrivateKMeans
from demur.core.adjacency import AddOrRemoveOne
from demur.mechanisms import BPM, Gaussian
from demur.unlearning import make_mode


def main() -> None:
    """One small piece of work for each kernel that many tests need."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 2)) / 4
    labels = np.sign(rows[:, 0])
    for name, options in (
        ("ogd", {}),
        ("ridge", {}),
        ("standardised_ridge", {}),
        ("logistic", {"Lambda": 5.0, "tolerance": 0.5}),
        ("logistic", {"Lambda": 5.0, "tolerance": 0.5, "classes": 2}),
    ):
        mode = make_mode(name, 2, **options)
        targets = labels if "classes" not in options else (labels + 1.0) / 2.0
        mode.insert(rows[0], float(targets[0]))
        mode.insert_many(rows[1:], targets[1:])
        mode.predict(rows[0])
        if mode.needs_record:
            noise = None if mode.exact else np.zeros(mode.size)
            mode.delete(rows[0], float(targets[0]), noise)
    reports = BPM(4.0, "auto", dimension=2).privatize(rng.random((200, 2))).value
    PrivateKMeans(2, 4.0, random_state=0).fit_reports(reports)
    PrivateGMM(2, 4.0, random_state=0).fit_reports(reports)
    Gaussian(1.0, {AddOrRemoveOne(): 1.0}, dimension=4).release(np.zeros(4))


if __name__ == "__main__":
    main()
