"""The squared-hinge machine in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox import predict_eqx_svm as predict_eqx_svm
from demur.adapters.equinox_heads import SquaredHingeSVMEqx as SquaredHingeSVMEqx
from demur.adapters.equinox_heads import (
    squared_hinge_objective as squared_hinge_objective,
)
