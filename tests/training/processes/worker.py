"""One process of several: python -m tests.training.processes.worker PORT COUNT ..."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from demur.core.adjacency import AddOrRemoveOne
from demur.core.entropy import Seeded
from demur.core.errors import DemurError
from demur.ledger import Budget, Filter, Ledger
from demur.mechanisms.correlated import BandedToeplitz, Buffered, optimize_dense
from demur.training import (
    Checkpoint,
    ClippedSum,
    Data,
    UserData,
    as_data,
    clipped_grad,
    privatizer,
)
from demur.training.batches import subsets
from demur.training.devices.placement import Placement, ShardedData, shard
from demur.training.devices.processes import Processes
from demur.training.distributed import is_first, start
from demur.training.noise.layouts import ShardedLayout
from demur.training.noise.threefry import normals
from demur.training.run import agreement
from demur.training.run.steps import Steps
from tests.training.kit import SGD, N, make_data, make_plan, train
from tests.training.processes.launch import HEARTBEAT_S
from tests.training.processes.problems import OPTIONS, loss, make_params

SEED = 3
ALL_DEVICES = []  # the mesh of this process, once it has joined the others


def lists(tree):
    """Arrays as lists; what lies with several processes is brought together."""
    whole = jax.process_count() == 1 or Processes(ALL_DEVICES[0]).whole
    host = np.asarray if whole is True else whole
    return {name: host(leaf).tolist() for name, leaf in sorted(tree.items())}


def run(devices, plan=None, data=None, **options):
    """A small run; only the first process has a source and a ledger."""
    options = {"source": Seeded(SEED), "mesh": devices} | options
    options = {"params": make_params(), "loss": loss} | options
    if options["mesh"] is not None:
        options = OPTIONS | options
    plan = plan or make_plan(bands=3, l2_clip_norm=0.1)  # shorter than gradients
    return train(plan, data, **options)


def error_of(act):
    try:
        act()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# -- the same result -------------------------------------------------------------------


class Watched:
    """A column that notes which rows were read."""

    def __init__(self, array, fail_at=None):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape
        self.read, self.calls, self.fail_at = 0, 0, fail_at

    def __getitem__(self, rows):
        if isinstance(rows, slice):  # for the digest
            return self.array[rows]
        self.calls += 1
        if self.calls == self.fail_at:
            raise OSError("the disk is gone")
        self.read += len(rows)
        return self.array[rows]

    def __len__(self):
        return len(self.array)


def watched(fail_at=None):
    given = make_data()
    columns = {name: Watched(array, fail_at) for name, array in given.items()}
    return Data(columns, N), columns


def plain(mesh, folder):
    """A run, and all that is told of it."""
    data, columns = watched()
    seen = {}

    def look(report):
        seen["loss"] = report.exact.reveal()["loss"]
        seen["params"] = lists(report.params())

    done = run(mesh, data=data, average=0.9, callback=look, exact_metrics=True)
    return {
        "params": lists(done.value),
        "average": lists(done.average),
        "steps": done.steps,
        "statement": done.statement(),
        "waste": done.waste.reveal(),
        "read": columns["x"].read,
        "seen": seen["params"],
        "loss": {"last": seen["loss"]},
    }


def no_gradient(params, batch):
    return 0.0 * loss(params, batch)


def drawn(mesh, folder):
    """The normals of some leaves, padding cut off."""
    shapes = [(), (5,), (7, 3), (33, 9)]
    leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    keys = np.arange(8, dtype=np.uint32).reshape(4, 2)
    kinds = leaves if mesh is None else ShardedLayout(mesh).drawn_for(leaves)
    whole = Placement(mesh).replicated
    found = jax.jit(lambda keys: normals(keys, kinds), out_shardings=whole)(keys)
    pairs = zip(found, leaves, strict=True)
    return {str(b.shape): np.asarray(a).ravel()[: b.size].tolist() for a, b in pairs}


def other_noise(mesh, folder):
    """Strategies whose memory is no ring."""
    params = {"w": np.zeros((7, 3), np.float32)}
    placement, found = Placement(mesh), {}
    for name, strategy in {
        "nothing": BandedToeplitz([1.0], 70),
        "buffers": Buffered([0.9, 0.3], [0.3, 0.2], 70),
        "keys": optimize_dense(70),
    }.items():
        add = privatizer(strategy, stddev=1.0)
        add = add if mesh is None else add.on(mesh)
        state, update = add.init(params), jax.jit(add.update)
        for step in range(4):
            key = np.array([[step, 5]], np.uint32)
            zeros = ClippedSum(placement.replicate(params), 1.0)
            noisy, state = update(zeros, state, key=key)
        found[name] = lists(noisy)
    return found


def noise_alone(mesh, folder):
    """What is left without a gradient: noise, scaled and summed up."""
    return {"params": lists(run(mesh, loss=no_gradient).value)}


def in_parts(mesh, folder):
    done = run(mesh, shapes=None, minibatch_size=16, microbatch_size=4)
    return {"params": lists(done.value)}


def people(mesh, folder):
    data = UserData(make_data(), np.arange(N) // 4, examples=2)
    plan = make_plan(sampling_prob=0.2)
    return {"params": lists(run(mesh, plan, data).value)}


def lattice(mesh, folder):
    return {"params": lists(run(mesh, make_plan(noise="lattice", bands=3)).value)}


# -- each process its share ------------------------------------------------------------


def noise_cost(mesh, folder):
    """What one device computes and remembers for the noise of a step.

    The twin is the same noise, left to the compiler: parameters are on every device.
    """
    add_noise = make_plan(bands=3).noise_addition_transform
    placement = Placement(mesh)
    params = placement.replicate({"w": np.zeros((101, 99), np.float32)})
    key = np.array([[1, 2]], np.uint32)
    spread = add_noise.on(mesh)
    found = {}
    for name, act, state in (
        ("ours", spread, spread.init(params)),
        ("twin", add_noise, placement.replicate(add_noise.init(params))),
    ):
        step = jax.jit(act.update).lower(ClippedSum(params, 0.05), state, key=key)
        made = step.compile()
        words = {int(size) for size in re.findall(r"u32\[(\d+)\]", made.as_text())}
        pairs = re.findall(r"u32\[(\d+),(\d+)\]", made.as_text())
        words |= {int(a) * int(b) for a, b in pairs}
        costs = made.cost_analysis()
        assert costs is not None
        found[name] = {
            "flops": costs["flops"],
            "words": max(words),
            "memory": state.memory[0].addressable_shards[0].data.nbytes,
        }
    return found


def microbatches(mesh, folder):
    """The rows a device has at once; the twin leaves the loop to the compiler."""
    placement, rows = Placement(mesh), as_data(make_data())
    clipped = clipped_grad(loss, l2_clip_norm=1.0, microbatch_size=8)
    noise = make_plan().noise_addition_transform
    options = {"average": None, "exact": False, "placement": placement}
    steps = Steps(clipped, noise, SGD, **options)
    params = steps.init(make_params()).params
    batch, real = rows.structs((64,), placement.row_sharding), np.int32(64)

    def twin(params, batch, real):
        return clipped(params, batch, num_real=real)

    def ours(params, batch, real):
        return steps.first_sum(params, batch, real, None)

    found = {}
    for act in (ours, twin):
        text = jax.jit(act).lower(params, batch, real).compile().as_text()
        found[act.__name__] = max(int(n) for n in re.findall(r"f32\[(\d+),4\]", text))
    return found


def distinct_shards(mesh, folder):
    """Noise as it lies on the devices, one row for each; a twin has a key for all."""
    devices = PartitionSpec(mesh.axis_names)
    add_noise = make_plan(bands=3).noise_addition_transform.on(mesh)
    params = {"w": np.zeros((8 * mesh.size,), np.float32)}
    key = np.array([[1, 2]], np.uint32)
    zeros = ClippedSum(Placement(mesh).replicate(params), 0.05)
    noisy = jax.jit(add_noise.update)(zeros, add_noise.init(params), key=key)[0]["w"]
    twin = jax.shard_map(
        lambda key: jax.random.normal(jax.random.wrap_key_data(key[0]), (8,)),
        mesh=mesh,
        in_specs=PartitionSpec(),
        out_specs=devices,
        check_vma=False,
    )
    replicate = jax.jit(lambda x: x, out_shardings=Placement(mesh).replicated)
    whole = replicate(jax.jit(twin)(Placement(mesh).replicate(key)))
    return {
        "ours": np.asarray(noisy).reshape(mesh.size, -1).tolist(),
        "twin": np.asarray(whole).reshape(mesh.size, -1).tolist(),
    }


def clipping(mesh, folder):
    """The clipped sum inside shard_map, and a twin that JAX sums before the clip."""
    rows = as_data(make_data())
    indices = np.arange(64)
    params = {"w": jnp.asarray(np.linspace(-2, 2, 8).reshape(4, 2)), "b": jnp.ones(2)}
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    grad = clipped_grad(loss, l2_clip_norm=0.5)
    one = jax.jit(grad)(params, rows.take(indices)).value
    if mesh is None:
        return {"sum": lists(one)}
    placement = Placement(mesh)
    batch = ShardedData(rows, placement.row_sharding).take(indices)
    axis, spec = mesh.axis_names[0], PartitionSpec(mesh.axis_names)

    def ours(params, batch):
        return grad(params, batch).psum(axis).value

    def twin(params, batch):
        """Per-example gradients of parameters that do not vary, then the clip."""

        def each(row):
            return jax.grad(loss)(params, jax.tree.map(lambda a: a[None], row))

        found = jax.vmap(each)(batch)
        leaves = jax.tree.leaves(found)
        norms = jnp.sqrt(sum((g.reshape(len(g), -1) ** 2).sum(1) for g in leaves))
        factors = jnp.minimum(1.0, 0.5 / norms)
        total = jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), found)
        return jax.lax.psum(total, axis)

    placed = placement.replicate(params)
    results = {"sum": lists(one)}
    for name, act in (("ours", ours), ("twin", twin)):
        mapped = jax.shard_map(
            act, mesh=mesh, in_specs=(PartitionSpec(), spec), out_specs=PartitionSpec()
        )
        results[name] = lists(jax.jit(mapped)(placed, batch))
    return results


def handed_round(mesh, folder):
    """Arrays of process 0 in all, and spread ones whole again; empty ones too."""
    group = Processes(mesh)
    rng = np.random.default_rng(1)
    given = {
        "half": jnp.asarray(rng.normal(size=(3, 2)), jnp.bfloat16),
        "empty": np.zeros((0, 4), np.float32),
        "number": np.int32(7),
        "long": rng.normal(size=(2, 8)).astype(np.float32),
    }
    given = jax.tree.map(np.asarray, given)
    mine = given if group.first else jax.tree.map(np.zeros_like, given)
    got = group.arrays_from_first(mine, given)
    wide = {name: got[name] for name in ("empty", "long")}
    spec = PartitionSpec(None, mesh.axis_names)
    spread = shard(wide, NamedSharding(mesh, spec))
    whole = group.gather(spread)
    whole = whole if group.first else wide  # the others get nothing
    same = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), got, given)
    again = jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), whole, wide)
    return {"same": same, "again": again}


# -- who decides, and who fails --------------------------------------------------------


def stops(mesh, folder):
    """True from a process other than the first changes nothing."""
    index, found = jax.process_index(), {}
    for who in (0, 1):
        done = run(mesh, callback=lambda r, who=who: r.step == 4 and index == who)
        found[f"process {who}"] = done.steps
    return found


def small_ledger(epsilon):
    if not is_first():
        return None
    unit = AddOrRemoveOne()
    return Ledger(Budget(epsilon, 1e-5), unit=unit, filter=Filter.pure())


def failures(mesh, folder):
    """An error of one process, by what it was: told by every process."""
    index = jax.process_index()
    mine = index == 1

    def bad_loss(params, batch):
        if mine:
            raise RuntimeError("no such layer")
        return loss(params, batch)

    def other_loss(params, batch):
        return (2.0 if mine else 1.0) * loss(params, batch)

    def raise_at_3(report):
        if report.step == 3 and mine:
            raise KeyError("a callback of one")

    def interrupt_at_3(report):
        if report.step == 3 and mine:
            os.kill(os.getpid(), signal.SIGINT)

    moved = make_params()
    if mine:
        moved["b"] = moved["b"] + 1.0
    spent = {}
    cases = {
        "no mesh": {"mesh": None},
        "fewer rows": {"data": make_data(n=N - mine)},
        "bad data": {"data": {"x": np.array(["a"] * N)} if mine else make_data()},
        "other order": {"data": reordered(mine)},
        "other parameters": {"params": moved},
        "other loss": {"loss": other_loss},
        "bad loss": {"loss": bad_loss},
        "other plan": {"plan": make_plan(bands=3, noise_multiplier=4.0 + mine)},
        "ledger in the second": {
            "ledger": Ledger(Budget(9.0, 1e-5), unit=AddOrRemoveOne())
        }
        if mine
        else {},
        "declined": {"ledger": small_ledger(1e-3), "delta": None},
        "callback": {"callback": raise_at_3},
        "interrupt": {"callback": interrupt_at_3},
        "disk": {"data": watched(fail_at=5 if mine else None)[0]},
    }
    found = {}
    for name, options in cases.items():
        ledger = small_ledger(50.0)
        if "ledger" not in options:
            options |= {"ledger": ledger, "delta": None}
        began = time.monotonic()
        found[name] = error_of(lambda options=options: run(mesh, **options))
        spent[name] = {
            "entries": None if ledger is None else len(ledger.entries()),
            "seconds": time.monotonic() - began,
        }
    return {"errors": found, "after": spent}


def reordered(backwards):
    """The same rows, from the last to the first."""
    step = -1 if backwards else 1
    return {name: array[::step] for name, array in make_data().items()}


class Noted(Watched):
    """A column of records 0, 1, ... that notes which of them were read, by call."""

    def __init__(self, array):
        super().__init__(array)
        self.noted = []

    def __getitem__(self, rows):
        found = super().__getitem__(rows)
        if not isinstance(rows, slice):
            # Padding reads row 0, so that row is left out of what is noted.
            self.noted.append([int(i) for i in found[rows > 0]])
        return found


def records_of_steps(mesh, backwards):
    """Which records this process brought to each step of a run."""
    data = reordered(backwards)
    record = Noted(np.arange(N, dtype=np.int32)[:: -1 if backwards else 1])
    # Batches of 44 of 64 rows, so that both processes have a share of them.
    plan = make_plan(sampling_prob=0.22)
    run(mesh, plan, data=Data(data | {"record": record}, N))
    return record.noted


class OtherDraws:
    """A process whose sampler draws from another stream: another build, say."""

    def __init__(self, active):
        self.active, self.subset = active, subsets.subset

    def __enter__(self):
        if self.active:
            subsets.subset = lambda group, count, stream: self.subset(
                group, count, (stream.read(8), stream)[1]
            )

    def __exit__(self, *_):
        subsets.subset = self.subset


class OtherNumPy(OtherDraws):
    """A process that has another NumPy."""

    def __enter__(self):
        self.version = agreement.version
        if self.active:
            agreement.version = lambda name: (
                "0.0" if name == "numpy" else self.version(name)
            )

    def __exit__(self, *_):
        agreement.version = self.version


def agreements(mesh, folder):
    """Runs whose processes differ in what the price rests on, and unchecked twins."""
    mine, found = jax.process_index() == 1, {}
    cases = {
        "same": lambda: {"records": records_of_steps(mesh, False)},
        "other order": lambda: {"records": records_of_steps(mesh, mine)},
        "other draws": lambda: {"params": run_under(mesh, OtherDraws(mine))},
        "other numpy": lambda: {"params": run_under(mesh, OtherNumPy(mine))},
    }
    for name, act in cases.items():
        found[name] = result_or_error(act)
    with mock.patch.object(Data, "digest", Data.structure):
        found["order unchecked"] = result_or_error(cases["other order"])
    with mock.patch.object(agreement, "probe", lambda batches: "unchecked"):
        found["draws unchecked"] = result_or_error(cases["other draws"])
    with mock.patch.object(agreement, "versions", dict):
        found["numpy unchecked"] = result_or_error(cases["other numpy"])
    return found


def run_under(mesh, difference):
    with difference:
        return lists(run(mesh).value)


def result_or_error(act):
    try:
        return act()
    except DemurError as error:
        return {"error": f"{type(error).__name__}: {error}"}


# -- killed, and taken up again --------------------------------------------------------


def open_ledger(folder):
    return Ledger.open(
        folder / "ledger.db",
        dataset="several",
        budgets={AddOrRemoveOne(): Budget(50.0, 1e-5)},
        filter=Filter.pure(),
        testing=True,
    )


def kept(
    mesh,
    folder,
    *,
    die_at=None,
    who=None,
    noise="threefry",
    iterations=12,
    elastic=False,
    **options,
):
    def callback(report):
        if report.step == die_at and jax.process_index() == who:
            os.kill(os.getpid(), signal.SIGKILL)

    folder.mkdir(exist_ok=True)
    ledger = open_ledger(folder) if is_first() else None
    try:
        done = run(
            mesh,
            make_plan(iterations=iterations, bands=3, noise=noise),
            ledger=ledger,
            delta=None,
            checkpoint=Checkpoint(folder / "run", every=5, elastic=elastic),
            callback=callback,
            **options,
        )
        entries = None if ledger is None else len(ledger.entries())
        return {"params": lists(done.value), "entries": entries, "steps": done.steps}
    finally:
        if ledger is not None:
            ledger.close()


def undisturbed(mesh, folder):
    return kept(mesh, folder / "undisturbed")


def killed_first(mesh, folder):
    return kept(mesh, folder.parent / "killed_first", die_at=8, who=0)


def killed_second(mesh, folder):
    return kept(mesh, folder.parent / "killed_second", die_at=8, who=1)


def terminated(mesh, folder):
    """SIGTERM, which JAX by itself would take for a hint; no run, only meetings."""
    group = Processes(mesh)
    for turn in range(200):
        if turn == 3 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        with group.stage():
            pass


def other_mesh(mesh, folder):
    """A run that two processes began."""
    place = folder.parent / "killed_second"
    return {"error": error_of(lambda: kept(mesh, place))}


def taken_up(mesh, folder):
    names = ("killed_first", "killed_second")
    return {name: kept(mesh, folder.parent / name) for name in names}


SCENARIOS = {
    act.__name__: act
    for act in (
        plain,
        drawn,
        noise_alone,
        other_noise,
        in_parts,
        people,
        lattice,
        noise_cost,
        microbatches,
        distinct_shards,
        clipping,
        handed_round,
        stops,
        failures,
        agreements,
        undisturbed,
        killed_first,
        killed_second,
        terminated,
        other_mesh,
        taken_up,
    )
}


def main(scenarios=SCENARIOS) -> None:
    port, count, index = map(int, sys.argv[1:4])
    folder, names = Path(sys.argv[4]), sys.argv[5:]
    mesh = None
    if count > 1:
        address = f"127.0.0.1:{port}"
        mesh = start(
            address, count, index, heartbeat_s=HEARTBEAT_S, shutdown_s=HEARTBEAT_S
        )
        ALL_DEVICES.append(mesh)
    for name in names:
        print("scenario", name, flush=True)
        facts = scenarios[name](mesh, folder)
        (folder / f"{name}-{index}.json").write_text(json.dumps(facts))
    print("finished", flush=True)


if __name__ == "__main__":
    main()
