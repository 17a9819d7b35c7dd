"""Radius policies, embeddings and releases: the names of the original's `api`.

`parameter_releases` says which keywords the releases take beside the original's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters import equinox, torch
from demur.compat.ball_dp.embeddings import EmbeddingBundle as EmbeddingBundle
from demur.compat.ball_dp.embeddings import (
    embed_torch_dataloaders as embed_torch_dataloaders,
)
from demur.compat.ball_dp.embeddings import embed_torch_loader as embed_torch_loader
from demur.compat.ball_dp.embeddings import (
    embed_torch_loader_aug_pairs as embed_torch_loader_aug_pairs,
)
from demur.compat.ball_dp.embeddings import load_embeddings_npz as load_embeddings_npz
from demur.compat.ball_dp.embeddings import save_embeddings_npz as save_embeddings_npz
from demur.compat.ball_dp.parameter_releases import (
    dp_release_eqx_model_gaussian as dp_release_eqx_model_gaussian,
)
from demur.compat.ball_dp.parameter_releases import (
    dp_release_erm_params_gaussian as dp_release_erm_params_gaussian,
)
from demur.compat.ball_dp.parameter_releases import (
    dp_release_from_flat_params as dp_release_from_flat_params,
)
from demur.compat.ball_dp.parameter_releases import (
    dp_release_torch_model_gaussian as dp_release_torch_model_gaussian,
)
from demur.compat.ball_dp.prototype_releases import (
    dp_release_ridge_prototypes_gaussian as dp_release_ridge_prototypes_gaussian,
)
from demur.compat.ball_dp.radius import RadiusPolicy as RadiusPolicy
from demur.compat.ball_dp.radius import compute_radius_policy as compute_radius_policy


def torch_flatten_adapter(
    model: Any,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Any]]:
    """The parameters of a linear torch head as one vector, and the way back.

    In the dtype of the model; the vector is exact, not private.
    """
    return torch.flatten(model)


def eqx_flatten_adapter(
    model: Any,
) -> tuple[NDArray[np.floating[Any]], Callable[[ArrayLike], Any]]:
    """The parameters of a linear Equinox head as one vector, and the way back.

    In the dtype of the model; the vector is exact, not private.
    """
    return equinox.flatten(model)
