"""Torch modules in private runs: the gradients of torch itself, and back again."""

import copy
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

from demur import Seeded
from demur.adapters.torch import PrivateModule
from demur.training import (
    LossNotSeparable,
    Resources,
    clipped_grad,
    dp_sgd,
    fit,
    load_part,
    save_part,
)
from tests.training.clipping.kit import QUICK_TO_COMPILE
from tests.training.kit import ONE, make_plan
from tools import torch_table

pytestmark = pytest.mark.slow

CLIP, ROWS = 0.05, 3
EXAMPLES = Path(__file__).parents[2] / "examples"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


class Tied(nn.Module):
    """Input and output embedding are one matrix; a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.output = nn.Linear(8, 11, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("places", torch.arange(5))
        self.positions = nn.Embedding(5, 8)

    def forward(self, tokens):
        h = self.embedding(tokens) + self.positions(self.places)
        return self.output(torch.tanh(h)).mean(dim=1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, padding=None):
        h = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        return self.head(h[:, 0])


def images(rng):
    return {"x": rng.normal(size=(ROWS, 1, 8, 8)).astype(np.float32)}


def vectors(rng):
    return {"x": rng.normal(size=(ROWS, 6)).astype(np.float32)}


def tokens(rng):
    drawn = rng.integers(1, 11, size=(ROWS, 5))
    drawn[:, 3:] = 0  # padding
    return {"x": drawn}


def mlp():
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        Residual(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def padded(module, batch):
    scores = module(batch["x"], padding=batch["x"] == 0)
    return nn.functional.cross_entropy(scores, batch["y"])


def plain(module, batch):
    return nn.functional.cross_entropy(module(batch["x"]), batch["y"])


MODULES = {
    "mlp": (mlp, vectors, plain),
    "cnn": (cnn, images, plain),
    "tied": (Tied, tokens, plain),
    "attention": (Attention, tokens, padded),
}


def made(name):
    torch.manual_seed(0)
    make, rows, loss = MODULES[name]
    rng = np.random.default_rng(1)
    return make(), rows(rng) | {"y": rng.integers(0, 3, size=ROWS)}, loss


def clipped_by_torch(module, batch, loss):
    """Example by example, by torch's own derivatives."""
    total = {name: 0.0 for name, _ in module.named_parameters()}
    for i in range(ROWS):
        row = {name: torch.tensor(rows[i : i + 1]) for name, rows in batch.items()}
        module.zero_grad()
        loss(module, row).backward()
        grads = {n: p.grad.numpy().copy() for n, p in module.named_parameters()}
        length = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads.values()))
        for key, g in grads.items():
            total[key] = total[key] + g * min(1.0, CLIP / length)
    return total


@pytest.mark.parametrize("name", MODULES)
def test_clipped_sums_are_those_of_torch(name):
    module, batch, loss = made(name)
    private = PrivateModule(module.eval(), loss)
    clipped = clipped_grad(private.loss, l2_clip_norm=CLIP)
    run = jax.jit(clipped, compiler_options=QUICK_TO_COMPILE)
    found = run(private.params, jax.tree.map(jnp.asarray, batch)).value
    wanted = clipped_by_torch(module, batch, loss)
    assert found.keys() == wanted.keys()
    for key, leaf in wanted.items():
        np.testing.assert_allclose(found[key], leaf, atol=2e-6 * CLIP + 2e-7)
    # Not clipped at all, it would be far off.
    assert sum(np.square(leaf).sum() for leaf in wanted.values()) <= (ROWS * CLIP) ** 2


def test_a_look_up_with_padding_is_a_look_up():
    """Or every example has a gradient of the whole table: gigabytes."""
    module, batch, loss = made("attention")
    private = PrivateModule(module.eval(), loss)
    clipped = clipped_grad(private.loss, l2_clip_norm=CLIP)
    shown = clipped.explain(private.params, batch).leaves
    (table,) = [leaf for leaf in shown if "embedding" in leaf.name]
    assert table.method == "equal rows"


class ScaledRows(nn.Embedding):
    """As in BART: a look-up whose class has a forward of its own."""

    def forward(self, tokens):
        return 4.0 * super().forward(tokens)


def scaled():
    return nn.Sequential(ScaledRows(11, 8, padding_idx=0), nn.Linear(8, 3))


def with_a_hook():
    module = nn.Sequential(nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 3))
    module[0].register_forward_hook(lambda layer, inputs, rows: 4.0 * rows)
    return module


@pytest.mark.parametrize("make", [scaled, with_a_hook])
def test_a_look_up_with_code_of_its_own_runs_it(make):
    """The rule for padding rows took the place of that code: another model."""
    torch.manual_seed(3)
    module, tokens = make(), np.array([[1, 0, 5], [7, 7, 2]])

    def loss(module, batch):
        return (module(batch) ** 2).mean()

    private = PrivateModule(module, loss)
    value, gradient = jax.value_and_grad(private.loss)(
        private.params, jnp.asarray(tokens)
    )
    wanted = loss(module, torch.tensor(tokens))
    wanted.backward()
    np.testing.assert_allclose(value, wanted.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradient["0.weight"], module[0].weight.grad, atol=1e-6)


