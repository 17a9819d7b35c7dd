"""What all clusterers with a ledger keep of scikit-learn's conventions."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted, validate_data

from demur.cluster.estimators.inputs import refuse_sparse
from demur.core.bounds import finite_matrix
from demur.core.display import Displayed
from demur.ledger import Ledger, LedgerLeftBehind, left_behind

Array = NDArray[np.float64]

_OUTPUT = "_sklearn_output_config"


class ChargedClusterer(ClusterMixin, BaseEstimator, Displayed):
    """A clusterer that charges a ledger: a clone shares it, a pickle leaves it."""

    ledger: Ledger | LedgerLeftBehind | None
    n_features_in_: int

    def __sklearn_clone__(self) -> Self:
        # deepcopy would copy the ledger, and a copy of a ledger is a second budget.
        copy = type(self)(**self.get_params(deep=False))
        if (kept := vars(self).get(_OUTPUT)) is not None:  # of `set_output`
            setattr(copy, _OUTPUT, dict(kept))
        return copy

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        return state | {"ledger": left_behind(self.ledger), "source": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.positive_only = True
        return tags

    def _reset(self) -> None:
        """Forget what an earlier fit found."""
        for name in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, name)

    def _keep_names(self, names: NDArray[np.object_] | None) -> None:
        """Keep the names of the columns of a table that was fitted."""
        if names is not None:
            self.feature_names_in_ = names

    def _rows(self, X: ArrayLike) -> Array:
        """Rows to predict or score on; any real numbers."""
        check_is_fitted(self, "n_features_in_")
        refuse_sparse(X)
        # Columns of other names, or in another order, are refused by scikit-learn.
        validate_data(self, X, reset=False, skip_check_array=True)
        return self._nameless_rows(X)

    def _nameless_rows(self, X: ArrayLike) -> Array:
        """Rows, as local reports, that are no table of named columns."""
        check_is_fitted(self, "n_features_in_")
        refuse_sparse(X)
        rows = finite_matrix("X", X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is"
                f" expecting {self.n_features_in_} features as input"
            )
        return rows


class CentreDistances(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ChargedClusterer
):
    """`transform` and its like: distances to the centres, as scikit-learn's k-means.

    `fit_transform` charges as `fit` does. Distances of raw rows are not private.
    """

    cluster_centers_: Array

    def transform(self, X: ArrayLike) -> Array:
        """The distance of each row to each centre, as scikit-learn's k-means."""
        return self._distances(self._rows(X))

    def _distances(self, rows: Array) -> Array:
        gaps = rows[:, None, :] - self.cluster_centers_[None, :, :]
        return np.asarray(np.sqrt((gaps**2).sum(axis=2)))

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)
