"""Embeddings of a torch loader, normalised or clipped as soon as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.adapters.frameworks import missing
from demur.adapters.torch.heads import get_device, to_numpy
from demur.core.bounds import clip_rows, finite_matrix, normalize_rows

try:
    import torch
except ImportError as error:  # pragma: no cover - without torch
    raise missing("PyTorch", "torch", error) from error

Encode = Callable[[torch.Tensor], Any]
Rows = NDArray[np.float64]


def embed(
    loader: Iterable[Any],
    encoder: Any,
    *,
    device: str = "cuda",
    l2_normalize: bool = False,
    l2_clip_norm: float | None = None,
    encode_fn: Encode | None = None,
    augment_fn: Encode | None = None,
) -> tuple[Rows, Rows | None, NDArray[np.int64], str]:
    """Embeddings, those of augmented inputs if asked for, labels, and the device used.

    The loader yields (x, y). The encoder must be public: one that was trained on the
    same people already depends on their data.
    """
    torch_device = get_device(device)
    if hasattr(encoder, "to"):
        encoder = encoder.to(torch_device).eval()
    encode: Encode = encoder if encode_fn is None else encode_fn
    plain: list[Rows] = []
    augmented: list[Rows] = []
    labels: list[NDArray[np.int64]] = []
    with torch.no_grad():
        for x, y in loader:
            x = x.to(torch_device)
            plain.append(_rows(encode(x)))
            if augment_fn is not None:
                augmented.append(_rows(encode(augment_fn(x).to(torch_device))))
            labels.append(to_numpy(torch.as_tensor(y)).astype(np.int64).reshape(-1))
    if not plain:
        raise ValueError("the loader yielded nothing")

    def bounded(parts: list[Rows]) -> Rows:
        rows = finite_matrix("embeddings", np.concatenate(parts))
        if l2_normalize:
            rows = normalize_rows(rows).data
        if l2_clip_norm is not None:
            rows = clip_rows(rows, l2_clip_norm).data
        return rows

    pairs = bounded(augmented) if augment_fn is not None else None
    return bounded(plain), pairs, np.concatenate(labels), str(torch_device)


def _rows(encoded: Any) -> Rows:
    """The first output, as float64 rows."""
    if isinstance(encoded, tuple | list):
        encoded = encoded[0]
    rows = to_numpy(encoded).astype(np.float64)
    return rows.reshape(rows.shape[0], -1)
