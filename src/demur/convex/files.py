"""Saving and loading a released head: arrays and JSON in an npz, never a pickle."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from demur.convex.heads.discriminant import BallDiscriminantClassifier
from demur.convex.heads.linear import (
    BallLogisticRegression,
    BallSoftmaxClassifier,
    BallSVC,
)
from demur.convex.heads.prototype_classifier import BallPrototypeClassifier
from demur.convex.privacy_report import PrivacyReport
from demur.convex.sensitivity.curves import Breakdown
from demur.core.adjacency import Unit, unit_from_json
from demur.core.entry import Entry
from demur.core.promise import Promise
from demur.durable.atomic_files import temporary_name
from demur.ledger import LedgerLeftBehind

Head = (
    BallPrototypeClassifier
    | BallDiscriminantClassifier
    | BallLogisticRegression
    | BallSoftmaxClassifier
    | BallSVC
)
_FORMAT = "demur head 2"
_KINDS: dict[str, type[Head]] = {
    cls.__name__: cls
    for cls in (
        BallPrototypeClassifier,
        BallDiscriminantClassifier,
        BallLogisticRegression,
        BallSoftmaxClassifier,
        BallSVC,
    )
}
_RELEASED = ("prototypes_", "coef_", "intercept_")
_REPORTED = ("epsilon", "delta", "space", "norm_bound", "mechanism")
# Never written: a ledger, a noise source, and what was passed for one run alone.
_LEFT_OUT = {"ledger", "source", "progress", "classes"}


def save_head(
    head: Head, path: str | os.PathLike[str], *, columns: Sequence[str] | None = None
) -> None:
    """Write a fitted head: released arrays, classes, parameters and its report.

    `columns` names the columns of a table that the features came from. A file that
    has the name already is replaced when the new one is whole, and not before.
    """
    if type(head).__name__ not in _KINDS or not hasattr(head, "privacy_"):
        raise TypeError(
            f"head must be a fitted head of demur.convex; got {type(head).__name__}"
        )
    parameters = saved_parameters(head)
    names = getattr(head, "feature_names_in_", None)
    meta = {
        "format": _FORMAT,
        "kind": type(head).__name__,
        "parameters": parameters,
        "n_features": int(head.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "columns": None if columns is None else list(columns),
        "report": _report_to_json(head.privacy_),
        "entry": replace(head.entry_, actor="").to_json(),
    }
    arrays = {name: getattr(head, name) for name in _RELEASED if hasattr(head, name)}
    classes = np.asarray(head.classes_)
    if classes.dtype.kind == "O":
        classes = classes.astype(str)
    arrays["meta"] = np.frombuffer(_json(meta).encode(), dtype=np.uint8)
    place = Path(path).resolve()  # a link stays a link
    if place.exists() and not place.is_file():  # a device, which nothing may replace
        with place.open("wb") as file:
            np.savez(file, allow_pickle=False, classes=classes, **arrays)
        return
    aside = temporary_name(place)
    try:
        with aside.open("xb") as file:
            np.savez(file, allow_pickle=False, classes=classes, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, place)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def saved_parameters(head: Head) -> dict[str, Any]:
    """The parameters as a file holds them; one that no file can hold is a TypeError.

    Ask before a fit: a head that was paid for and cannot be written is lost.
    """
    saved: dict[str, Any] = {}
    for name, value in head.get_params().items():
        if name in _LEFT_OUT:
            continue
        if isinstance(value, Unit):
            value = value.to_json()
        elif isinstance(value, Mapping):  # JSON's own keys are strings alone
            value = [[_plain(key), _plain(one)] for key, one in value.items()]
        try:
            saved[name] = json.loads(_json(value))
        except (TypeError, ValueError):
            raise TypeError(
                f"{name} of the head cannot be written to a file: it must be made of"
                f" plain numbers and words; got {type(value).__name__}. Nothing was"
                " written."
            ) from None
    return saved


def load_head(path: str | os.PathLike[str]) -> Head:
    """The head that `save_head` wrote; no code of the file is run."""
    try:
        with np.load(Path(path), allow_pickle=False) as data:
            meta = _meta(data)
            head = _KINDS[meta["kind"]](**_read(meta["parameters"]))
            for name in _RELEASED:
                if name in data:
                    setattr(head, name, _numbers(data[name]))
            head.classes_ = data["classes"]
        if meta["entry"]["durable"]:
            head.ledger = LedgerLeftBehind(meta["entry"]["dataset"])
        head.n_features_in_ = int(meta["n_features"])
        if meta["feature_names"] is not None:
            head.feature_names_in_ = np.array(meta["feature_names"], dtype=object)
        entry = Entry.from_json(meta["entry"])
        head.privacy_ = _report_from_json(meta["report"], entry)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        zipfile.BadZipFile,
        EOFError,
    ) as error:
        raise ValueError(
            f"{path} is not a head of demur, or it is damaged. Give the .npz file that"
            " save_head or `demur head fit` wrote."
        ) from error
    return head


def head_columns(path: str | os.PathLike[str]) -> list[str] | None:
    """The columns that the features of a saved head came from, if it names them."""
    with np.load(Path(path), allow_pickle=False) as data:
        columns = _meta(data)["columns"]
    return None if columns is None else [str(name) for name in columns]


def _read(parameters: dict[str, Any]) -> dict[str, Any]:
    unit = parameters.get("unit")
    read = parameters | {"unit": None if unit is None else unit_from_json(unit)}
    if isinstance(read.get("class_weight"), list):
        read["class_weight"] = {key: weight for key, weight in read["class_weight"]}
    return read


def _json(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """A scalar or an array of numpy as plain numbers and words; others unchanged."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value


def _meta(data: Any) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(bytes(data["meta"]))
    if meta["format"] != _FORMAT:
        raise ValueError(f"format is {meta['format']!r}")
    return meta


def _numbers(values: Any) -> Any:
    if values.dtype != np.float64 or not np.isfinite(values).all():
        raise ValueError("an array does not hold finite float64 numbers")
    return values


def _report_to_json(report: PrivacyReport) -> dict[str, Any]:
    fields = {name: getattr(report, name) for name in _REPORTED}
    sigma = report.sigma
    parts = report.sensitivity
    return fields | {
        "unit": report.unit.to_json(),
        "sigma": sigma if isinstance(sigma, float) else list(sigma),
        "sensitivity": None if parts is None else parts.to_json(),
        "counts": None if report.counts is None else list(report.counts),
    }


def _report_from_json(data: dict[str, Any], entry: Entry) -> PrivacyReport:
    sigma, parts = data["sigma"], data["sensitivity"]
    return PrivacyReport(
        Promise(unit_from_json(data["unit"]), data["epsilon"], data["delta"]),
        norm_bound=data["norm_bound"],
        mechanism=data["mechanism"],
        sigma=tuple(sigma) if isinstance(sigma, list) else sigma,
        sensitivity=None if parts is None else Breakdown(**parts),
        entry=entry,
        space=data["space"],
        counts=None if data["counts"] is None else tuple(data["counts"]),
    )
