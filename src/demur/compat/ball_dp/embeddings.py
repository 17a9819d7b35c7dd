"""Bundles of embeddings, and npz files of them that are read without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.adapters import torch
from demur.compat.ball_dp.metrics import clip_l2_rows, l2_norms

_ARRAYS = ("Ztr", "ytr", "Zte", "yte")


@dataclass(frozen=True)
class EmbeddingBundle:
    """Training and test embeddings with their labels; the raw data, not private."""

    Ztr: NDArray[Any]
    ytr: NDArray[Any]
    Zte: NDArray[Any]
    yte: NDArray[Any]
    meta: dict[str, object]


def embed_torch_dataloaders(
    *,
    train_loader: Iterable[Any],
    test_loader: Iterable[Any],
    encoder: Any,
    device: str = "cuda",
    l2_normalize: bool = False,
    l2_clip_norm: float | None = None,
    encode_fn: Callable[..., Any] | None = None,
) -> EmbeddingBundle:
    """Embeddings of two loaders of (x, y), by a public encoder; float32, int64 labels.

    Normalise or clip here, and the norm bound is public and enforced.
    """
    options: dict[str, Any] = {
        "encoder": encoder,
        "device": device,
        "l2_normalize": l2_normalize,
        "l2_clip_norm": l2_clip_norm,
        "encode_fn": encode_fn,
    }
    Ztr, ytr, of_train = embed_torch_loader(loader=train_loader, **options)
    Zte, yte, of_test = embed_torch_loader(loader=test_loader, **options)
    meta = {key: of_train[key] for key in ("l2_normalize", "l2_clip_norm", "device")}
    for side, described in (("Ztr", of_train), ("Zte", of_test)):
        meta |= {f"{side}_shape": described["Z_shape"]}
        meta |= {f"{side}_max_norm": described["Z_max_norm"]}
    return EmbeddingBundle(Ztr, ytr, Zte, yte, meta)


def embed_torch_loader(
    *,
    loader: Iterable[Any],
    encoder: Any,
    device: str = "cuda",
    l2_normalize: bool = False,
    l2_clip_norm: float | None = None,
    encode_fn: Callable[..., Any] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64], dict[str, object]]:
    """Embeddings of one loader of (x, y): rows, labels, and how they were computed."""
    Z, _, y, used = torch.embed(
        loader,
        encoder,
        device=device,
        l2_normalize=l2_normalize,
        l2_clip_norm=l2_clip_norm,
        encode_fn=encode_fn,
    )
    meta = _meta(used, l2_normalize, l2_clip_norm) | _described("Z", Z)
    return _narrow(Z, l2_normalize, l2_clip_norm), y, meta


def embed_torch_loader_aug_pairs(
    *,
    loader: Iterable[Any],
    encoder: Any,
    augment_fn: Callable[..., Any],
    device: str = "cuda",
    l2_normalize: bool = False,
    l2_clip_norm: float | None = None,
    encode_fn: Callable[..., Any] | None = None,
) -> tuple[
    NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], dict[str, object]
]:
    """Embeddings of each input and of its augmentation, labels, and how."""
    Z, augmented, y, used = torch.embed(
        loader,
        encoder,
        device=device,
        l2_normalize=l2_normalize,
        l2_clip_norm=l2_clip_norm,
        encode_fn=encode_fn,
        augment_fn=augment_fn,
    )
    assert augmented is not None
    meta = _meta(used, l2_normalize, l2_clip_norm)
    meta |= _described("Z", Z) | _described("Z_aug", augmented)
    narrow = _narrow(Z, l2_normalize, l2_clip_norm)
    return narrow, _narrow(augmented, l2_normalize, l2_clip_norm), y, meta


def save_embeddings_npz(bundle: EmbeddingBundle, path: str | os.PathLike[str]) -> None:
    """The bundle as one npz file of plain arrays; `meta` as JSON text."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(getattr(bundle, name)) for name in _ARRAYS}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(f"{name} must hold numbers; got dtype {array.dtype}")
    meta = np.array(json.dumps(bundle.meta, default=str))
    np.savez_compressed(target, allow_pickle=False, meta=meta, **arrays)


def load_embeddings_npz(path: str | os.PathLike[str]) -> EmbeddingBundle:
    """The bundle of a file, read without pickle: a file cannot run code here.

    `meta` of a file that the original wrote is a pickle. It is left unread, and the
    bundle's `meta` says so; the arrays are read.
    """
    meta: dict[str, object] = {"source": str(path)}
    with np.load(path, allow_pickle=False) as file:
        absent = [name for name in _ARRAYS if name not in file]
        if absent:
            raise ValueError(f"{path} is no bundle: it lacks {', '.join(absent)}")
        arrays = {name: file[name] for name in _ARRAYS}
        if "meta" in file:
            try:
                meta = dict(json.loads(str(file["meta"])))
            except ValueError:
                meta["meta"] = "not read: it is a pickle, which could run code"
    return EmbeddingBundle(
        arrays["Ztr"].astype(np.float32),
        arrays["ytr"].astype(np.int64),
        arrays["Zte"].astype(np.float32),
        arrays["yte"].astype(np.int64),
        meta,
    )


def _narrow(
    rows: NDArray[np.float64], normalized: bool, clip: float | None
) -> NDArray[np.float32]:
    """Float32, the enforced bound still true after the rounding."""
    narrow = rows.astype(np.float32)
    limits = [1.0] * normalized + ([clip] if clip is not None else [])
    return clip_l2_rows(narrow, min(limits)).astype(np.float32) if limits else narrow


def _meta(device: str, normalize: bool, clip: float | None) -> dict[str, object]:
    return {
        "device": device,
        "l2_normalize": bool(normalize),
        "l2_clip_norm": None if clip is None else float(clip),
    }


def _described(name: str, rows: NDArray[np.float64]) -> dict[str, object]:
    return {
        f"{name}_shape": tuple(rows.shape),
        f"{name}_max_norm": float(np.max(l2_norms(rows))),
    }
