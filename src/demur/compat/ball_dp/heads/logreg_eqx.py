"""Binary logistic regression in Equinox; importing this needs jax and equinox."""

from demur.adapters.equinox.heads import LogisticRegressorEqx as LogisticRegressorEqx
from demur.adapters.equinox.heads import logistic_objective as logistic_objective
