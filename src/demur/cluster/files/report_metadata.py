"""Metadata of a file of local reports, so that a server needs no flags: all public.

In Parquet they are in the schema's metadata, beside a CSV in a file of their own
(`reports.csv.json`). Column names, bounds, epsilon and L are public; nothing in them is
computed from the points.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.core import validate
from demur.mechanisms.bpm import BPM

SCHEMA_KEY = b"demur.reports"
_FORMAT = "demur reports 1"
_FIELDS = {
    "format",
    "mechanism",
    "epsilon",
    "L",
    "columns",
    "low",
    "high",
    "clipped",
    "id_column",
    "space",
}


@dataclass(frozen=True)
class ReportMetadata:
    """The mechanism of a file of reports, its columns, and the box they came from."""

    mechanism: BPM
    columns: tuple[str, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    clipped: bool = False
    id_column: str | None = None
    space: str = "cube"

    def __post_init__(self) -> None:
        wanted = self.mechanism.dimension
        for name, values in (("columns", self.columns), ("low", self.low)):
            if values is not None and len(values) != wanted:
                raise ValueError(
                    f"{name} must have one entry for each of {wanted} dimensions; got"
                    f" {len(values)}"
                )
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("columns must all differ")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high must both be given, or neither")
        if self.low is not None and self.high is not None:
            if len(self.high) != wanted:
                raise ValueError(f"high must have {wanted} numbers")
            validate.finite(**{f"low[{i}]": x for i, x in enumerate(self.low)})
            validate.finite(**{f"high[{i}]": x for i, x in enumerate(self.high)})
            if any(a >= b for a, b in zip(self.low, self.high, strict=True)):
                raise ValueError("high must exceed low in every column")

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Columns of reports in a file: `cube_` before the names of the points'.

        A report is a point of the (enlarged) unit cube, not of the original units.
        """
        named = [f"cube_{name}" for name in self.columns]
        while self.id_column in named:
            named = [f"{name}_" for name in named]
        return tuple(named)

    def in_original_units(self, cube: ArrayLike) -> NDArray[np.float64]:
        """Points of the unit cube in the units of the public box."""
        if self.low is None or self.high is None:
            raise ValueError("these reports have no bounds: centres stay in the cube")
        low, high = np.array(self.low), np.array(self.high)
        return low + np.asarray(cube, dtype=np.float64) * (high - low)

    def to_text(self) -> str:
        """The metadata as one line of JSON; floats come back exactly."""
        L = self.mechanism.L
        return json.dumps(
            {
                "format": _FORMAT,
                "mechanism": "bpm",
                "epsilon": self.mechanism.epsilon,
                "L": L if math.isfinite(L) else "inf",
                "columns": list(self.columns),
                "low": None if self.low is None else list(self.low),
                "high": None if self.high is None else list(self.high),
                "clipped": self.clipped,
                "id_column": self.id_column,
                "space": self.space,
            },
            allow_nan=False,
        )

    @classmethod
    def from_text(cls, text: str) -> ReportMetadata:
        """The metadata that `to_text` wrote; anything else is a ValueError."""
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("the reports' metadata are damaged: not JSON") from error
        if (
            not isinstance(data, dict)
            or data.get("format") != _FORMAT
            or data.get("mechanism") != "bpm"
            or set(data) != _FIELDS
        ):
            raise ValueError(
                "the reports' metadata are of another kind or version: "
                + validate.shorten(data)
            )
        try:
            columns, ids, L = data["columns"], data["id_column"], data["L"]
            validate.name(space=data["space"])
            named = isinstance(columns, list) and isinstance(ids, str | None)
            if not named or not all(isinstance(name, str) for name in columns):
                raise TypeError("columns must be names")
            return cls(
                mechanism=BPM(
                    data["epsilon"], math.inf if L == "inf" else L, len(columns)
                ),
                columns=tuple(columns),
                low=None if data["low"] is None else tuple(data["low"]),
                high=None if data["high"] is None else tuple(data["high"]),
                clipped=bool(data["clipped"]),
                id_column=ids,
                space=data["space"],
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"the reports' metadata are damaged: {error}") from error
