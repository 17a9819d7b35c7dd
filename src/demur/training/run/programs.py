"""Compiled programs of a shape plan, made beforehand and in the background.

Exactly the sizes of the plan are compiled, before any batch is drawn: neither what is
compiled nor the compile cache depends on the batches. (Which of the programs runs when
does follow the batch sizes, as any running time does.) Programs are kept in memory for
the next run, and on disk for the next process (`program_files`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import NamedSharding

from demur.training.devices.caller_settings import callers_settings
from demur.training.run import program_files
from demur.training.sizes.shapes import ShapePlan

# A plan that is run again (other data, another seed, a resumed run) has the same
# programs. They are cached by their text: a loss that changed is compiled again.
_CACHE: OrderedDict[str, Any] = OrderedDict()
_LARGEST_CACHE = 16
_LOCK = threading.Lock()


class Programs:
    """Compiled versions of one step function, one for each physical size.

    `arguments(size)` gives the shapes of the step's arguments (arrays or
    `jax.ShapeDtypeStruct`) for a minibatch of `size`. `step` may be jitted already,
    with donated arguments for instance. With `public`, the arrays that are known to be
    in it, programs are read from and written to the folder of `program_files`.

    >>> import jax.numpy as jnp
    >>> plan = ShapePlan((4, 8), None, 10, 0.0, 0.0, 0.0)
    >>> with Programs(
    ...     jnp.sum, plan, lambda size: (jax.ShapeDtypeStruct((size,), jnp.float32),)
    ... ) as programs:
    ...     float(programs[4](jnp.ones(4)))
    4.0
    """

    def __init__(
        self,
        step: Callable[..., Any],
        plan: ShapePlan,
        arguments: Callable[[int], Sequence[Any]],
        *,
        public: Sequence[Any] | None = None,
    ) -> None:
        jitted: Any = step if hasattr(step, "lower") else jax.jit(step)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="demur-compile")
        settings = callers_settings()
        self._waiting: dict[int, Future[Any]] = {}
        # The largest first: it is the one that may not fit, and a full run needs it.
        for size in sorted(plan.sizes, reverse=True):
            structs = arguments(size)
            # Traced here: precision, dtypes and an audit's tape are the caller's.
            traced = jitted.trace(*structs)
            self._waiting[size] = self._pool.submit(
                _compiled, settings, traced, structs, public
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes there are programs for."""
        return tuple(sorted(self._waiting))

    def __getitem__(self, size: int) -> Any:
        """The program for `size`; waits until it is compiled."""
        if size not in self._waiting:
            raise KeyError(
                f"no program of size {size} was planned; there are {self.sizes}"
            )
        return self._waiting[size].result()

    def close(self) -> None:
        """Stop compiling what has not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compiled(
    settings: Callable[[], AbstractContextManager[None]],
    traced: Any,
    structs: Sequence[Any],
    public: Sequence[Any] | None,
) -> Any:
    with settings():
        return _found_or_compiled(traced, structs, public)


def _found_or_compiled(
    traced: Any, structs: Sequence[Any], public: Sequence[Any] | None
) -> Any:
    lowered = traced.lower()
    text = lowered.as_text()
    if "callback" in text:  # names the Python function by its position only
        return lowered.compile()
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(structs)]
    # A sharding is shown without its devices, and a program belongs to them.
    where = [_devices(one) for one in shardings]
    described = f"{text} {lowered.in_tree} {lowered.out_tree} {shardings} {where}"
    name = hashlib.sha256(described.encode()).hexdigest()
    with _LOCK:
        if name in _CACHE:
            _CACHE.move_to_end(name)
            return _CACHE[name]
    stored = (
        public is not None
        and program_files.is_used()
        and _on_one_device(shardings)
        and program_files.may_be_stored(traced.jaxpr, public)
    )
    program = program_files.load(name, lowered) if stored else None
    if program is None:
        program = lowered.compile()
        if stored:
            program_files.store(name, program)
    with _LOCK:
        _CACHE[name] = program
        while len(_CACHE) > _LARGEST_CACHE:
            _CACHE.popitem(last=False)
    return program


def _devices(sharding: Any) -> list[int]:
    """The devices of a sharding, in the order of its mesh where it has one."""
    if isinstance(sharding, NamedSharding):
        return [device.id for device in sharding.mesh.devices.flat]
    return [] if sharding is None else sorted(d.id for d in sharding.device_set)


def _on_one_device(shardings: Sequence[Any]) -> bool:
    """Whether all is on the first device: a mesh of another process may be another."""
    first = {jax.devices()[0]}
    return all(one is None or one.device_set == first for one in shardings)
