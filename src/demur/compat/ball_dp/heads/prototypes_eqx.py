"""Ridge prototypes in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox.heads import RidgePrototypesEqx as RidgePrototypesEqx
from demur.adapters.equinox.heads import (
    fit_ridge_prototypes_eqx as fit_ridge_prototypes_eqx,
)
