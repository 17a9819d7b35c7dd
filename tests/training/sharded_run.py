"""Run by test_sharded_run in a process of its own, with eight host devices.

    python -m tests.training.sharded_run FOLDER [kill]

Prints what runs with sharded parameters gave, and what their programs hold. With
`kill` it begins a run with a checkpoint and is killed in it; the next call resumes it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint, ClippedSum, as_data, clipped_grad
from demur.training.devices.placement import Placement, ShardedData
from demur.training.run.steps import Steps
from tests.training.kit import make_plan, train

N, D, WIDTH, CLASSES = 200, 16, 64, 8
AUTO = (jax.sharding.AxisType.Auto,)


def make_mesh(shape=(8,), names=("data",)):
    return jax.make_mesh(shape, names, axis_types=AUTO * len(shape))


def some(which):
    return Mesh(np.array(jax.devices())[which], ("data",))


def backwards():
    return some(slice(None, None, -1))


def problem():
    rng = np.random.default_rng(0)
    sizes = [(D, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES)]
    params = {
        f"w{i}": jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32)
        for i, s in enumerate(sizes)
    }
    params["b"] = jnp.zeros(5)  # divides by nothing
    x = rng.normal(size=(N, D)).astype(np.float32)
    return params, {"x": x, "y": rng.integers(0, CLASSES, N).astype(np.int32)}


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["w0"])
    hidden = jnp.tanh(hidden @ params["w1"]) + params["b"].sum()
    logits = hidden @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def run(**options):
    params, data = problem()
    options = {"params": params, "source": Seeded(3)} | options
    plan = options.pop("plan", None) or make_plan(bands=3)
    return train(plan, data, loss=loss, optimizer=optax.adam(0.1), **options)


def by_tensor(params, mesh):
    """Columns of the first layer and rows of the second along "model"."""
    specs = {"w0": (None, "model"), "w1": ("model", None), "w2": (None, "model")}
    return {
        name: jax.device_put(
            leaf, NamedSharding(mesh, PartitionSpec(*specs.get(name, ())))
        )
        for name, leaf in params.items()
    }


def results(folder):
    """The last parameters of the same run, laid out in different ways."""
    line, grid = make_mesh(), make_mesh((4, 2), ("data", "model"))
    full = {"mesh": line, "shard_parameters": True}
    tensor = {
        "mesh": grid,
        "batch_axes": ("data",),
        "params": by_tensor(problem()[0], grid),
    }
    lattice = {"plan": make_plan(bands=3, noise="lattice")}
    parts = {"shapes": None, "minibatch_size": 16, "microbatch_size": 8}
    runs = {
        "one": {},
        "one with other noise": {"source": Seeded(4)},
        "replicated": {"mesh": line},
        "fully sharded": full,
        "fully sharded grid": full | {"mesh": grid},
        # After the first: their programs differ in nothing but their devices.
        "in another order": full | {"mesh": backwards()},
        "on half of them": full | {"mesh": some(slice(4))},
        "on the other half": full | {"mesh": some(slice(4, 8))},
        "tensor": tensor,
        "tensor, the rest sharded": tensor | {"shard_parameters": True},
        "in parts": full | parts,
        "microbatches": full | {"microbatch_size": 16},
        "average": full | {"average": 0.9},
        "one lattice": lattice,
        "lattice": full | lattice,
    }
    found = {}
    for name, options in runs.items():
        done = run(**options)
        found[name] = {
            "params": {n: np.asarray(a).tolist() for n, a in done.value.items()},
            "parts": {
                n: a.addressable_shards[0].data.size / a.size
                for n, a in done.value.items()
            },
        }
    return found


def noise_bits(folder):
    """The noise on sums of zero, and a twin without its key."""
    params, _ = problem()
    mesh = make_mesh((4, 2), ("data", "model"))
    zeros = jax.tree.map(jnp.zeros_like, params)
    add = make_plan(bands=3).noise_addition_transform
    cut = Placement(mesh, sharded=True).shardings(params)
    spread = add.on(mesh, tuple(jax.tree.leaves(cut)))
    keys = np.arange(2 * len(params), dtype=np.uint32).reshape(-1, 2)
    found = {}
    for name, act, at, own in (
        ("one", add, zeros, keys),
        ("sharded", spread, jax.tree.map(jax.device_put, zeros, cut), keys),
        ("twin", spread, jax.tree.map(jax.device_put, zeros, cut), keys + 1),
    ):
        state, update = act.init(params), jax.jit(act.update)
        for _ in range(4):
            noisy, state = update(ClippedSum(at, 0.05), state, key=own)
        found[name] = {n: np.asarray(leaf).tolist() for n, leaf in noisy.items()}
    return found


def norms(folder):
    """Per-example norms with cut parameters, and of a twin that sees one shard."""
    params, data = problem()
    batch = {name: column[:64] for name, column in data.items()}
    grad = clipped_grad(loss, l2_clip_norm=0.05, return_grad_norms=True)
    mesh = make_mesh((4, 2), ("data", "model"))
    placement = Placement(mesh, batch_axes=("data",))
    rows = ShardedData(as_data(data), placement.row_sharding).take(np.arange(64))
    placed = by_tensor(params, mesh)

    found = {}
    for name, p, b in (("one", params, batch), ("sharded", placed, rows)):
        total, aux = jax.jit(grad)(p, b)
        found[name] = {
            "norms": np.asarray(aux.grad_norms).tolist(),
            "sum": {n: np.asarray(a).tolist() for n, a in total.value.items()},
        }
    each = jax.vmap(
        lambda row: jax.grad(loss)(params, jax.tree.map(lambda a: a[None], row))
    )(batch)
    half = each["w0"][:, :, : WIDTH // 2], each["w1"][:, : WIDTH // 2]
    squares = sum((g.reshape(64, -1) ** 2).sum(1) for g in half)
    found["twin"] = {"norms": np.asarray(jnp.sqrt(squares)).tolist()}
    return found


def memory(folder):
    return memory_on(make_mesh())


def memory_on(mesh):
    """Bytes on one device, by the compiled programs' own figures.

    A network of eight wide layers, so that no single one is the whole.
    """
    rng = np.random.default_rng(0)
    wide = [rng.normal(size=(256, 256)).astype(np.float32) / 16 for _ in range(8)]

    def deep(params, batch):
        hidden = batch["x"]
        for matrix in params:
            hidden = jnp.tanh(hidden @ matrix)
        return jnp.mean(hidden**2)

    rows = as_data({"x": np.zeros((64, 256), np.float32)})
    found = {}
    for name, placement in (
        ("sharded", Placement(mesh, sharded=True)),
        ("replicated", Placement(mesh)),
    ):
        clipped = clipped_grad(deep, l2_clip_norm=1.0, normalize_by=20.0)
        add = make_plan(bands=3).noise_addition_transform
        steps = Steps(
            clipped,
            add,
            optax.adam(0.1),
            average=None,
            exact=False,
            placement=placement,
        )
        state = steps.init(wide)
        batch = rows.structs((64,), placement.row_sharding)
        shapes = type("Shapes", (), {"sizes": (64,)})()
        steps.prepare(
            state,
            shapes,
            lambda size, batch=batch: batch,
            several=True,
        )

        def on_one(tree):
            leaves = jax.tree.leaves(tree)
            return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)

        key, count = np.zeros((8, 2), np.uint32), np.int32(64)
        made = steps._jitted["whole_step"].lower(state, key, batch, count, None, None)
        sums = steps._jitted["first_sum"].lower(state.params, batch, count, None, None)
        figures = made.compile().memory_analysis()
        found[name] = {
            "params": on_one(state.params),
            "optimizer": on_one(state.optimizer),
            "noise": on_one(state.noise),
            "arguments": figures.argument_size_in_bytes,
            "results": figures.output_size_in_bytes,
            "temporary": figures.temp_size_in_bytes,
            "sums": sums.compile().memory_analysis().output_size_in_bytes,
        }
    return found


def refusals(folder):
    mesh, other = make_mesh(), make_mesh((4, 2), ("data", "model"))
    cut = by_tensor(problem()[0], other)
    cases = {
        "no mesh": {"params": cut},
        "another mesh": {"params": cut, "mesh": mesh},
        "sharded without mesh": {"shard_parameters": True},
        "unknown axis": {"mesh": mesh, "batch_axes": ("rows",)},
        "an axis twice": {"mesh": mesh, "batch_axes": ("data", "data")},
    }
    found = {}
    for name, options in cases.items():
        ledger = Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure())
        try:
            run(ledger=ledger, delta=None, **options)
            said = "no error"
        except ValueError as error:
            said = str(error)
        found[name] = {"said": said, "entries": len(ledger.entries())}
    return found


# -- killed, and taken up again --------------------------------------------------------


def kept(folder, die_at=None, **options):
    folder.mkdir(exist_ok=True)

    def callback(report):
        if report.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Ledger.open(
        folder / "ledger.db",
        dataset="sharded",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    ) as ledger:
        options = {"mesh": make_mesh(), "shard_parameters": True} | options
        try:
            done = run(
                ledger=ledger,
                delta=None,
                checkpoint=Checkpoint(folder / "run", every=5),
                callback=callback,
                **options,
            )
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        params = {n: np.asarray(a).tolist() for n, a in done.value.items()}
        return {"params": params, "entries": len(ledger.entries())}


def taken_up(folder):
    """Elsewhere first, which is refused; then on the mesh it began with."""
    other = make_mesh((4, 2), ("data", "model"))
    return {
        "undisturbed": kept(folder / "undisturbed"),
        "another mesh": kept(folder / "killed", mesh=other),
        "in another order": kept(folder / "killed", mesh=backwards()),
        "whole": kept(folder / "killed", shard_parameters=False),
        "again": kept(folder / "killed"),
    }


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    assert jax.device_count() == 8
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["kill"]:
        kept(folder / "killed", die_at=8)
        return
    if sys.argv[2:] == ["stored"]:
        done = run(plan=make_plan(iterations=2, noise="lattice"))
        print(json.dumps({"steps": done.steps, "files": len(list(folder.iterdir()))}))
        return
    acts = (results, noise_bits, norms, memory, refusals, taken_up)
    print(json.dumps({act.__name__: act(folder) for act in acts}))


if __name__ == "__main__":
    main()
