"""How far rounding may move the sum of clipped contributions, and how that is enforced.

A neighbouring batch has other terms at every position of the contraction, so that every
rounding may differ: both sums err, and twice the error counts. In float32 no useful
bound holds. Adding K products in an order that nobody promises errs by at most
K u sum |left| |right|; for 1,024 examples of 64 positions that is 2^-8 times 1,024 clip
norms, and more where positions cancel. So with `accumulator="float64"` the factors, as
they were measured and scaled in float32 or narrower, are contracted in float64
(u = 2^-53), where their products are exact and cannot underflow.

**Terms.** Let example b add T products to an entry, with w_b its clip factor and
m_b = sum over positions t of |left_t| |right_t|. With N rows in the call an entry is a
sum of N T products. In any order, with or without fused operations, it errs by at most
1.01 N T u times the sum of their sizes (Higham, Accuracy and Stability, 4.2; N T below
2^46), and since || |L|^T |R| ||_F <= m_b, Minkowski's inequality gives

    |error| <= 1.01 N u sum over b of w_b T m_b                  for one parameter,
    |error| <= 1.01 N u sum over b of w_b (sum (T m_b)^2)^(1/2)  for all, the root being
                                                                 over the parameters.

A parameter that is reached on several ways has their positions one behind the other. A
gradient that was formed is one term for each example, scaled and added: T = 2. A mask
is one more rounding (T + 1), a table that is looked up and multiplied one more addition
(twice both). With several clip norms all this holds for each group of parameters, and
the groups are orthogonal.

**Enforced.** Positions can cancel, so that m_b has no bound in terms of |G_b|. So an
example is clipped as if its gradient were at least 2^24 1.02 N u (sum (T m_b)^2)^(1/2)
long: its share of the error is then at most 2^-24 of the clip norm. With 1,024 rows of
64 positions this takes a cancellation of 7,800 to 1; 5 to 1 is usual and 631 to 1 was
the most that we saw. The threshold falls as N T grows (60 to 1 for 16,384 rows of 512
positions), and N is that of a microbatch where there are any. What is clipped further
loses accuracy, and never privacy.

**Afterwards.** Sums over microbatches, shards and parts of a batch are float64 sums of
n terms: below n 2^-53 of the clip norm for each row, which half of `_ROOM` pays for up
to 2^19 terms. The noise takes the total as float32, and a vector of length at most N C
moves by 2^-24 N C. Entries below the normal range may become zero: 2^-126 each, which
the other half of `_ROOM` pays for if C is at least `LEAST_BOUND` and there are at most
2^56 parameters. So

    |sum as computed - exact sum|  <=  2^-23 (1 + 2^-10) C  for each row of a batch,

padding counted: shapes are public, and the bound is known before anything is computed.

**Devices.** float64 is that of IEEE 754 on CPUs and on GPUs of NVIDIA and AMD, their
matrix units included (cuBLAS can be told by its environment to emulate it, which is
off by default). TPUs put it together from float32 numbers and have fewer bits: refused.

**Not covered**: that an example's gradient has the same bits wherever it stands in a
batch and whatever the padded size. Its factors are outputs of the loss's own products;
nothing that is added up afterwards can undo another rounding there.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, Literal

import jax
import jax.numpy as jnp

from demur.training.clipping.rounding import U64, in_float64

Accumulator = Literal["float32", "float64"]
ACCUMULATORS = ("float32", "float64")
LEAST_BOUND = 2.0**-60
_TERMS_SHARE = 2.0**-24
_ROOM = 2.0**-33
ROW_SHARE = 2.0**-23 + _ROOM  # of the clip norm, for each row


def rounding_share(rows: int) -> float:
    """By how much rounding may lengthen the movement of a sum over so many rows.

    A share of the clip norm: twice, since both of two neighbouring sums are rounded.
    """
    return 2 * rows * ROW_SHARE


def check_accumulator(accumulator: object, l2_norm_bound: float) -> None:
    """Refuse what is no accumulator, and where its bound would not hold."""
    if accumulator not in ACCUMULATORS:
        raise ValueError(
            f"accumulator must be one of {ACCUMULATORS}; got {accumulator!r}"
        )
    if accumulator == "float64" and l2_norm_bound < LEAST_BOUND:
        raise ValueError(
            "accumulator='float64' needs a bound of at least 2^-60 for an example, the"
            f" clip norm over normalize_by; got {l2_norm_bound:g}"
        )


def check_device(accumulator: Accumulator) -> None:
    """Refuse float64 where it has fewer bits."""
    device = jax.default_backend()
    if accumulator == "float64" and device not in ("cpu", "gpu"):
        raise ValueError(
            f"accumulator='float64' needs a CPU or a GPU: on {device!r} float64 has"
            " fewer bits than its rounding bound counts on. Hardened noise"
            " (noise='lattice') is not to be had there; noise='threefry' is."
        )


@in_float64
def least_length(masses: list[Any], rows: int) -> Any:
    """The length that an example is clipped at, at least, for the sake of its terms.

    `masses` are the squares (T m_b)^2 of its parameters.
    """
    root = jnp.sqrt(reduce(add, masses))
    return root * (1.02 * rows * U64 / _TERMS_SHARE)


def accumulated(dtype: Any, weights: Any) -> Any:
    """In what a sum with these clip factors is formed."""
    return jnp.promote_types(dtype, weights.dtype)
