"""Small models: one thread each is faster than sharing the machine."""

import importlib.util

if importlib.util.find_spec("torch"):
    import torch

    torch.set_num_threads(1)