def test_a_module_without_a_parameter_to_train_says_so():
    with pytest.raises(ValueError, match="requires a gradient"):
        PrivateModule(nn.Linear(2, 1).requires_grad_(False), plain)


def test_a_module_is_trained_and_goes_back_where_it_came_from():
    module, _, loss = made("mlp")
    before = copy.deepcopy(module.state_dict())
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 6)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    private = PrivateModule(module, loss, trainable="lora", rank=2)
    assert set(private.params) == {"0.weight", "3.weight"}
    plan = dp_sgd(
        iterations=12,
        sampling_prob=0.2,
        noise_multiplier=1.0,
        neighboring_relation="ADD_OR_REMOVE_ONE",
        l2_clip_norm=1.0,
        normalize_by=60.0,
    ).make()
    done = fit(
        plan,
        private,
        data,
        optimizer=optax.adam(0.05),
        delta=1e-5,
        source=Seeded(1),
        resources=Resources(shapes=ONE),
    )
    after = private.to_module(done)
    module.load_state_dict(after.state_dict())
    assert private._whole.module[0].weight is private._module[0].weight  # one copy
    moved = {k for k, v in after.state_dict().items() if not torch.equal(v, before[k])}
    assert moved == {"0.weight", "3.weight"}
    rows = {"x": torch.tensor(x), "y": torch.tensor(data["y"]).long()}
    there = float(loss(after, rows).detach())
    here = float(private.loss(done.value, jax.tree.map(jnp.asarray, data)))
    assert there == pytest.approx(here, rel=1e-5)


def test_dropout_has_a_key_for_each_example():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
    private = PrivateModule(module, plain)
    assert private.loss.takes_key
    batch = {"x": jnp.ones((4, 6)), "y": jnp.zeros(4, int)}

    def norms(private, *key, **options):
        clipped = clipped_grad(
            private.loss, l2_clip_norm=1.0, return_grad_norms=True, **options
        )
        run = jax.jit(clipped, compiler_options=QUICK_TO_COMPILE)
        return np.asarray(run(private.params, batch, *key)[1].grad_norms)

    drawn = norms(private, jax.random.key(0), prng_argnum=2)
    assert len(set(drawn.tolist())) == 4
    # In evaluation mode equal rows have equal gradients.
    still = norms(PrivateModule(module.eval(), plain))
    np.testing.assert_allclose(still, still[0], rtol=1e-6)


class Hidden(nn.Module):
    """Dropout that no layer shows."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.5, self.training)


def test_dropout_that_no_layer_shows_is_found():
    batch = {"x": jnp.ones((2, 6)), "y": jnp.zeros(2, int)}
    private = PrivateModule(Hidden(), plain)
    with pytest.raises(TypeError, match="random=True"):
        private.loss(private.params, batch)
    private = PrivateModule(Hidden(), plain, random=True)
    values = {
        float(private.loss(private.params, batch, jax.random.key(i))) for i in range(4)
    }
    assert len(values) > 1


REFUSED = {
    "BatchNorm1d": r"layer \(BatchNorm1d\) normalises over the batch.*nn.GroupNorm",
    "BatchNorm2d": r"layer \(BatchNorm2d\) normalises over the batch.*nn.GroupNorm",
    "SyncBatchNorm": r"layer \(SyncBatchNorm\) normalises.*nn.GroupNorm",
    "functional.batch_norm": r"torch.nn.functional.batch_norm normal.*nn.GroupNorm",
    "InstanceNorm2d with running statistics": "track_running_stats=False",
    "Embedding with max_norm": "leave max_norm out",
    "Embedding with scale_grad_by_freq": "how often its row occurs in the batch",
    "LazyLinear": "run the module once",
}


@pytest.mark.parametrize("row", torch_table.REFUSED, ids=lambda row: row.name)
def test_what_cannot_be_private_is_refused_by_name(row):
    told = torch_table.refusal(row)
    assert re.search(REFUSED[row.name], told) and told.endswith("Nothing was spent.")


def test_wide_numbers_and_odd_precisions_are_refused():
    with pytest.raises(TypeError, match=r"call module.float\(\)"):
        PrivateModule(nn.Linear(6, 3).double(), plain)
    with pytest.raises(TypeError, match="precision must be"):
        PrivateModule(nn.Linear(6, 3), plain, precision=torch.int8)


@pytest.mark.deep
@pytest.mark.parametrize("row", torch_table.LAYERS, ids=lambda row: row.name)
def test_the_table_of_the_docs(row):
    assert torch_table.distance(row) < 2e-6


@pytest.mark.deep
@pytest.mark.parametrize("name", torch_table.MODELS)
def test_the_hugging_face_models_of_the_docs(name):
    pytest.importorskip("transformers", reason="machine: transformers is an extra")
    rows = {row.name: row for row in torch_table.hugging_face()}
    assert set(rows) == set(torch_table.MODELS)
    assert torch_table.distance(rows[name]) < 2e-6


def test_the_page_has_every_row_of_the_table():
    page = torch_table.PAGE.read_text()
    rows = [row.name for row in (*torch_table.LAYERS, *torch_table.REFUSED)]
    for name in (*rows, *torch_table.MODELS):
        assert page.count(f"| {name} |") == 1, "run python -m tools.torch_table --write"
    assert "FAILED" not in page


class Mixing(nn.Module):
    """Dropout, and the mean of the batch: what an attention across examples does."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.linear(self.dropout(x - x.mean(dim=0)))


