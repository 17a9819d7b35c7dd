"""The squared-hinge machine in torch; importing this needs torch."""

from demur.adapters.torch.heads import SquaredHingeSVM as SquaredHingeSVM
from demur.adapters.torch.heads import (
    SquaredHingeTorchConfig as SquaredHingeTorchConfig,
)
from demur.adapters.torch.heads import (
    pack_squared_hinge_params as pack_squared_hinge_params,
)
from demur.adapters.torch.heads import (
    predict_squared_hinge_svm_torch as predict_squared_hinge_svm_torch,
)
from demur.adapters.torch.heads import (
    train_squared_hinge_svm_torch as train_squared_hinge_svm_torch,
)
