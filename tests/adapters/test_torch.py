"""Releasing a torch head: what is recognised, measured, refused and returned."""

from __future__ import annotations

import copy
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

import demur as dm
from demur.adapters import release_torch
from demur.adapters.errors import NotALinearHead
from demur.adapters.torch import linear_head
from demur.adapters.torch.heads import (
    LogRegTorchConfig,
    SoftmaxLogReg,
    SquaredHingeSVM,
    SquaredHingeTorchConfig,
    get_device,
    train_softmax_logreg_torch,
    train_squared_hinge_svm_torch,
)
from demur.convex import Fit, HeadForm, NotAtMinimiser, release_head
from tests.adapters import kit

pytestmark = pytest.mark.slow  # not in `make check`

LOSSES = (*kit.BINARY, "softmax")
FORM = {field.name for field in fields(HeadForm)}


def released(model, loss, *, data=None, promise=None, **options):
    """Released on the kit's data; options of the form are told by their names."""
    shape = {name: options.pop(name) for name in FORM & set(options)}
    form = kit.form_of(loss, **shape)
    X, y = (kit.rows(), kit.labels(loss)) if data is None else data
    promise = kit.promise_of() if promise is None else promise
    return release_torch(model, X, y, form, promise, **options)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_minimiser_is_released(loss):
    model = kit.torch_linear(kit.exact(loss))
    before = kit.state(model)
    private = released(model, loss)
    for name, value in kit.state(private.value).items():
        assert value.shape == before[name].shape
        assert (value != before[name]).all()
        np.testing.assert_array_equal(before[name], kit.state(model)[name])
    unit = dm.Ball(0.3, space="records")
    assert private.entry.epsilon(unit, 1e-6) <= 1.0
    assert private.entry.epsilon(unit, 1e-6) > 0.999
    assert "Not recorded" in private.statement()


def test_the_noise_is_that_of_the_engine():
    """Same sigma as a release of the parameters themselves at the same tau."""
    theta = kit.exact("logistic")
    ours = released(kit.torch_linear(theta), "logistic").entry.declaration.cost
    native = dm_release(theta, tau=1e-6).entry.declaration.cost
    assert ours == native


def dm_release(theta, tau):
    fit = Fit(kit.N, tau=tau, gradient_norm=0.0)
    return release_head(theta, kit.form_of("logistic"), kit.promise_of(), fit)


def test_noise_has_the_declared_deviation():
    theta = kit.exact("logistic")
    model = kit.torch_linear(theta)
    cost = released(model, "logistic").entry.declaration.cost
    (sigma,) = {t.sigma for t in cost.terms if hasattr(t, "sigma")}
    draws = [released(model, "logistic").value for _ in range(25)]
    flat = [
        np.append(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in draws
    ]
    spread = (np.array(flat) - theta) / sigma
    assert abs(spread.std() - 1.0) < 0.3 and abs(spread.mean()) < 0.4


def sequential(theta):
    return nn.Sequential(nn.Identity(), kit.torch_linear(theta))


def softmax_head(theta):
    model = SoftmaxLogReg(kit.D, kit.K).double()
    model.linear = kit.torch_linear(theta)
    return model


def hinge_head(theta):
    model = SquaredHingeSVM(kit.D).double()
    model.linear = kit.torch_linear(theta)
    return model


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (kit.torch_linear, "softmax"),
        (sequential, "logistic"),
        (softmax_head, "softmax"),
        (hinge_head, "squared_hinge"),
    ],
)
def test_recognised(make, loss):
    model = make(kit.exact(loss))
    private = released(model, loss).value
    assert type(private) is type(model)
    assert list(private.state_dict()) == list(model.state_dict())
    x = torch.as_tensor(kit.rows()[:5])
    assert private(x).shape == model(x).shape
    assert private(x).dtype == torch.float64


def test_without_a_bias():
    theta = kit.exact("logistic", bias_scale=0.0)
    model = nn.Linear(kit.D, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.as_tensor(theta[None]))
    private = released(model, "logistic").value
    assert private.bias is None


def test_bias_scale_makes_less_noise():
    s = 0.1
    theta = kit.exact("logistic", bias_scale=s)
    theta[-1] *= s  # the model's bias is what is added to the score
    model = kit.torch_linear(theta)
    private = released(model, "logistic", bias_scale=s)
    plain = released(kit.torch_linear(kit.exact("logistic")), "logistic")
    assert sigma_of(private) < sigma_of(plain)
    with pytest.raises(NotAtMinimiser):
        released(model, "logistic")


def sigma_of(release):
    return max(
        t.sigma for t in release.entry.declaration.cost.terms if hasattr(t, "sigma")
    )


