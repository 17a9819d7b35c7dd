"""Seeds for training and sampling; they have no effect on noise."""

from __future__ import annotations

import os
import random
from importlib import import_module

import numpy as np


def set_global_seed(seed: int, *, deterministic_torch: bool = False) -> None:
    """Seed Python's and NumPy's generators, and torch's where it is installed.

    It has no effect on the noise of a release, which comes from the operating system.
    `deterministic_torch` makes cuDNN repeatable, and slower. The environment variable
    PYTHONHASHSEED is for processes that are started from here.
    """
    random.seed(int(seed))
    np.random.seed(int(seed))
    os.environ["PYTHONHASHSEED"] = str(int(seed))
    try:
        torch = import_module("torch")
    except ImportError:
        return
    torch.manual_seed(int(seed))  # of every GPU too
    if deterministic_torch:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
