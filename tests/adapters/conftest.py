"""Small models: one thread each is faster than sharing the machine."""

import torch

torch.set_num_threads(1)