def test_float32_models_reach_the_default_tau():
    model = kit.torch_linear(kit.exact("softmax"), dtype=torch.float32)
    private = released(model, "softmax").value
    assert private.weight.dtype == torch.float32
    with pytest.raises(NotAtMinimiser, match="tau=1e-10"):
        released(model, "softmax", tau=1e-10)


def test_tensors_are_taken():
    model = kit.torch_linear(kit.exact("softmax"))
    X, y = torch.as_tensor(kit.rows()), torch.as_tensor(kit.labels("softmax"))
    released(model, "softmax", data=(X, y))


class Twisted(nn.Linear):
    """A subclass may compute anything."""


class Wrapped(nn.Module):
    def __init__(self, theta):
        super().__init__()
        self.linear = kit.torch_linear(theta)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Around(nn.Module):
    """A module of the caller's own around one linear layer."""

    def __init__(self, theta):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.fc = kit.torch_linear(theta)
        self.stash = kit.rows()

    def forward(self, x):
        return self.fc(self.dropout(x))


class NeedsItsAttribute(Around):
    def forward(self, x):
        return self.fc(x - self.stash.mean())


class FrozenEncoder(nn.Module):
    """Parameters that take no gradient may have been trained on anything."""

    def __init__(self, theta):
        super().__init__()
        self.encoder = nn.Linear(kit.D, kit.D).requires_grad_(False)
        self.fc = kit.torch_linear(theta)

    def forward(self, x):
        return self.fc(self.encoder(x))


def test_a_module_around_one_layer_keeps_its_class_and_loses_its_attributes():
    model = Around(kit.exact("softmax"))
    private = released(model, "softmax").value
    assert type(private) is Around and not private.training
    assert list(private.state_dict()) == list(model.state_dict())
    x = torch.as_tensor(kit.rows()[:5])
    assert torch.equal(private(x), private.fc(x))
    assert not torch.equal(private.fc.weight, model.fc.weight)
    secret = set(kit.rows().reshape(-1).tolist())
    assert not secret & set(kit.numbers_in(private))
    # Twin: a deep copy with noisy parameters carries the rows along.
    assert secret & set(kit.numbers_in(copy.deepcopy(model)))


def test_recognising_a_module_leaves_the_generator_alone():
    model = Around(kit.exact("softmax"))
    state = torch.get_rng_state()
    linear_head(model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_our_heads_answer_in_the_dtype_of_the_rows(dtype):
    """Trained in float64, and used with float32 rows."""
    x = torch.as_tensor(kit.rows()[:5], dtype=dtype)
    for make, loss in ((softmax_head, "softmax"), (hinge_head, "squared_hinge")):
        private = released(make(kit.exact(loss)), loss).value
        assert private.linear.weight.dtype == torch.float64
        scores = private(x)
        assert scores.dtype == dtype
        wanted = private.linear(x.double()).reshape(scores.shape)
        torch.testing.assert_close(scores, wanted.to(dtype), rtol=1e-6, atol=1e-7)


def with_buffer(theta):
    model = kit.torch_linear(theta)
    model.register_buffer("mean_of_the_data", torch.zeros(3))
    return model


def with_hook(theta):
    model = kit.torch_linear(theta)
    model.register_forward_hook(lambda module, given, out: out**2)
    return model


def weight_norm(theta):
    return nn.utils.parametrizations.weight_norm(kit.torch_linear(theta))


def two_layers(theta):
    return nn.Sequential(nn.Linear(kit.D, kit.D), kit.torch_linear(theta))


def compiled(theta):
    """As `torch.compile` leaves it; the real one takes half a minute to import."""
    model = nn.Module()
    model._orig_mod = kit.torch_linear(theta)
    return model


def nonlinear(theta):
    return nn.Sequential(kit.torch_linear(theta), nn.ReLU())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (with_buffer, "buffers"),
        (with_hook, "hooks"),
        (weight_norm, "must be an nn.Linear"),
        (two_layers, r"without other parameters, frozen .* Release model\[1\] on"),
        (nonlinear, r"linear head only\. Release model\[0\] on"),
        (Wrapped, r"linear head only\. Release model\.linear on"),
        (lambda theta: Twisted(kit.D, 1), "Release the flat vector"),
        (FrozenEncoder, r"model\.encoder: Linear, .* Release model\.fc on the"),
        (NeedsItsAttribute, r"\(AttributeError\): .* Release model\.fc on"),
        (compiled, r"model\._orig_mod"),
        (lambda theta: "a model", "must be an nn.Linear"),
        (lambda theta: nn.Linear(kit.D, 1, dtype=torch.complex64), "real floating"),
    ],
)
def test_refused(make, says):
    ledger = new_ledger()
    with pytest.raises(NotALinearHead, match=says):
        released(make(kit.exact("logistic")), "logistic", ledger=ledger)
    assert not list(ledger.entries())


