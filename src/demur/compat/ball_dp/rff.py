"""Random Fourier features; importing this needs jax."""

from demur.adapters.random_features import (
    rff_feature_norm_bound as rff_feature_norm_bound,
)
from demur.adapters.random_features import rff_lipschitz_bound as rff_lipschitz_bound
from demur.adapters.random_features import rff_transform as rff_transform
from demur.adapters.random_features import sample_rff_rbf as sample_rff_rbf
from demur.adapters.random_features import (
    spectral_norm_power_iteration as spectral_norm_power_iteration,
)
from demur.adapters.random_features import spectral_norm_svd as spectral_norm_svd
