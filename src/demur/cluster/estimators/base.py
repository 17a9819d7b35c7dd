"""The base of all private clusterers: how reports are taken and a fit is charged.

All attributes of a fitted estimator are computed from the reports: `fit` perturbs the
points, drops them, and continues as `fit_reports` does. Fitting again is another
release and is charged again. A clone shares the ledger (a copy of a ledger would be a
second budget), and a pickle leaves it behind and refuses to fit without it.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from demur.cluster.decoding.decoders import (
    DECODERS,
    Decoder,
    check_informative,
    check_reach,
    choose_decoder,
)
from demur.cluster.decoding.labelling import Label, Labels, squared_gaps
from demur.cluster.decoding.noise import Noise, noise_of
from demur.cluster.decoding.radial import radial_table
from demur.cluster.decoding.search import MixtureFit, subsampling
from demur.cluster.errors import UnsupportedClusters
from demur.cluster.estimators.conventions import ChargedClusterer
from demur.cluster.estimators.inputs import (
    check_mechanism,
    feature_names_of,
    generator_from_state,
    mechanism_for,
    points_of,
    reports_of,
)
from demur.cluster.rows.ranked_rows import RankedRows, RemoteReports, RowsInMemory
from demur.core import validate
from demur.core.adjacency import ReplaceOne
from demur.core.entropy import Source
from demur.core.entry import Entry
from demur.core.release import Release
from demur.ledger import Ledger
from demur.mechanisms.reports import ReportMechanism, Reports
from demur.preprocessing.meta_estimators import search_around
from demur.preprocessing.pipelines import preprocessing_of

Array = NDArray[np.float64]

N_INIT = 12
LABEL = "local reports for clustering"


class PrivateClusterer(ChargedClusterer):
    """The base of private clusterers; subclasses cluster reports in `_cluster`."""

    epsilon: float
    L: float | str
    max_iter: int
    random_state: Any
    decoder: str
    fallback: bool
    mechanism: str | ReportMechanism
    n_init: int
    label: str
    space: str
    source: Source | None
    entry_: Entry | None
    reports_: Reports
    labels_: Labels
    inertia_: float
    decoder_: str
    decoder_reason_: str
    report_mechanism_: ReportMechanism
    n_reports_: int

    # Which reports the decoder used, where these are not all; for the summary.
    _subsampled: str | None = None
    # What the fit found out about its decoder, and steps of a pipeline before it.
    _noted: str = ""
    _conditions: tuple[str, ...] = ()

    @property
    def _count(self) -> int:
        """The number of clusters asked for."""
        raise NotImplementedError

    def _check(self) -> None:
        """Refuse bad parameters of the subclass."""

    def _cluster(
        self, reports: RankedRows, mechanism: ReportMechanism, decoder: str
    ) -> None:
        """Fit to the reports and set the clusters."""
        raise NotImplementedError

    @property
    def _centers(self) -> Array:
        """The centres or means."""
        raise NotImplementedError

    def _labelling(self) -> Label:
        """The function that gives each report its cluster; it holds no reports."""
        raise NotImplementedError

    # -- fitting -------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: Any = None, *, row_ids: ArrayLike | None = None
    ) -> Self:
        """Perturb every row of X (once, charged to the ledger), then cluster reports.

        X must lie in [0, 1]^d. `random_state` seeds the clustering alone, where the
        reports do not; the noise comes from the operating system.
        """
        del y
        points = points_of(X)
        names = feature_names_of(X)
        # A scaler that was fitted on these rows is refused before anything is charged.
        before = preprocessing_of(self, ReplaceOne(), self.space)
        count, d = points.shape
        self._check_all(count)
        mechanism = mechanism_for(self.mechanism, self.epsilon, self.L, d)
        points = mechanism.check(points)
        decoder = self._decoder_for(mechanism)
        _tell_a_search()
        release = mechanism.privatize(
            points,
            ledger=cast(Ledger | None, self.ledger),  # anything else is refused
            row_ids=row_ids,
            label=self.label,
            space=self.space,
            source=self.source,
        )
        del points
        self._fitted(release.value, release.entry, decoder)
        self._conditions = before.assumptions
        self._keep_names(names)
        return self

    def fit_reports(
        self,
        reports: Reports | Release[Reports] | RemoteReports | ArrayLike,
        mechanism: ReportMechanism | None = None,
    ) -> Self:
        """Cluster local reports, as the server does: no points, no ledger, no cost.

        `Reports` hold their mechanism, and naming another is an error; a plain matrix
        needs one. The estimator's own epsilon, L and mechanism are not used. A report
        where the mechanism puts none is refused, with its position: clients may lie.

        Reports may be stored elsewhere (`RemoteReports`, such as those on Spark): the
        noise-aware decoder then gives the clusters that it would give here, and
        `reports_` and `labels_` are not set.
        """
        if isinstance(reports, RemoteReports):
            check_mechanism(reports.mechanism, mechanism)
            return self._fit_remote(reports)
        checked = reports_of(reports, mechanism)
        self._check_all(len(checked))
        decoder = self._decoder_for(checked.mechanism)
        return self._fitted(checked, None, decoder)

    def report_labels(self, reports: ArrayLike) -> Labels:
        """The cluster of each report, as in `labels_`.

        A mixture takes the noise of a report into account here; `predict` takes its
        rows for points.
        """
        rows = self._nameless_rows(reports)
        return self._labelling()(rows)

    def labelling(self) -> Label:
        """The labelling of `report_labels` as a value, to be sent to the reports."""
        check_is_fitted(self, "n_features_in_")
        return self._labelling()

    def _fit_remote(self, reports: RemoteReports) -> Self:
        count = reports.shape[0]
        self._check_all(count)
        if self.decoder != "noise_aware":
            raise ValueError(
                f"decoder={self.decoder!r} runs scikit-learn on all reports at once,"
                " and these are not on this machine: use decoder='noise_aware'"
            )
        decoder = self._decoder_for(reports.mechanism)
        self._reset()
        self.entry_ = None
        self._decode(reports, reports.mechanism, decoder)
        self.inertia_ = squared_gaps(reports, self._labelling(), self._centers)
        return self

    def _decoder_for(self, mechanism: ReportMechanism) -> Decoder:
        """The decoder of a fit; what it cannot take is refused before the charge."""
        decoder = choose_decoder(self.decoder)
        check_reach(mechanism)
        if self.decoder == "noise_aware":
            check_informative(mechanism)
            self._check_noise(mechanism)
        if decoder.name == "noise_aware":
            self._prepare(noise_of(mechanism))
        return decoder

    def _check_noise(self, mechanism: ReportMechanism) -> None:
        """Refuse a noise that the subclass's decoder cannot take."""
        noise_of(mechanism)

    def _prepare(self, noise: Noise) -> None:
        """Compute the decoder's tables of public numbers, before the charge."""
        radial_table(noise, None)

    def _fitted(self, reports: Reports, entry: Entry | None, decoder: Decoder) -> Self:
        self._reset()
        # Reports first: if the clustering dies, what was paid for is not lost, and
        # `fit_reports(estimator.reports_)` continues with it.
        self.reports_ = reports
        self.entry_ = entry
        rows = RowsInMemory(reports.values, reports.row_ids)
        self._decode(rows, reports.mechanism, decoder)
        labels = self._labelling()(rows.values)
        self.labels_ = labels
        self.inertia_ = squared_gaps(rows, lambda _: labels, self._centers)
        return self

    def _reset(self) -> None:
        super()._reset()
        self._subsampled, self._noted, self._conditions = None, "", ()

    def _decode(
        self, rows: RankedRows, mechanism: ReportMechanism, decoder: Decoder
    ) -> None:
        self._cluster(rows, mechanism, decoder.name)
        self.decoder_ = decoder.name
        self.decoder_reason_ = decoder.reason + self._noted
        self.report_mechanism_ = mechanism
        self.n_reports_, self.n_features_in_ = rows.shape

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in ("labels_", "reports_") and "n_features_in_" in vars(self):
                message += (
                    ": its reports are stored elsewhere. On Spark,"
                    " demur.adapters.spark.assign adds the clusters as a column."
                )
            raise AttributeError(message)

    def _check_all(self, count: int) -> None:
        self._check_count()
        validate.count(max_iter=self.max_iter)
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

    def _check_count(self) -> None:
        validate.count(**{self._count_name: self._count})

    def _note(self, fit: MixtureFit, count: int) -> None:
        """Keep what a fit found out, and warn of clusters that nothing supports."""
        self._subsampled = subsampling(count)
        if fit.clipped_share:
            self._noted = (
                f"; the clipped reports have a share of {fit.clipped_share:.0%} in the"
                " centres"
            )
        if fit.spare is not None:
            clusters = len(fit.centers)
            warnings.warn(
                f"the reports do not show {clusters} clusters: {clusters - 1} are"
                f" better by {fit.spare:.3g} nats of Schwarz's criterion. Ask for"
                " fewer clusters, or take more reports.",
                UnsupportedClusters,
                stacklevel=5,
            )

    def _rng(self) -> np.random.Generator:
        return generator_from_state(self.random_state)

    def _about(self, lines: list[str]) -> str:
        """The text of a summary: `lines`, and those that all estimators have."""
        check_is_fitted(self, "n_features_in_")
        first = [
            f"{type(self).__name__}: {self._count} clusters of {self.n_reports_}"
            f" reports in {self.n_features_in_} dimensions",
            f"mechanism: {self.report_mechanism_.declaration(self.space).name}",
            f"decoder: {self.decoder_} ({self.decoder_reason_})",
        ]
        if self._subsampled is not None:
            first.append(f"subsampled: {self._subsampled}")
        lines = [*lines, *(f"condition: {one}" for one in self._conditions)]
        paid = (
            "reports were given; nothing was charged by this fit"
            if self.entry_ is None
            else self.entry_.statement()
        )
        return "\n".join([*first, *lines, f"privacy: {paid}"])


def _tell_a_search() -> None:
    """Inside a search of scikit-learn: reports that are drawn once cost less."""
    around = search_around()
    if around is None:
        return
    search, settings, folds = around
    warnings.warn(
        f"{type(search).__name__} draws new reports in each of its {settings * folds}"
        " fits, charges for all of them, and scores on raw rows, which is not private."
        " Draw reports once (BPM.privatize) and compare fits of those (fit_reports):"
        " that costs nothing more.",
        stacklevel=3,
    )
