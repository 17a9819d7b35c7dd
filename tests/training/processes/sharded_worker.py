"""One process of several: rows of its own, cut parameters, elastic checkpoints."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from demur.training import Checkpoint, Data, ProcessRows
from demur.training.devices.placement import shard
from tests.training import sharded_run
from tests.training.kit import N, make_data, make_plan
from tests.training.processes import worker
from tests.training.processes.problems import make_params
from tests.training.processes.worker import Watched, error_of, kept, lists, run

# -- rows that lie with their processes ------------------------------------------------


def own_part():
    """The rows of this process: the first 90 of process 0, then equal parts."""
    count, index = jax.process_count(), jax.process_index()
    rest = (N - 90) // max(1, count - 1)
    counts = [90] + [rest] * (count - 1) if count > 1 else [N]
    counts[-1] += N - sum(counts)
    first = sum(counts[:index])
    rows = {n: a[first : first + counts[index]] for n, a in make_data().items()}
    return rows, counts


def own_rows(mesh, folder):
    """Runs whose processes have a part of the rows each, and what is refused."""
    rows, counts = own_part()
    columns = {name: Watched(array) for name, array in rows.items()}
    data = Data(columns, len(rows["x"]))
    whole = run(mesh, data=ProcessRows(data, counts))
    found = {"whole": lists(whole.value), "statement": whole.entry.statement()}
    found["read"], found["rows"] = columns["x"].read, len(rows["x"])
    for name, options in {
        "microbatches": {"microbatch_size": 16},
        "in parts": {"shapes": None, "minibatch_size": 16, "microbatch_size": 8},
    }.items():
        done = run(mesh, data=ProcessRows(rows, counts), **options)
        found[name] = lists(done.value)
    index = jax.process_index()
    same = {name: array[: min(counts)] for name, array in make_data().items()}
    missing = {name: array[:-1] for name, array in rows.items()}
    devices = mesh.devices[::-1] if mesh is not None else None
    cases = {
        "same rows": lambda: run(
            mesh, data=ProcessRows(same, [min(counts)] * len(counts))
        ),
        "a row is missing": lambda: run(
            mesh, data=ProcessRows(missing if index == 1 else rows, counts)
        ),
        "other counts": lambda: run(
            mesh,
            data=ProcessRows(rows, counts[:-1] + [counts[-1] + (index == 0)]),
        ),
        "own rows in one alone": lambda: run(
            mesh, data=make_data() if index else ProcessRows(rows, counts)
        ),
        "elastic in one alone": lambda: run(
            mesh, checkpoint=Checkpoint(folder / "one", elastic=index == 0)
        ),
        "lattice": lambda: run(
            mesh, make_plan(noise="lattice"), data=ProcessRows(rows, counts)
        ),
        "mesh backwards": lambda: run(
            Mesh(devices, mesh.axis_names), data=ProcessRows(rows, counts)
        ),
    }
    if mesh is not None:
        found["errors"] = {name: error_of(act) for name, act in cases.items()}
    return found


# -- elastic ---------------------------------------------------------------------------

ELASTIC = {"elastic": True, "iterations": 60}


def elastic(mesh, folder):
    """A run that is not disturbed, and one whose second process dies."""
    return kept(mesh, folder / "elastic", **ELASTIC)


def elastic_killed(mesh, folder):
    last = jax.process_count() - 1
    return kept(mesh, folder.parent / "elastic_killed", die_at=8, who=last, **ELASTIC)


def elastic_again(mesh, folder):
    """Taken up where it was, on the same mesh and on whatever this one is."""
    place = folder.parent / "elastic_killed"
    copy = folder.parent / f"elastic_killed_{jax.process_count()}"
    return kept(mesh, copy if copy.exists() else place, **ELASTIC)


# -- other shardings -------------------------------------------------------------------


def grid(mesh):
    """Processes along "data", their devices along "model", and the other way round."""
    count = jax.process_count()
    devices = np.array(jax.devices()).reshape(count, -1)
    return {
        "model inside": Mesh(devices, ("data", "model")),
        "model across": Mesh(devices.T, ("data", "model")),
    }


def tensor(mesh, folder):
    """Parameters that come cut over devices of several processes."""
    found, index = {}, jax.process_index()
    specs = {"v": (None, "model"), "w": ("model", None)}

    def cut(devices):
        return {
            name: shard(
                np.asarray(leaf),
                NamedSharding(devices, PartitionSpec(*specs.get(name, ()))),
            )
            for name, leaf in make_params().items()
        }

    for name, devices in grid(mesh).items():
        options = {"batch_axes": ("data",), "params": cut(devices)}
        for also in (False, True):
            done = run(devices, **options, shard_parameters=also, check_loss=True)
            found[f"{name}, {also}"] = {
                "params": lists(done.value),
                "parts": {
                    n: a.addressable_shards[0].data.size / a.size
                    for n, a in done.value.items()
                },
            }
    devices = grid(mesh)["model across"]
    moved = cut(devices)
    first = moved["v"].addressable_shards
    parts = [np.asarray(part.data) + (index == 1) for part in first]
    moved["v"] = jax.make_array_from_single_device_arrays(
        moved["v"].shape,
        moved["v"].sharding,
        [jax.device_put(p, s.device) for p, s in zip(parts, first, strict=True)],
    )
    bad = cut(devices)
    if index == 1:
        bad["v"] = jnp.asarray(make_params()["v"])
    options = {"batch_axes": ("data",)}
    mine = {"shard_parameters": index == 1}
    axes = {"batch_axes": ("data",) if index else None}
    cases = {
        "cut in one alone": options | {"params": bad},
        "sharded in one alone": mine,
        "other batch axes": axes,
        "not finite": options
        | {"params": {n: a * (np.inf if n == "v" else 1) for n, a in moved.items()}},
    }
    found["errors"] = {
        name: error_of(lambda given=given: run(devices, **given))
        for name, given in cases.items()
    }
    return found


def memory(mesh, folder):
    """Bytes on one device by the compiled programs, sharded and replicated."""
    return sharded_run.memory_on(mesh)


SCENARIOS = worker.SCENARIOS | {
    act.__name__: act
    for act in (
        own_rows,
        elastic,
        elastic_killed,
        elastic_again,
        tensor,
        memory,
    )
}

if __name__ == "__main__":
    worker.main(SCENARIOS)
