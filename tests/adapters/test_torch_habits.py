"""Habits of torch's users: torch's own numbers, or a refusal that spends nothing."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional

from demur import AddOrRemoveOne, Budget, Filter, Ledger
from demur.adapters.torch import PrivateModule, derivatives, modules, refusals
from demur.training import clipped_grad, fit
from tests.training.clipping.kit import QUICK_TO_COMPILE
from tests.training.kit import make_plan

pytestmark = pytest.mark.slow

ROWS = {"x": jnp.ones((4, 6)), "y": jnp.array([0, 1, 2, 1])}
WEIGHTS = torch.tensor([1.0, 1.0, 9.0])  # equal for 0 and 1, which a check makes up


class Layer(nn.Module):
    def __init__(self, function=lambda self, x: self.linear(x)):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 3), function
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        return self.function(self, x)


def plain(module, batch):
    return functional.cross_entropy(module(batch["x"]), batch["y"].long())


def refused(make, loss=plain, **options):
    """The words of the refusal; the ledger has no entry."""
    ledger = Ledger(
        Budget(3.0, 1e-6), unit=AddOrRemoveOne(), filter=Filter.gaussian(blocks=0.5)
    )
    data = {"x": np.ones((50, 6), np.float32), "y": np.zeros(50, np.int32)}
    with pytest.raises((TypeError, ValueError)) as caught:
        private = PrivateModule(make(), loss, **options)
        fit(make_plan(), private, data, optimizer=optax.sgd(0.1), ledger=ledger)
    assert not list(ledger.entries())
    assert str(caught.value).endswith("Nothing was spent.")
    return str(caught.value)


# -- numbers that are drawn ----------------------------------------------------------

KEYED = {
    "rand": lambda self, x: self.linear(x * torch.rand(6)),
    "randn": lambda self, x: self.linear(x * torch.randn(x.shape)),
    "randint": lambda self, x: self.linear(x * torch.randint(0, 99, (6,))),
    "rand_like": lambda self, x: self.linear(x * torch.rand_like(x)),
    "dropout": lambda self, x: functional.dropout(
        self.linear(x) * torch.arange(1.0, 4.0), 0.5, self.training
    ),
}


def drawn(function):
    """Norms of four equal examples, with two keys."""
    private = PrivateModule(Layer(function), lambda m, b: m(b["x"]).sum(), random=True)
    clipped = clipped_grad(
        private.loss, l2_clip_norm=1e9, return_grad_norms=True, prng_argnum=2
    )
    run = jax.jit(clipped, compiler_options=QUICK_TO_COMPILE)
    keys = [jax.random.key(i) for i in (0, 1)]
    found = [run(private.params, ROWS, key)[1].grad_norms for key in keys]
    return np.concatenate([np.asarray(norms) for norms in found])


@pytest.mark.parametrize("name", [name for name in KEYED if name != "dropout"])
def test_every_example_and_step_has_numbers_of_its_own(name):
    assert len(set(drawn(KEYED[name]).tolist())) == 8


def test_without_the_rules_all_examples_have_the_same_numbers(monkeypatch):
    monkeypatch.setattr(derivatives, "_DRAWING", ())
    with pytest.raises(TypeError, match="torch's generator of the CPU"):
        drawn(KEYED["rand"])
    nothing = refusals.contextmanager(lambda: iter([None]))
    monkeypatch.setattr(modules, "unkeyed_draws_refused", nothing)
    assert len(set(drawn(KEYED["rand"]).tolist())) == 1


DRAWS = {
    "Python": (lambda s, x: s.linear(x) * random.random(), "Python's random"),
    "NumPy": (lambda s, x: s.linear(x) * np.random.rand(), "numpy.random"),
    "a generator": (
        lambda s, x: s.linear(x + torch.rand(6, generator=torch.Generator())),
        "leave generator= out",
    ),
    "exponential_": (
        lambda s, x: s.linear(x * torch.empty_like(x).exponential_()),
        "no key of its own",
    ),
    "gumbel": (lambda s, x: functional.gumbel_softmax(s.linear(x)), "no key of its"),
    "always": (
        lambda s, x: functional.dropout(s.linear(x), 0.5, training=True),
        "write training=self.training",
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_without_a_key_are_refused(name):
    function, words = DRAWS[name]
    assert words in refused(lambda: Layer(function), random=True)


# -- what is kept, and what is no module of torch's own --------------------------------


def assigned(self, x):
    self.seen = 0.9 * self.seen + 0.1 * x.detach().mean()
    return self.linear(x)


def added(self, x):
    self.seen += 1.0
    return self.linear(x)


def hooked(self, x):
    scores = self.linear(x)
    scores.register_hook(lambda gradient: 0 * gradient)
    return scores


def with_spectral_norm():
    return nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))


def counted(self, x):
    self.calls = getattr(self, "calls", 0) + 1
    return self.linear(x) * min(1.0, self.calls / 100)


class Words(nn.Embedding):
    """Rows of a table, averaged; the numbers of the words are made of the inputs."""

    def forward(self, x):
        return super().forward(x.long().clamp(0, 6)).mean(1)


class OnManyDevices(nn.DataParallel):
    """Torch's own moves its module to torchax' device, once that is known."""

    def __init__(self):
        nn.Module.__init__(self)
        self.module = Layer()


MODULES = {
    "a buffer assigned": (lambda: Layer(assigned), "changes its buffer seen"),
    "a buffer added to": (lambda: Layer(added), "changes its buffer seen"),
    "a counter": (lambda: Layer(counted), "changes calls whenever it runs"),
    "a hook": (lambda: Layer(hooked), "Tensor.register_hook"),
    "scale_grad_by_freq": (
        lambda: Words(7, 3, scale_grad_by_freq=True),
        "how often its row occurs in the batch",
    ),
    "functional.embedding": (
        lambda: Layer(
            lambda s, x: functional.embedding(
                x.long()[:, 0].clamp(0, 2), s.linear.weight[:, :3], max_norm=1.0
            )
        ),
        "examples depend on each other",
    ),
    "no module": (lambda: nn.Linear, "an object and not its class; got Linear"),
    "rows by a mask": (
        lambda: Layer(lambda s, x: s.linear(x)[x[:, 0] > -9.0]),
        "looks at the values",
    ),
    "spectral_norm": (with_spectral_norm, r"(spectral_norm): call .eval()"),
    "older weight_norm": (
        lambda: torch.nn.utils.weight_norm(nn.Linear(6, 3)),
        "parametrizations.weight_norm",
    ),
    "DataParallel": (OnManyDevices, "pass module.module"),
    "meta": (lambda: nn.Linear(6, 3, device="meta"), "load the weights first"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_refused_by_name(name):
    make, words = MODULES[name]
    assert words in refused(make)


def test_what_a_module_keeps_about_shapes_is_no_counter():
    def measured(self, x):
        self.width = x.shape[1]
        return self.linear(x)

    private = PrivateModule(Layer(measured), plain)
    for _ in range(3):
        private.loss(private.params, ROWS)


LOSSES = {
    "no loss": (None, {}, "loss must be a function"),
    "a loss for each": (
        lambda m, b: functional.cross_entropy(
            m(b["x"]), b["y"].long(), reduction="none"
        ),
        {},
        r"of shape (1,): end with .mean()",
    ),
    "nothing to train": (plain, {"trainable": None}, "trainable must be"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_or_a_choice_that_cannot_be_is_refused(name):
    loss, options, words = LOSSES[name]
    assert words in refused(Layer, loss, **options)


def test_buffers_are_not_trained():
    """They were, by a pattern of names, and `to_module` left them out."""
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    for choice in ("*", ["*"], lambda name, leaf: True):
        assert not any(
            "running" in n
            for n in PrivateModule(module, plain, trainable=choice).params
        )
    lora = PrivateModule(module, plain, trainable="lora", targets="*", also="1.*")
    assert set(lora.params) == {"0.weight", "1.weight", "1.bias"}


def weighted(module, batch):
    return functional.cross_entropy(module(batch["x"]), batch["y"], weight=WEIGHTS)


def weighted_layer(module, batch):
    return nn.CrossEntropyLoss(weight=WEIGHTS)(module(batch["x"]), batch["y"])


def weighted_nll(module, batch):
    scores = functional.log_softmax(module(batch["x"]), -1)
    return nn.NLLLoss(WEIGHTS)(scores, batch["y"])


@pytest.mark.parametrize("loss", [weighted, weighted_layer, weighted_nll])
def test_weights_of_classes_over_a_batch_are_refused(loss):
    """For one example at a time they would cancel."""
    assert "reduction='none') * weight[y]).mean()" in refused(Layer, loss)


def test_weights_as_the_refusal_has_them_count():
    def loss(module, batch):
        labels = batch["y"].long()
        each = functional.cross_entropy(module(batch["x"]), labels, reduction="none")
        return (each * WEIGHTS[labels]).mean()

    module = Layer()
    private = PrivateModule(module, loss)
    rows = {name: torch.tensor(np.asarray(column)) for name, column in ROWS.items()}
    wanted = loss(module, rows).item()
    assert float(private.loss(private.params, ROWS)) == pytest.approx(wanted, rel=1e-5)


class Tagged(nn.Module):
    """A label for each word."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, words):
        return self.head(self.rows(words))


