"""Files of arrays by name in the safetensors format, which holds no code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from demur.durable.atomic_files import temporary_name

# safetensors.numpy writes bfloat16 and does not read it.
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def write_tensors(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the arrays; the file has its name when it is whole."""
    path = Path(path)
    content = save(
        {name: np.asarray(array, order="C") for name, array in arrays.items()},
        dict(metadata or {}),
    )
    aside = temporary_name(path)
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_tensors(
    path: str | os.PathLike[str],
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of a file by name, and its texts; a damaged file is a ValueError."""
    try:
        with safetensors.safe_open(path, "np") as file:
            texts = file.metadata() or {}
        stored: Any = safetensors.deserialize  # without annotations
        arrays = {
            name: np.frombuffer(facts["data"], _DTYPES[facts["dtype"]]).reshape(
                facts["shape"]
            )
            for name, facts in stored(Path(path).read_bytes())
        }
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{Path(path).name} is no safetensors file of arrays"
        ) from error
    return arrays, texts
