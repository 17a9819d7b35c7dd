"""Seeds for training and sampling; they have no effect on noise."""

from __future__ import annotations

import random
import sys

import numpy as np


def set_global_seed(seed: int) -> None:
    """Seed Python's and NumPy's generators, and torch's where it is loaded.

    It has no effect on the noise of a release, which comes from the operating system.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
