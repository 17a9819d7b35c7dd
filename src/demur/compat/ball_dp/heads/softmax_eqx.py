"""Softmax regression in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox.heads import SoftmaxLinearEqx as SoftmaxLinearEqx
from demur.adapters.equinox.heads import softmax_objective as softmax_objective
