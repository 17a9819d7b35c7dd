"""Ridge prototypes in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox_heads import RidgePrototypesEqx as RidgePrototypesEqx
from demur.adapters.equinox_heads import (
    fit_ridge_prototypes_eqx as fit_ridge_prototypes_eqx,
)
