"""`jax_privacy.matrix_factorization`: matrices that are multiplied row by row.

Strategies, their optimisation and their sensitivities are in
`demur.mechanisms.correlated`.
"""

from demur.compat.jax_privacy.matrix_factorization import (
    buffered_toeplitz as buffered_toeplitz,
)
from demur.compat.jax_privacy.matrix_factorization import (
    streaming_matrix as streaming_matrix,
)
from demur.compat.jax_privacy.matrix_factorization import toeplitz as toeplitz

__all__ = ["buffered_toeplitz", "streaming_matrix", "toeplitz"]
