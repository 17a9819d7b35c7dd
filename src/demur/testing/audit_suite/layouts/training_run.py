"""One process of a training run that `layouts.training` starts.

    python -m demur.testing.audit_suite.layouts.training_run FOLDER LAYOUT ...

Behind the layout come seed, steps, a port of this machine and the number of this
process. The first process writes what the run gave.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demur.core.entropy import Seeded
from demur.testing.audit_suite import recorded_fit
from demur.testing.audit_suite.layouts.children import FOUND
from demur.testing.audit_suite.layouts.training import LAYOUTS
from demur.training import (
    ProcessRows,
    Reporting,
    Resources,
    Trained,
    fit,
    named_optimizer,
)
from demur.training.distributed import is_first, start

_JAX = import_module("jax")  # engines below know it: the suite names none of its types
FAR = 1e3  # clipping takes a record from here to the clip norm

Rows = NDArray[np.float32]


def world(far: bool) -> Rows:
    """Records without a gradient; the last one far away, or like the others."""
    rows = np.zeros((recorded_fit.RECORDS, recorded_fit.SIZE), np.float32)
    if far:
        rows[-1] = FAR
    # Processes with equal rows are refused: one number tells them apart, in a column
    # of its own that has no parameter.
    return np.column_stack([rows, np.arange(len(rows), dtype=np.float32)])


def loss(params: Any, batch: Any) -> Any:
    """The gradient of an example is the example, without its last number."""
    return recorded_fit.loss(params, batch[:, :-1])


def noisy_sums(
    rows: Rows, steps: int, seed: int, given: dict[str, Any]
) -> tuple[Trained, NDArray[np.float64]]:
    """What each step took away from the parameters."""
    options = dict(given)
    params = options.pop("params", recorded_fit.params())
    plan = recorded_fit.plan(steps, **options.pop("plan", {}))
    data = options.pop("data", lambda whole: whole)(rows)
    seen = [np.zeros(recorded_fit.SIZE)]

    def look(report: Any) -> None:
        seen.append(recorded_fit.flat([report.params()[name] for name in ("b", "w")]))

    trained = fit(
        plan,
        loss,
        params,
        data,
        optimizer=named_optimizer("sgd", 1.0),
        delta=1e-5,
        resources=Resources(check_loss=False, **options),
        reporting=Reporting(callback=look, progress=False),
        source=Seeded(seed),
    )
    return trained, -np.diff(np.array(seen), axis=0)


def _cut(mesh: Any) -> dict[str, Any]:
    """Parameters that come cut along the second axis of the mesh."""
    sharding = _JAX.sharding
    specs = {"b": ("model",), "w": (None, "model")}
    cuts = {
        name: sharding.NamedSharding(mesh, sharding.PartitionSpec(*axes))
        for name, axes in specs.items()
    }
    return {
        name: _JAX.device_put(leaf, cuts[name])
        for name, leaf in recorded_fit.params().items()
    }


def _own_part(rows: Rows, own: int, count: int) -> ProcessRows:
    parts = np.array_split(rows, count)
    return ProcessRows(parts[own], [len(part) for part in parts])


def options_of(name: str, port: int, own: int) -> dict[str, Any]:
    """The layout in the words of `Resources`, and data, parameters or plan with it."""
    count = LAYOUTS[name].processes
    if count > 1:
        mesh = start(f"127.0.0.1:{port}", count, own, join_s=600)
        return {"mesh": mesh, "data": partial(_own_part, own=own, count=count)}
    devices = np.array(_JAX.devices())
    mesh = _JAX.sharding.Mesh(devices, ("data",))
    if name == "tensor":
        grid = _JAX.sharding.Mesh(devices.reshape(2, -1), ("data", "model"))
        given = {"batch_axes": ("data",), "params": _cut(grid)}
        return {"mesh": grid, "microbatch_size": 16} | given
    own_options: dict[str, dict[str, Any]] = {
        "sharded": {"shard_parameters": True},
        "microbatches": {"microbatch_size": 16},
        "lattice": {"plan": {"noise": "lattice"}},
    }
    return {"mesh": mesh} | own_options[name]


def main(folder: Path, name: str, seed: int, steps: int, port: int, own: int) -> None:
    """The run on both worlds, with the same noise."""
    options = options_of(name, port, own)
    trained, near = noisy_sums(world(far=False), steps, seed, options)
    _, moved = noisy_sums(world(far=True), steps, seed, options)
    if is_first():
        np.savez(
            folder / FOUND,
            near=near,
            moved=moved,
            deviation=recorded_fit.told_deviation(trained.entry),
            clip=recorded_fit.CLIP,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *(int(word) for word in sys.argv[3:]))