def test_examples_that_interact_are_found_under_dropout():
    """Without its randomness the loss can be compared with itself."""
    data = {"x": np.ones((50, 6), np.float32), "y": np.zeros(50, np.int32)}
    private = PrivateModule(Mixing(), plain)
    assert private.loss.takes_key
    with pytest.raises(LossNotSeparable):
        fit(make_plan(), private, data, optimizer=optax.sgd(0.1), delta=1e-5)


class Recomputed(nn.Module):
    """Gradient checkpointing as a module's own code has it, around dropout."""

    def __init__(self, checkpoint, p=0.5):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.dropout, self.checkpoint = nn.Dropout(p), checkpoint

    def block(self, x, scale=1.0):
        return self.dropout(torch.tanh(self.first(x))) * scale

    def forward(self, x):
        if self.checkpoint:
            x = torch.utils.checkpoint.checkpoint(
                self.block, x, scale=2.0, use_reentrant=False
            )
        else:
            x = self.block(x, scale=2.0)
        return self.last(x)


def gradient_of(private, *key):
    batch = {"x": jnp.ones((2, 6)), "y": jnp.zeros(2, int)}
    traced = jax.jit(jax.grad(private.loss)).trace(private.params, batch, *key)
    run = traced.lower().compile(QUICK_TO_COMPILE)
    return run(private.params, batch, *key), str(traced.jaxpr)


def test_checkpointing_recomputes_with_the_same_numbers():
    torch.manual_seed(0)
    recomputed = Recomputed(True)
    same = copy.deepcopy(recomputed)
    same.checkpoint = False
    results = [
        gradient_of(PrivateModule(module, plain), jax.random.key(3))
        for module in (recomputed, same)
    ]
    (ours, text), (wanted, plain_text) = results
    assert "prevent_cse" in text and "prevent_cse" not in plain_text
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, wanted)
    # torch's own function is as it was.
    assert torch.utils.checkpoint.checkpoint.__module__.startswith("torch")


def test_a_checkpoint_hides_no_dropout():
    private = PrivateModule(Recomputed(True), plain, random=False)
    with pytest.raises(TypeError, match="random=True"):
        gradient_of(private)
    still = PrivateModule(Recomputed(True, p=0.0), plain)
    assert not still.loss.takes_key
    gradient_of(still)


def test_a_run_in_bfloat16_keeps_its_parameters():
    torch.manual_seed(0)
    module = mlp().eval()
    wide, _ = gradient_of(PrivateModule(module, plain))
    narrow, text = gradient_of(PrivateModule(module, plain, precision=torch.bfloat16))
    assert "bf16" in text
    for name, leaf in wide.items():
        assert narrow[name].dtype == jnp.float32
        np.testing.assert_allclose(narrow[name], leaf, atol=0.02)


def test_a_layer_that_keeps_its_statistics_is_taken():
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    assert "1.weight" in PrivateModule(module, plain).params


def test_the_module_is_left_alone():
    module, batch, loss = made("mlp")
    private = PrivateModule(module, loss)
    with torch.no_grad():
        module[0].weight.zero_()
    again = private.to_module(private.params)
    assert again[0].weight.abs().sum() > 0
    assert isinstance(module[0].weight, nn.Parameter)


@pytest.mark.parametrize("name", ["images", "text"])
def test_the_examples_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["example"])
    path = EXAMPLES / f"train_torch_{name}.py"
    runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().out
    assert told.startswith("accuracy ") and "It protects the presence" in told


def test_a_part_of_a_module_is_kept_by_itself(tmp_path):
    """Saved, loaded beside the same module, and a module again."""
    module, _, loss = made("mlp")
    private = PrivateModule(module, loss, trainable="lora", rank=2, also="3.bias")
    trained = jax.tree.map(lambda leaf: leaf + 0.1, private.params)
    save_part(private.part, trained, tmp_path / "adapter.safetensors")
    again = PrivateModule(module, loss, trainable="lora", rank=2, also="3.bias")
    found = again.to_module(load_part(again.part, tmp_path / "adapter.safetensors"))
    wanted = private.to_module(trained).state_dict()
    assert all(torch.equal(v, wanted[k]) for k, v in found.state_dict().items())
    assert not torch.equal(wanted["3.bias"], module.state_dict()["3.bias"])