def over_words(module, batch):
    scores = module(batch["words"]).flatten(0, 1)
    return functional.cross_entropy(scores, batch["labels"].long().flatten())


def test_labels_that_are_ignored_leave_the_mean_over_an_examples_own_words():
    """As the page says; torch's loss of a batch counts long texts for more."""
    rng = np.random.default_rng(0)
    words, labels = rng.integers(0, 11, (3, 5)), rng.integers(0, 3, (3, 5))
    labels[0, 1:] = labels[1, 3:] = -100
    module = Tagged()
    private = PrivateModule(module, over_words)
    clipped = clipped_grad(private.loss, l2_clip_norm=1e3)
    batch = {"words": jnp.asarray(words), "labels": jnp.asarray(labels)}
    found = jax.jit(clipped, compiler_options=QUICK_TO_COMPILE)(private.params, batch)
    rows = {"words": torch.tensor(words), "labels": torch.tensor(labels)}
    for i in range(3):  # gradients add up
        one = {name: row[i : i + 1] for name, row in rows.items()}
        over_words(module, one).backward()
    wanted = module.rows.weight.grad.numpy().copy()
    np.testing.assert_allclose(found.value["rows.weight"], wanted, atol=1e-6)
    module.zero_grad()
    (3 * over_words(module, rows)).backward()
    assert np.abs(module.rows.weight.grad.numpy() - wanted).max() > 0.05


def test_an_output_in_place_of_its_loss_is_refused():
    assert "that is .loss" in refused(Layer, lambda m, b: {"loss": plain(m, b)})
