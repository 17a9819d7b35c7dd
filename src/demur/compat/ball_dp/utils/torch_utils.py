"""Tensors and devices; importing this needs torch."""

from demur.adapters.torch.heads import get_device as get_device
from demur.adapters.torch.heads import to_numpy as to_numpy
