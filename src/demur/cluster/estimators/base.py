"""What all estimators share: how reports come in, and how a fit is charged.

What a fitted estimator holds follows from the reports: `fit` perturbs the points,
forgets them, and goes on as `fit_reports` does. Fitting again is another release and is
charged again; a clone shares the ledger (a copy of a ledger would be a second budget),
and a pickle leaves it behind and refuses to fit without it.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from demur.cluster.decoding.decoders import (
    DECODERS,
    Decoder,
    choose_decoder,
    must_be_near,
    must_inform,
)
from demur.cluster.decoding.labelling import Label, Labels, squared_gaps
from demur.cluster.decoding.noise import Noise, noise_of
from demur.cluster.decoding.radial import radial_table
from demur.cluster.estimators.inputs import (
    mechanism_for,
    must_be_made_by,
    points_of,
    reports_of,
)
from demur.cluster.sources.report_source import HeldRows, ReportSource, Rows
from demur.core import validate
from demur.core.bounds import finite_matrix
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.release import Release
from demur.ledger import Ledger, LedgerLeftBehind, left_behind
from demur.mechanisms.reports import ReportMechanism, Reports

Array = NDArray[np.float64]

N_INIT = 12
LABEL = "reports for clustering"


class PrivateClusterer(ClusterMixin, BaseEstimator):
    """Reports in, clusters out; subclasses say how (`_cluster`)."""

    epsilon: float
    L: float | str
    max_iter: int
    random_state: Any
    decoder: str
    fallback: bool
    mechanism: str | ReportMechanism
    n_init: int
    ledger: Ledger | LedgerLeftBehind | None
    label: str
    space: str
    source: Source | None
    release_: Entry | None
    reports_: Reports
    labels_: Labels
    inertia_: float
    decoder_: str
    decoder_reason_: str
    report_mechanism_: ReportMechanism
    n_reports_: int
    n_features_in_: int

    # What the decoder looked at, where that is not every report; for the summary.
    _subsampled: str | None = None

    @property
    def _count(self) -> int:
        """The number of clusters asked for."""
        raise NotImplementedError

    def _check(self) -> None:
        """Refuse bad parameters of the subclass."""

    def _cluster(self, reports: Rows, mechanism: ReportMechanism, decoder: str) -> None:
        """Fit to the reports and set the clusters."""
        raise NotImplementedError

    @property
    def _centers(self) -> Array:
        """The centres or means."""
        raise NotImplementedError

    def _labelling(self) -> Label:
        """What gives each report its cluster, with nothing of the reports in it."""
        raise NotImplementedError

    # -- scikit-learn's conventions ------------------------------------------------

    def __sklearn_clone__(self) -> Self:
        # deepcopy would copy the ledger, and a copy of a ledger is a second budget.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        return state | {"ledger": left_behind(self.ledger), "source": None}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.positive_only = True
        return tags

    # -- fitting -------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: Any = None, *, row_ids: ArrayLike | None = None
    ) -> Self:
        """Perturb every row of X (once, charged to the ledger), then cluster reports.

        X must lie in [0, 1]^d. `random_state` seeds the clustering alone; the
        perturbation takes its noise from the operating system.
        """
        del y
        points = points_of(X)
        count, d = points.shape
        self._check_all(count)
        mechanism = mechanism_for(self.mechanism, self.epsilon, self.L, d)
        points = mechanism.check(points)
        decoder = self._decoder_for(count, mechanism)
        release = mechanism.privatize(
            points,
            ledger=cast(Ledger | None, self.ledger),  # another thing is refused
            row_ids=row_ids,
            label=self.label,
            space=self.space,
            source=self.source,
        )
        del points
        return self._fitted(release.value, release.entry, decoder)

    def fit_reports(
        self,
        reports: Reports | Release[Reports] | ReportSource | ArrayLike,
        mechanism: ReportMechanism | None = None,
    ) -> Self:
        """The server alone: cluster reports, without points, ledger or cost.

        `Reports` carry their mechanism, and naming another is an error; a plain matrix
        needs one. The estimator's own epsilon, L and mechanism play no part. A report
        where the mechanism puts none is refused, with its position: clients may lie.

        Reports may lie elsewhere (a `ReportSource`, as those on Spark do):
        the noise-aware decoder then gives the clusters that it would give here, and
        `reports_` and `labels_` are not set.
        """
        if isinstance(reports, ReportSource):
            must_be_made_by(reports.mechanism, mechanism)
            return self._fit_elsewhere(reports)
        checked = reports_of(reports, mechanism)
        self._check_all(len(checked))
        decoder = self._decoder_for(len(checked), checked.mechanism)
        return self._fitted(checked, None, decoder)

    def report_labels(self, reports: ArrayLike) -> Labels:
        """The cluster of each report, as `labels_` has them.

        A mixture looks through the noise of a report here; `predict` takes its rows for
        points.
        """
        rows = self._rows(reports)
        return self._labelling()(rows)

    def labelling(self) -> Label:
        """What `report_labels` does, as a value without any report that can travel."""
        check_is_fitted(self, "n_features_in_")
        return self._labelling()

    def _fit_elsewhere(self, source: ReportSource) -> Self:
        count = source.shape[0]
        self._check_all(count)
        if self.decoder != "noise_aware":
            raise ValueError(
                f"decoder={self.decoder!r} runs scikit-learn on all reports at once,"
                " and these are not on this machine: use decoder='noise_aware'"
            )
        decoder = self._decoder_for(count, source.mechanism)
        self._forget()
        self.release_ = None
        self._decoded(source, source.mechanism, decoder)
        self.inertia_ = squared_gaps(source, self._labelling(), self._centers)
        return self

    def _decoder_for(self, count: int, mechanism: ReportMechanism) -> Decoder:
        """The decoder of a fit; whatever it cannot take is refused here, unpaid."""
        decoder = choose_decoder(self.decoder, count, mechanism, fallback=self.fallback)
        must_be_near(mechanism)
        if self.decoder == "noise_aware":
            must_inform(mechanism)
            self._check_noise(mechanism)
        if decoder.name == "noise_aware":
            self._prepare(noise_of(mechanism))
        return decoder

    def _check_noise(self, mechanism: ReportMechanism) -> None:
        """Refuse a noise that the subclass's decoder cannot take."""
        noise_of(mechanism)

    def _prepare(self, noise: Noise) -> None:
        """Tables of public numbers that the decoder needs: made before the charge."""
        radial_table(noise)

    def _fitted(self, reports: Reports, entry: Entry | None, decoder: Decoder) -> Self:
        self._forget()
        # Reports first: if the clustering dies, what was paid for is not lost, and
        # `fit_reports(estimator.reports_)` takes it up again.
        self.reports_ = reports
        self.release_ = entry
        held = HeldRows(reports.values, reports.row_ids)
        self._decoded(held, reports.mechanism, decoder)
        labels = self._labelling()(held.values)
        self.labels_ = labels
        self.inertia_ = squared_gaps(held, lambda _: labels, self._centers)
        return self

    def _forget(self) -> None:
        for name in [key for key in vars(self) if key.endswith("_")]:
            delattr(self, name)
        self._subsampled = None

    def _decoded(
        self, rows: Rows, mechanism: ReportMechanism, decoder: Decoder
    ) -> None:
        self._cluster(rows, mechanism, decoder.name)
        self.decoder_ = decoder.name
        self.decoder_reason_ = decoder.reason
        self.report_mechanism_ = mechanism
        self.n_reports_, self.n_features_in_ = rows.shape

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            words = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("labels_", "reports_") and "n_features_in_" in vars(self):
                words += (
                    ": its reports lie elsewhere, one value for each of them is not"
                    " brought here (on Spark, demur.adapters.spark.assign adds the"
                    " clusters as a column)"
                )
            raise AttributeError(words)

    def _check_all(self, count: int) -> None:
        validate.count(**{self._count_name: self._count, "max_iter": self.max_iter})
        validate.count(n_init=self.n_init)
        if self.decoder not in DECODERS:
            raise ValueError(
                f"decoder must be one of {DECODERS}; got {self.decoder!r:.40}."
                " Nothing was spent."
            )
        if not isinstance(self.fallback, bool | np.bool_):
            raise ValueError(
                f"fallback must be True or False; got {self.fallback!r:.40}."
                " Nothing was spent."
            )
        if self._count > count:
            raise ValueError(
                f"{self._count_name}={self._count} is more than the {count} rows."
                " Nothing was spent."
            )
        validate.name(label=self.label, space=self.space)
        self._rng()
        self._check()

    @property
    def _count_name(self) -> str:
        return "n_components"

    def _rng(self) -> np.random.Generator:
        seed = self.random_state
        if isinstance(seed, np.random.RandomState):
            seed = int(seed.randint(2**31 - 1))
        elif seed is not None and (
            isinstance(seed, bool)
            or not isinstance(seed, numbers.Integral)
            or int(seed) < 0
        ):
            raise ValueError(
                "random_state must be None, a whole number from 0 or a RandomState;"
                f" got {seed!r:.40}. Nothing was spent."
            )
        return np.random.default_rng(seed)

    def _rows(self, X: ArrayLike) -> Array:
        """Rows to predict or score on; any real numbers."""
        check_is_fitted(self, "n_features_in_")
        rows = finite_matrix("X", X)
        if rows.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {rows.shape[1]} features, but {type(self).__name__} is"
                f" expecting {self.n_features_in_} features as input"
            )
        return rows

    def _about(self, lines: list[str]) -> str:
        """The lines of a summary, with those that all estimators have."""
        check_is_fitted(self, "n_features_in_")
        head = [
            f"{type(self).__name__}: {self._count} clusters of {self.n_reports_}"
            f" reports in {self.n_features_in_} dimensions",
            f"mechanism: {self.report_mechanism_.declaration(self.space).name}",
            f"decoder: {self.decoder_} ({self.decoder_reason_})",
        ]
        if self._subsampled is not None:
            head.append(f"subsampled: {self._subsampled}")
        paid = (
            "reports were given; nothing was charged by this fit"
            if self.release_ is None
            else self.release_.statement()
        )
        return "\n".join([*head, *lines, f"privacy: {paid}"])
