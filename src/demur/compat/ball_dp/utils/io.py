"""Folders, JSON and CSV files."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ensure_dir(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it was not there."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_json(path: str | os.PathLike[str], obj: Any, *, indent: int = 2) -> None:
    """`obj` as JSON text; folders are made."""
    ensure_dir(Path(path).parent)
    text = json.dumps(obj, indent=indent)
    Path(path).write_text(text, encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value that `write_json` wrote."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def write_csv_rows(
    path: str | os.PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    fieldnames: Sequence[str],
) -> None:
    """Rows under a header line, keys that are no fields left out; folders are made."""
    ensure_dir(Path(path).parent)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(fieldnames))
        writer.writeheader()
        writer.writerows({k: row.get(k, "") for k in fieldnames} for row in rows)
