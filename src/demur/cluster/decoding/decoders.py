"""Choice of the decoder, and preprocessing of reports for the baselines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.labelling import Label, Labels
from demur.cluster.decoding.noise import noise_of
from demur.cluster.rows.ranked_rows import RankedRows, in_order
from demur.mechanisms.bpm import BPM
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]

DECODERS = ("noise_aware", "clip", "plain")
# In sides of the cube. Through wider noise not even 10^18 reports show where in the
# cube anything is; squares of farther reports have no float64.
_WIDEST_NOISE = 1e9
_FARTHEST_REPORT = 1e120


@dataclass(frozen=True)
class Decoder:
    """The decoder of a fit, and why it was chosen."""

    name: str
    reason: str


def choose_decoder(asked: str) -> Decoder:
    """The decoder asked for, and what it does."""
    if asked != "noise_aware":
        return Decoder(asked, "asked for")
    return Decoder("noise_aware", "maximum likelihood under the known noise")


def check_reach(mechanism: ReportMechanism) -> None:
    """Refuse a mechanism whose reports lie too far out to be clustered."""
    if not mechanism.reach <= _FARTHEST_REPORT:
        raise ValueError(
            f"reports of {mechanism} lie up to {mechanism.reach:g} sides of the cube"
            f" away; from {_FARTHEST_REPORT:g} on they cannot be clustered. Choose a"
            " larger epsilon or a smaller L. Nothing was spent."
        )


def check_informative(mechanism: ReportMechanism) -> None:
    """Refuse a mechanism whose reports say nothing about where points are."""
    if isinstance(mechanism, BPM) and mechanism.alpha == 0.0:
        raise ValueError(
            f"alpha is 0 at epsilon {mechanism.epsilon:g}, L {mechanism.L:g} in"
            f" {mechanism.dimension} dimensions: reports say nothing about their"
            " points. Choose a larger L, or 'auto'. Nothing was spent."
        )
    deviation = noise_of(mechanism).deviation
    if not deviation <= _WIDEST_NOISE:
        raise ValueError(
            f"the noise of {mechanism} is {deviation:.3g} times as wide as the cube:"
            " reports say nothing about their points. Choose a larger epsilon."
            " Nothing was spent."
        )


def prepared(reports: Array, decoder: str) -> Array:
    """Reports as a decoder takes them: clipped to the cube by "clip"."""
    if decoder in ("noise_aware", "plain"):
        return reports
    return np.clip(reports, 0.0, 1.0)


def baseline_rows(reports: RankedRows, decoder: str) -> Array:
    """All reports as a baseline clusters them, in the order of their row ids."""
    return prepared(in_order(reports).values, decoder)


@dataclass(frozen=True, eq=False)
class PreparedLabel:
    """Labels reports after the preparation that their decoder gave them."""

    label: Label
    decoder: str

    def __call__(self, reports: Array) -> Labels:
        """A label for each report."""
        return self.label(prepared(reports, self.decoder))
