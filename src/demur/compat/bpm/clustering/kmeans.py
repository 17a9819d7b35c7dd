"""`PrivateKMeans` as the seed calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur import cluster
from demur.ledger import Ledger


class PrivateKMeans(cluster.PrivateKMeans):
    """The paper's Algorithm 1: perturb every row with BPM, then cluster the reports.

    `decoder="plain"` is that algorithm to the letter and the default here, because it
    is what the original does; its centres do not get better with more data.
    `decoder="noise_aware"` costs no privacy and is what `demur.cluster` does by itself.

    `random_state` seeds the k-means and never the noise. `labels_` and `inertia_` are
    those of the reports, as in the original; `X_perturbed_` holds the reports.
    """

    def __init__(
        self,
        n_clusters: int,
        epsilon: float,
        L: float | str,
        max_iter: int = 300,
        random_state: Any = None,
        *,
        decoder: str = "plain",
        n_init: int = 10,
        ledger: Ledger | None = None,
    ) -> None:
        super().__init__(
            n_clusters=n_clusters,
            epsilon=epsilon,
            L=L,
            max_iter=max_iter,
            random_state=random_state,
            decoder=decoder,
            n_init=n_init,
            ledger=ledger,
        )

    @property
    def X_perturbed_(self) -> NDArray[np.float64]:
        """The reports, one for each row."""
        if not hasattr(self, "reports_"):
            raise AttributeError("X_perturbed_ exists after fit")
        return np.asarray(self.reports_.values)
