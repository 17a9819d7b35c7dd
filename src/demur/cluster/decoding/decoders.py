"""Which decoder reads the reports, and what the simpler ones make of them first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demur.cluster.decoding.labelling import Label, Labels
from demur.cluster.decoding.noise import noise_of
from demur.cluster.sources.report_source import Rows, in_order
from demur.mechanisms.bpm import BPM
from demur.mechanisms.reports import ReportMechanism

Array = NDArray[np.float64]

DECODERS = ("noise_aware", "clip", "plain")
FEW_REPORTS, SMALL_EPSILON = 200, 2.0
# In sides of the cube. Through wider noise not even 10^18 reports show where in the
# cube anything is; squares of farther reports have no float64.
_WIDEST_NOISE = 1e9
_FARTHEST_REPORT = 1e120


@dataclass(frozen=True)
class Decoder:
    """Which decoder is used, and why."""

    name: str
    reason: str


def choose_decoder(
    asked: str, count: int, mechanism: ReportMechanism, *, fallback: bool = True
) -> Decoder:
    """The decoder asked for, or shrinkage where reports are too few to say anything.

    Both `clip` and the fallback pull reports into the cube before clustering them.
    """
    if asked != "noise_aware":
        return Decoder(asked, "asked for")
    few = count < FEW_REPORTS and mechanism.epsilon <= SMALL_EPSILON
    if few and fallback:
        return Decoder(
            "shrinkage",
            f"{count} reports at epsilon {mechanism.epsilon:g} are too few for the"
            f" noise-aware likelihood (fewer than {FEW_REPORTS} at epsilon <="
            f" {SMALL_EPSILON:g}): the reports were pulled into the cube instead",
        )
    reason = "maximum likelihood under the known noise"
    if few:
        reason += f"; {count} reports are few for it, and fallback=False"
    return Decoder("noise_aware", reason)


def must_be_near(mechanism: ReportMechanism) -> None:
    """Refuse reports so far out that nothing can be computed from them."""
    if not mechanism.reach <= _FARTHEST_REPORT:
        raise ValueError(
            f"reports of {mechanism} lie up to {mechanism.reach:g} sides of the cube"
            f" away; from {_FARTHEST_REPORT:g} on they cannot be clustered. Choose a"
            " larger epsilon or a smaller L. Nothing was spent."
        )


def must_inform(mechanism: ReportMechanism) -> None:
    """Refuse noise through which nothing of the cube can be seen."""
    if isinstance(mechanism, BPM) and mechanism.alpha == 0.0:
        raise ValueError(
            f"alpha is 0 at epsilon {mechanism.epsilon:g}, L {mechanism.L:g} in"
            f" {mechanism.dimension} dimensions: reports say nothing about their"
            " points. Choose a larger L, or 'auto'. Nothing was spent."
        )
    wide = noise_of(mechanism).deviation
    if not wide <= _WIDEST_NOISE:
        raise ValueError(
            f"the noise of {mechanism} is {wide:.3g} times as wide as the cube: reports"
            " say nothing about their points. Choose a larger epsilon."
            " Nothing was spent."
        )


def pulled(reports: Array, decoder: str) -> Array:
    """Reports as a baseline clusters them: raw, or pulled into the cube."""
    return reports if decoder == "plain" else np.clip(reports, 0.0, 1.0)


def baseline_rows(reports: Rows, decoder: str) -> Array:
    """All reports as a baseline clusters them, in the order of their row ids."""
    return pulled(in_order(reports).values, decoder)


@dataclass(frozen=True, eq=False)
class Pulled:
    """Labels reports as the decoder saw them."""

    label: Label
    decoder: str

    def __call__(self, reports: Array) -> Labels:
        """A label for each report."""
        if self.decoder == "noise_aware":
            return self.label(reports)
        return self.label(pulled(reports, self.decoder))
