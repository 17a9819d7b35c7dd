"""Softmax regression in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox_heads import SoftmaxLinearEqx as SoftmaxLinearEqx
from demur.adapters.equinox_heads import softmax_objective as softmax_objective
