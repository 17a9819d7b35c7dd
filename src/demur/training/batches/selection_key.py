"""Selection keys: the secret that batches are drawn from.

Amplification holds for an observer who does not know the batches, so their randomness
is cryptographic: a 256-bit key of the operating system, or the key of a ledger entry.
Every step has a stream of its own, so that a resumed run can draw the batch of a given
step again.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from demur.core.entropy import KEY_BYTES, NoiseKey, OsEntropy, Seeded, Source

Randomness: TypeAlias = NoiseKey | Source | np.random.Generator | int | None


def selection_key(rng: Randomness) -> NoiseKey:
    """The key that `rng` stands for; None is the operating system's entropy.

    A number or a numpy generator can be repeated by others, so what comes from it is
    marked as not private; it is there for tests and comparisons.
    """
    if rng is None:
        rng = OsEntropy()
    if isinstance(rng, NoiseKey):
        return rng
    if isinstance(rng, np.random.Generator):
        return NoiseKey(rng.bytes(KEY_BYTES), private=False)
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool):
        rng = Seeded(int(rng))
    if not isinstance(rng, bool) and hasattr(rng, "new_key"):
        return NoiseKey.free(rng)
    raise TypeError(
        "rng must be None (the operating system's entropy), a NoiseKey, a source, or"
        f" for tests a seed or a numpy Generator; got {type(rng).__name__}"
    )
