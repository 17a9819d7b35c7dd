"""Convex heads in torch, trained in float64 to the minimiser.

The objective is mean loss + lam/2 (|W|^2 + |b|^2), the bias penalised like the weights:
without that there is no bound on how far one record moves it. What a trainer returns is
exact, not private: pass it to `release_torch`, and publish the copy.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demur.adapters.frameworks import missing
from demur.adapters.ridge_prototypes import class_labels
from demur.core import validate
from demur.core.bounds import finite_matrix

try:
    import torch
    from torch import nn
except ImportError as error:  # pragma: no cover - without torch
    raise missing("PyTorch", "torch", error) from error

logger = logging.getLogger(__name__)

Optimizer: TypeAlias = Literal["lbfgs", "sgd", "adam"]
Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Above this gradient norm `release_torch` refuses a head at its default tau.
_MINIMISER = 1e-6
_TARGET = 1e-9


@dataclass
class LogRegTorchConfig:
    """How to train a softmax head; the names and defaults of quantbayes.ball_dp."""

    num_classes: int = 10
    lam: float = 1e-2
    regularize_bias: bool = True
    optimizer: Optimizer = "lbfgs"
    lbfgs_lr: float = 1.0
    lbfgs_max_iter: int = 500
    lr: float = 1e-2
    epochs: int = 50
    batch_size: int = 2048
    device: str = "cuda"
    seed: int = 0


@dataclass
class SquaredHingeTorchConfig:
    """How to train a squared-hinge head; names and defaults of quantbayes.ball_dp."""

    lam: float = 1e-2
    regularize_bias: bool = True
    optimizer: Optimizer = "lbfgs"
    lbfgs_lr: float = 1.0
    lbfgs_max_iter: int = 500
    lr: float = 1e-2
    epochs: int = 50
    batch_size: int = 2048
    device: str = "cuda"
    seed: int = 0


class SoftmaxLogReg(nn.Module):
    """K logits from one linear map."""

    def __init__(self, d_in: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, a row for each record, in the dtype of the rows."""
        return _in_dtype_of(x, self.linear)


