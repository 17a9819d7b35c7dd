"""Parts of a model: what is trained, what is kept, and what each of them costs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur import Seeded
from demur.training import Checkpoint, CheckpointRefused, clipped_grad
from demur.training.finetuning import last_layers, lora, select
from demur.training.finetuning.parts import names_of
from demur.training.run.steps import Steps
from tests.training import kit
from tests.training.clipping.kit import QUICK_TO_COMPILE
from tests.training.crash import open_ledger
from tests.training.kit import make_params

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


def array(*shape):
    return jnp.asarray(RNG.normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)


PARAMS = {
    "emb": array(20, 8),
    "layers": {"q": array(3, 8, 8), "o": array(3, 8, 8), "bias": array(3, 8)},
    "head": {"w": array(8, 2), "bias": array(2)},
}
BATCH = {
    "tokens": jnp.asarray(RNG.integers(0, 20, size=(6, 5))),
    "y": jnp.asarray(RNG.integers(0, 2, size=6)),
}


def loss(params, batch):
    """A scan, a checkpoint, a transpose, an einsum, a look-up and a jitted product."""

    @jax.checkpoint
    def layer(x, weights):
        h = jnp.tanh(x @ weights["q"].T + weights["bias"])
        return x + jnp.einsum("bti,oi->bto", h, weights["o"]), None

    x, _ = jax.lax.scan(layer, params["emb"][batch["tokens"]], params["layers"])
    logits = jax.jit(jnp.matmul)(x.mean(axis=1), params["head"]["w"])
    logits += params["head"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean()


@pytest.mark.parametrize("choose", [select, lambda p, t: lora(p, rank=1, targets=t)])
def test_two_parameters_of_one_name_are_refused(choose):
    """Keys joined by dots: one of the two would have taken both places."""
    params = {"a.b": jnp.ones((2, 3)), "a": {"b": jnp.zeros((3, 2))}, "c": jnp.ones(1)}
    with pytest.raises(ValueError, match="name a.b"):
        choose(params, "a.b")
    with pytest.raises(ValueError, match="name a.b"):
        choose(params, lambda name, leaf: leaf.shape == (2, 3))
    assert select(params, "c").names == ("c",)


PARTS = {
    "select": select(PARAMS, "*bias", "head.*"),
    "last layers": last_layers({"layers": [PARAMS]}, 1),
    "stacked": lora(PARAMS, rank=2, alpha=4.0, stacked=1),
    "matrices": lora(PARAMS, rank=2, alpha=4.0),
    "one": lora(
        PARAMS, rank=2, targets=lambda name, _: name == "emb", also=["head.w", "*bias"]
    ),
}


def moved(tree):
    """Not the start, where half of LoRA's matrices are 0."""
    return jax.tree.map(lambda leaf: leaf + 0.3 * array(*leaf.shape), tree)


def loss_of(name):
    if name == "last layers":
        return lambda params, batch: loss(params["layers"][0], batch)
    return loss


@pytest.mark.parametrize("name", PARTS)
def test_value_gradient_and_clipped_sum_are_those_of_the_merged_model(name):
    part, whole = PARTS[name], loss_of(name)
    trained, own = moved(part.params), part.loss(whole)
    value, gradient = jax.value_and_grad(own)(trained, BATCH)

    def merged(trained):
        return whole(part.merge(trained), BATCH)

    wanted, by_hand = jax.value_and_grad(merged)(trained)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), gradient, by_hand
    )
    sums = [
        jax.jit(
            clipped_grad(fun, l2_clip_norm=0.1, method=method),
            compiler_options=QUICK_TO_COMPILE,
        )(trained, BATCH).value
        for fun, method in (
            (own, "auto"),
            (lambda t, b: whole(part.merge(t), b), "vmap"),
        )
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-6), *sums)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_begins_as_the_model(name):
    part = PARTS[name]
    before = {"layers": [PARAMS]} if name == "last layers" else PARAMS
    after = part.merge(part.params)
    assert jax.tree.structure(after) == jax.tree.structure(before)
    jax.tree.map(np.testing.assert_array_equal, after, before)


def test_matrices_of_low_rank_meet_the_data_by_themselves():
    """No example has a gradient of a whole matrix; merged, every one has."""
    part = PARTS["stacked"]
    shown = clipped_grad(part.loss(loss), l2_clip_norm=1.0).explain(part.params, BATCH)
    assert {leaf.method for leaf in shown.leaves} == {"instantiated"}
    twin = clipped_grad(lambda t, b: loss(part.merge(t), b), l2_clip_norm=1.0)
    shown = twin.explain(part.params, BATCH)
    assert {leaf.method for leaf in shown.leaves} == {"per example"}