def new_ledger():
    unit = dm.Ball(0.3, space="records")
    return dm.Ledger(dm.Budget(1.0, 1e-6), unit=unit)


def test_a_ledger_is_charged_and_declines():
    ledger, model = new_ledger(), kit.torch_linear(kit.exact("softmax"))
    released(model, "softmax", ledger=ledger, label="first")
    assert [e.label for e in ledger.entries()] == ["first"]
    with pytest.raises(dm.BudgetExceeded):
        released(model, "softmax", ledger=ledger)
    assert len(list(ledger.entries())) == 1


def trained(steps, *, lam=kit.LAM, free_bias=False):
    """A softmax head trained by plain torch, for some steps of L-BFGS."""
    X, y = torch.as_tensor(kit.rows()), torch.as_tensor(kit.labels("softmax"))
    model = nn.Linear(kit.D, kit.K, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=steps,
        tolerance_grad=1e-12,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        penalty = model.weight.square().sum()
        if not free_bias:
            penalty = penalty + model.bias.square().sum()
        value = nn.functional.cross_entropy(model(X), y) + lam / 2 * penalty
        value.backward()
        return value

    optimizer.step(closure)
    return model


def test_a_model_trained_to_the_end_passes_and_its_sabotaged_twin_does_not():
    released(trained(300), "softmax")
    ledger = new_ledger()
    with pytest.raises(NotAtMinimiser, match="Train longer"):
        released(trained(3), "softmax", ledger=ledger)
    assert not list(ledger.entries())


def test_a_free_bias_is_named():
    with pytest.raises(NotAtMinimiser, match="without a penalty on the bias"):
        released(trained(300, free_bias=True), "softmax")


def test_another_lam_is_named():
    with pytest.raises(NotAtMinimiser, match=r"minimiser for lam=0\.1, not 0\.05"):
        released(trained(300, lam=0.1), "softmax")


def test_one_changed_record_is_noticed():
    """The data must be those of the training, to the last record."""
    model, X, y = trained(300), kit.rows(), kit.labels("softmax")
    X[0] = -X[0]
    with pytest.raises(NotAtMinimiser):
        released(model, "softmax", data=(X, y))


def test_rows_over_the_bound_are_clipped():
    """Trained on clipped rows, given the raw ones: the same objective."""
    model, X = trained(300), kit.rows()
    longest = np.linalg.norm(X, axis=1) > 1.0 - 1e-6
    assert longest.any()
    X[longest] *= 3.0
    released(model, "softmax", data=(X, kit.labels("softmax")))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"lam": 0.0}, "lam must be positive"),
        ({"norm_bound": -1.0}, "norm_bound must be positive"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 0.0}, "delta"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"loss": "logistic"}, "needs a head with one score"),
        ({"loss": "median"}, "loss must be one of"),
    ],
)
def test_bad_arguments(changed, says):
    model, ledger = kit.torch_linear(kit.exact("softmax")), new_ledger()
    given = {"radius": 0.3, "epsilon": 1.0, "delta": 1e-6, "loss": "softmax"} | changed
    loss = given.pop("loss")
    with pytest.raises((ValueError, dm.DemurError), match=says):
        promise = kit.promise_of(
            *(given.pop(k) for k in ("radius", "epsilon", "delta"))
        )
        released(model, loss, ledger=ledger, promise=promise, **given)
    assert not list(ledger.entries())


def test_the_model_decides_how_many_classes_there_are():
    model = kit.torch_linear(kit.exact("softmax"))
    released(model, "softmax", num_classes=kit.K)
    with pytest.raises(ValueError, match="num_classes=5, and the model has 3 scores"):
        released(model, "softmax", num_classes=5)


@pytest.mark.parametrize(
    ("X", "y", "says"),
    [
        (np.full((kit.N, kit.D), np.nan), kit.labels("softmax"), "finite|NaN"),
        (kit.rows()[:, :2], kit.labels("softmax"), "6 columns"),
        (kit.rows(), kit.labels("softmax")[:-1], "one label for each"),
        (kit.rows(), kit.labels("softmax") + 1, "0 to 2"),
        (kit.rows(), kit.labels("softmax") * 0.5, "whole numbers"),
    ],
)
def test_bad_data(X, y, says):
    model = kit.torch_linear(kit.exact("softmax"))
    with pytest.raises(ValueError, match=says):
        released(model, "softmax", data=(X, y))


def test_a_model_with_nan_is_refused():
    model = kit.torch_linear(np.full((kit.K, kit.D + 1), np.nan))
    with pytest.raises(ValueError, match="NaN"):
        released(model, "softmax")


