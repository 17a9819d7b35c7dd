"""Softmax regression in torch; importing this needs torch."""

from demur.adapters.torch.heads import LogRegTorchConfig as LogRegTorchConfig
from demur.adapters.torch.heads import SoftmaxLogReg as SoftmaxLogReg
from demur.adapters.torch.heads import (
    predict_softmax_logreg_torch as predict_softmax_logreg_torch,
)
from demur.adapters.torch.heads import (
    train_softmax_logreg_torch as train_softmax_logreg_torch,
)