def test_what_is_frozen_costs_nothing():
    """Neither gradient nor memory of its size; trained, it has both."""
    model = {"table": jnp.ones((400, 300)), "w": jnp.ones((300, 2))}
    frozen = model["table"].nbytes

    def loss(model, ids):
        return (model["table"][ids] @ model["w"]).sum(-1).mean()

    def figures(part):
        of_part = part.loss(loss)

        def run(params, frozen, ids):
            return clipped_grad(of_part.at(frozen), l2_clip_norm=1.0)(params, ids).value

        program = jax.jit(run).lower(part.params, of_part.frozen, jnp.arange(3))
        found = program.compile(QUICK_TO_COMPILE).memory_analysis()
        return found.output_size_in_bytes, found.temp_size_in_bytes

    out, temporary = figures(select(model, "w"))
    assert out <= model["w"].nbytes + 64 and temporary < frozen / 8
    out, temporary = figures(select(model, "*"))
    assert out > frozen


def test_names_and_choices():
    both = ["*bias", lambda name, _: name == "emb"]
    assert select(PARAMS, both).names == ("emb", "head.bias", "layers.bias")
    assert set(PARTS["one"].names) == {"emb", "head.w", "head.bias", "layers.bias"}
    assert PARTS["one"].params["head.w"] is PARAMS["head"]["w"]
    assert names_of(PARAMS)[:2] == ["emb", "head.bias"]
    assert select(PARAMS, "*bias").names == ("head.bias", "layers.bias")
    assert lora(PARAMS, rank=1, targets="layers.?", stacked=1).names == (
        "layers.o",
        "layers.q",
    )
    stack = {"layers": [array(1), array(1), array(1)], "head": array(1)}
    assert last_layers(stack, 2).names == ("layers.1", "layers.2")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: select(PARAMS, "*.kernel"), ValueError, "selects no parameter"),
        (lambda: select(PARAMS), ValueError, "takes patterns"),
        (lambda: select(PARAMS, ["*bias", "x"]), ValueError, "'x' selects no param"),
        (lambda: lora(PARAMS, rank=1, also="x"), ValueError, "'x' selects no param"),
        (lambda: select({"n": jnp.arange(3)}, "n"), TypeError, "no gradient"),
        (lambda: lora(PARAMS, rank=0), ValueError, "rank"),
        (lambda: lora(PARAMS, rank=1, alpha=0.0), ValueError, "alpha"),
        (
            lambda: lora(PARAMS, rank=1, targets="*bias", stacked=1),
            ValueError,
            "no mat",
        ),
        (lambda: last_layers(PARAMS, 1), ValueError, "0 numbered layers"),
        (lambda: PARTS["one"].merge({}), ValueError, "names of the part"),
    ],
)
def test_bad_input_gets_a_sentence(make, error, words):
    with pytest.raises(error, match=words):
        make()


# -- runs ------------------------------------------------------------------------------

WHOLE = make_params() | {"w": array(4, 2)}
HEAD = select(WHOLE, "b")
ONE_DEVICE = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))


@pytest.mark.parametrize(
    "options",
    [
        {"check_loss": True, "shapes": None, "minibatch_size": 8},
        {"microbatch_size": 4, "mesh": ONE_DEVICE},
    ],
    ids=["checked, in parts", "on a mesh"],
)
def test_a_run_of_a_part_is_the_run_of_a_loss_that_refers_to_the_rest(options):
    def refers(trained, batch):
        return kit.loss(HEAD.merge(trained), batch)

    options |= {"params": HEAD.params}
    found, wanted = (
        kit.train(kit.make_plan(), loss=fun, source=Seeded(1), **options)
        for fun in (HEAD.loss(kit.loss), refers)
    )
    assert found.value.keys() == {"b"}
    np.testing.assert_allclose(found.value["b"], wanted.value["b"], atol=1e-6)
    assert np.abs(found.value["b"]).max() > 0.01


def test_what_is_frozen_is_no_constant_of_a_program(monkeypatch):
    """Or it is copied into every program, and into every cache of programs."""
    texts = []
    prepare = Steps.prepare

    def watched(steps, state, *args, **options):
        prepare(steps, state, *args, **options)
        for function, shapes, arguments in steps._waiting:
            texts.append(function.lower(*arguments(shapes.sizes[0])).as_text())

    def refers(trained, batch):
        return kit.loss(HEAD.merge(trained), batch)

    monkeypatch.setattr(Steps, "prepare", watched)
    for fun in (HEAD.loss(kit.loss), refers):
        kit.train(kit.make_plan(), loss=fun, params=HEAD.params, source=Seeded(1))
    ours, twin = (re.findall(r"constant dense<.*> : tensor<4x2xf32>", t) for t in texts)
    assert len(twin) > len(ours) == 0


def test_another_frozen_part_does_not_go_on_from_a_checkpoint(tmp_path):
    def run(part, at=None):
        def stop(report):
            if report.step == at:
                raise KeyboardInterrupt

        with open_ledger(str(tmp_path)) as ledger:
            return kit.train(
                kit.make_plan(),
                loss=part.loss(kit.loss),
                params=HEAD.params,
                ledger=ledger,
                delta=None,
                checkpoint=Checkpoint(tmp_path / "run", every=3),
                callback=stop,
            )

    with pytest.raises(KeyboardInterrupt):
        run(HEAD, at=5)
    other = select(WHOLE | {"w": WHOLE["w"] + 1.0}, "b")
    with pytest.raises(CheckpointRefused):
        run(other)
    assert run(HEAD).steps == 12