def test_nothing_exact_hangs_on_the_release():
    """Parameters, gradients, data: none of their numbers is in what is returned."""
    model = trained(300)
    model.stash = kit.rows()
    private = released(model, "softmax")
    assert not hasattr(private.value, "stash")
    assert all(p.grad is None for p in private.value.parameters())
    found = set(kit.numbers_in(private))
    secret = {
        *np.concatenate([v.reshape(-1) for v in kit.state(model).values()]).tolist(),
        *kit.rows().reshape(-1).tolist(),
        *model.weight.grad.reshape(-1).tolist(),
    }
    assert not found & secret


def test_a_seeded_source_repeats_and_is_stamped():
    model = kit.torch_linear(kit.exact("softmax"))
    one, two = (released(model, "softmax", source=dm.Seeded(5)) for _ in range(2))
    assert torch.equal(one.value.weight, two.value.weight)
    assert "NOT PRIVATE" in one.statement()
    assert not torch.equal(
        released(model, "softmax").value.weight, released(model, "softmax").value.weight
    )


def test_our_trainers_reach_the_minimiser_in_float64():
    X, y = kit.rows(), kit.labels("softmax")
    cfg = LogRegTorchConfig(num_classes=kit.K, lam=kit.LAM, device="cpu")
    model, metrics = train_softmax_logreg_torch(X.astype(np.float32), y, X, y, cfg=cfg)
    assert set(metrics) == {"train_acc", "val_acc"}
    assert model.linear.weight.dtype == torch.float64
    released(model, "softmax", data=(X.astype(np.float32), y))
    signs = kit.labels("squared_hinge")
    hinge, metrics = train_squared_hinge_svm_torch(
        X, signs, None, None, cfg=SquaredHingeTorchConfig(lam=kit.LAM, device="cpu")
    )
    assert np.isnan(metrics["val_acc"])
    found = np.append(hinge.linear.weight.detach(), hinge.linear.bias.detach())
    np.testing.assert_allclose(found, kit.exact("squared_hinge"), atol=1e-7)
    released(hinge, "squared_hinge", data=(X, signs), tau=1e-7)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_stochastic_training_is_said_not_to_be_the_minimiser(optimizer, caplog):
    cfg = LogRegTorchConfig(
        num_classes=kit.K, optimizer=optimizer, epochs=2, batch_size=64, device="cpu"
    )
    X, y = kit.rows(), kit.labels("softmax")
    model, _ = train_softmax_logreg_torch(X, y, None, None, cfg=cfg)
    again, _ = train_softmax_logreg_torch(X, y, None, None, cfg=cfg)
    assert torch.equal(model.linear.weight, again.linear.weight)
    assert "not at its minimiser" in caplog.text
    with pytest.raises(NotAtMinimiser):
        released(model, "softmax", lam=cfg.lam)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"regularize_bias": False}, "regularize_bias=False is refused"),
        ({"optimizer": "newton"}, "optimizer must be"),
        ({"lam": 0.0}, "lam must be positive"),
        ({"epochs": 0}, "epochs must be"),
    ],
)
def test_bad_configurations(changed, says):
    cfg = LogRegTorchConfig(**({"num_classes": kit.K, "device": "cpu"} | changed))
    with pytest.raises(ValueError, match=says):
        train_softmax_logreg_torch(
            kit.rows(), kit.labels("softmax"), None, None, cfg=cfg
        )


def test_labels_of_the_trainers_are_checked():
    cfg = SquaredHingeTorchConfig(device="cpu")
    with pytest.raises(ValueError, match=r"ytr must hold -1 and \+1"):
        train_squared_hinge_svm_torch(
            kit.rows(), kit.labels("softmax"), None, None, cfg=cfg
        )
    with pytest.raises(ValueError, match="labels from 0 to 1"):
        train_softmax_logreg_torch(
            kit.rows(),
            kit.labels("softmax"),
            None,
            None,
            cfg=LogRegTorchConfig(num_classes=2, device="cpu"),
        )


def test_no_gpu_falls_back_with_a_notice(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert get_device("cuda:0") == torch.device("cpu")
    assert "no GPU" in caplog.text


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (kit.rows()[:1], np.array([1])),
        (np.full((50, kit.D), 0.1), np.arange(50) % 2),
        (kit.rows(), np.minimum(kit.labels("softmax"), 1)),
    ],
    ids=["one record", "constant features", "a class without records"],
)
def test_odd_data_have_a_minimiser_too(X, y):
    cfg = LogRegTorchConfig(num_classes=kit.K, lam=kit.LAM, device="cpu")
    model, _ = train_softmax_logreg_torch(X, y, None, None, cfg=cfg)
    private = released(model, "softmax", data=(X, y))
    assert torch.isfinite(private.value.linear.weight).all()


def test_words_are_no_data():
    model = kit.torch_linear(kit.exact("softmax"))
    with pytest.raises(ValueError, match="X must be"):
        released(model, "softmax", data=([["a"] * kit.D], [0]))
