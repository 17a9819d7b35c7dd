"""The squared-hinge machine in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox.heads import SquaredHingeSVMEqx as SquaredHingeSVMEqx
from demur.adapters.equinox.heads import (
    squared_hinge_objective as squared_hinge_objective,
)
from demur.adapters.equinox.release import predict_eqx_svm as predict_eqx_svm