class SquaredHingeSVM(nn.Module):
    """One score from one linear map; its sign is the class."""

    def __init__(self, d_in: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores, one for each record, in the dtype of the rows."""
        return _in_dtype_of(x, self.linear).squeeze(-1)


def _in_dtype_of(x: torch.Tensor, linear: nn.Linear) -> torch.Tensor:
    """The layer's scores: heads are trained in float64, and rows come in float32."""
    scores: torch.Tensor = linear(x.to(linear.weight.dtype))
    return scores.to(x.dtype) if x.is_floating_point() else scores


def to_numpy(x: torch.Tensor) -> NDArray[np.generic]:
    """The tensor's values on the CPU, without its graph."""
    return x.detach().cpu().numpy()


def get_device(device: str) -> torch.device:
    """The device asked for, or the CPU with a logged notice where it has no GPU."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        logger.warning(
            "device=%r was asked for and there is no GPU: using the CPU.", device
        )
        return torch.device("cpu")
    return wanted


def train_softmax_logreg_torch(
    Ztr: ArrayLike,
    ytr: ArrayLike,
    Zva: ArrayLike | None,
    yva: ArrayLike | None,
    *,
    cfg: LogRegTorchConfig,
) -> tuple[SoftmaxLogReg, dict[str, float]]:
    """A softmax head at its minimiser, in float64 on the CPU, and two accuracies.

    Model and accuracies are exact results on the data: **not private**. Publish only
    what `release_torch` (or `dp_release_torch_model_gaussian`) makes of the model.
    """
    validate.count(num_classes=cfg.num_classes)
    rows = finite_matrix("Ztr", Ztr)
    labels = class_labels(ytr, cfg.num_classes, rows.shape[0])
    model = SoftmaxLogReg(rows.shape[1], cfg.num_classes).double()
    _train(model, model.linear, rows, labels, nn.functional.cross_entropy, cfg)
    metrics = {
        "train_acc": _accuracy(predict_softmax_logreg_torch(model, rows), labels),
        "val_acc": math.nan,
    }
    if Zva is not None and yva is not None:
        held_out = finite_matrix("Zva", Zva)
        truth = class_labels(yva, cfg.num_classes, held_out.shape[0])
        predicted = predict_softmax_logreg_torch(model, held_out)
        metrics["val_acc"] = _accuracy(predicted, truth)
    return model, metrics


def train_squared_hinge_svm_torch(
    Ztr: ArrayLike,
    ytr: ArrayLike,
    Zva: ArrayLike | None,
    yva: ArrayLike | None,
    *,
    cfg: SquaredHingeTorchConfig,
) -> tuple[SquaredHingeSVM, dict[str, float]]:
    """A squared-hinge head at its minimiser, in float64 on the CPU; labels are +-1.

    Model and accuracies are exact results on the data: **not private**. Publish only
    what `release_torch` (or `dp_release_torch_model_gaussian`) makes of the model.
    """
    rows = finite_matrix("Ztr", Ztr)
    labels = _signs("ytr", ytr, rows.shape[0])
    model = SquaredHingeSVM(rows.shape[1]).double()
    _train(model, model.linear, rows, labels, _squared_hinge, cfg)
    metrics = {
        "train_acc": _accuracy(predict_squared_hinge_svm_torch(model, rows), labels),
        "val_acc": math.nan,
    }
    if Zva is not None and yva is not None:
        held_out = finite_matrix("Zva", Zva)
        truth = _signs("yva", yva, held_out.shape[0])
        predicted = predict_squared_hinge_svm_torch(model, held_out)
        metrics["val_acc"] = _accuracy(predicted, truth)
    return model, metrics


def predict_softmax_logreg_torch(model: nn.Module, Z: ArrayLike) -> NDArray[np.int64]:
    """The class with the largest logit, for each row."""
    return np.argmax(_scores(model, Z), axis=1).astype(np.int64)


def predict_squared_hinge_svm_torch(
    model: nn.Module, Z: ArrayLike
) -> NDArray[np.int64]:
    """+1 where the score is at least 0, else -1."""
    return np.where(_scores(model, Z).reshape(-1) >= 0, 1, -1).astype(np.int64)


def pack_squared_hinge_params(model: SquaredHingeSVM) -> NDArray[np.float64]:
    """The parameters as one vector [w, b], in float64; exact, not private."""
    weight = to_numpy(model.linear.weight).reshape(-1)
    bias = to_numpy(model.linear.bias).reshape(-1)
    return np.concatenate([weight, bias]).astype(np.float64)


def _squared_hinge(scores: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    return torch.clamp(1.0 - signs * scores, min=0.0).square().mean()


def _train(
    model: nn.Module,
    linear: nn.Linear,
    rows: NDArray[np.float64],
    labels: NDArray[np.int64],
    loss: Loss,
    cfg: LogRegTorchConfig | SquaredHingeTorchConfig,
) -> None:
    validate.positive(lam=cfg.lam, lbfgs_lr=cfg.lbfgs_lr, lr=cfg.lr)
    validate.count(lbfgs_max_iter=cfg.lbfgs_max_iter, epochs=cfg.epochs)
    validate.count(batch_size=cfg.batch_size)
    if not cfg.regularize_bias:
        raise ValueError(
            "regularize_bias=False is refused: without a penalty on the bias the"
            " objective is not strongly convex in it, and no bound on how far one"
            " record moves the bias exists. Keep regularize_bias=True."
        )
    device = get_device(cfg.device)
    model.to(device)
    # From zero: the minimiser does not depend on it, and no seed is needed.
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.zero_()
    x = torch.as_tensor(rows, device=device)
    y = torch.as_tensor(labels, device=device)

    def objective(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        penalty = linear.weight.square().sum() + linear.bias.square().sum()
        return loss(model(x), y) + 0.5 * cfg.lam * penalty

    if cfg.optimizer == "lbfgs":
        _lbfgs(model, lambda: objective(x, y), cfg)
    elif cfg.optimizer in ("sgd", "adam"):
        _stochastic(model, x, y, objective, cfg)
    else:
        raise ValueError(
            f"optimizer must be 'lbfgs', 'sgd' or 'adam'; got {cfg.optimizer!r}"
        )
    residual = _gradient_norm(model, objective(x, y))
    if not residual <= _MINIMISER:
        logger.warning(
            "this head is not at its minimiser (gradient norm %.2g): a release that"
            " checks it will be refused. Use optimizer='lbfgs' with more iterations.",
            residual,
        )
    model.zero_grad(set_to_none=True)
    model.to("cpu").eval()


def _lbfgs(
    model: nn.Module,
    objective: Callable[[], torch.Tensor],
    cfg: LogRegTorchConfig | SquaredHingeTorchConfig,
) -> None:
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        lr=cfg.lbfgs_lr,
        max_iter=cfg.lbfgs_max_iter,
        history_size=20,
        tolerance_grad=_TARGET,
        # Not a step too small but a gradient too small ends it.
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = objective()
        value.backward()
        return value

    optimizer.step(closure)


def _stochastic(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    cfg: LogRegTorchConfig | SquaredHingeTorchConfig,
) -> None:
    kind = torch.optim.SGD if cfg.optimizer == "sgd" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=cfg.lr)
    order = torch.Generator().manual_seed(cfg.seed)
    for _ in range(cfg.epochs):
        shuffled = torch.randperm(x.shape[0], generator=order).to(x.device)
        for batch in shuffled.split(cfg.batch_size):
            optimizer.zero_grad()
            objective(x[batch], y[batch]).backward()
            optimizer.step()


def _gradient_norm(model: nn.Module, value: torch.Tensor) -> float:
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return float(
        torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))
    )


def _scores(model: nn.Module, Z: ArrayLike) -> NDArray[np.float64]:
    rows = finite_matrix("Z", Z)
    parameter = next(model.parameters())
    with torch.no_grad():
        x = torch.as_tensor(rows, dtype=parameter.dtype, device=parameter.device)
        return to_numpy(model(x)).astype(np.float64)


def _signs(name: str, y: ArrayLike, rows: int) -> NDArray[np.int64]:
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise ValueError(
            f"{name} must hold one label for each of {rows} rows; got shape"
            f" {labels.shape}"
        )
    if not np.isin(labels, (-1, 1)).all():
        raise ValueError(
            f"{name} must hold -1 and +1; got {np.unique(labels)[:5].tolist()}"
        )
    return labels.astype(np.int64)


def _accuracy(predicted: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    return float(np.mean(predicted == truth))
