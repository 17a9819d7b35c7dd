"""Correlated noise (matrix mechanisms): strategies C and what they cost.

A run publishes sums G (one row for each step) as G + stddev C^-1 Z, Z independent
normals. That is post-processing of C G + stddev Z, a Gaussian mechanism whose
sensitivity is how far C G moves: the columns of C that one record touches. What the
user reads is A G, prefix sums of gradients for SGD, with error A C^-1 Z.

    strategy   BandedToeplitz, Buffered, Dense: C, and its rows one by one
    workload   Workload: A (prefix sums, momentum, learning rates)
    sharing    Participation: in which steps a record may take part

Everything is float64 NumPy; the streaming counterpart in JAX is `training.noise`.
"""

from demur.mechanisms.correlated.buffered import Buffered as Buffered
from demur.mechanisms.correlated.buffered import optimize_buffered as optimize_buffered
from demur.mechanisms.correlated.dense import Dense as Dense
from demur.mechanisms.correlated.dense import optimize_dense as optimize_dense
from demur.mechanisms.correlated.sensitivity import Certified as Certified
from demur.mechanisms.correlated.sensitivity import Participation as Participation
from demur.mechanisms.correlated.strategy import Strategy as Strategy
from demur.mechanisms.correlated.toeplitz import BandedToeplitz as BandedToeplitz
from demur.mechanisms.correlated.toeplitz import (
    optimize_banded_toeplitz as optimize_banded_toeplitz,
)
from demur.mechanisms.correlated.workload import Workload as Workload
