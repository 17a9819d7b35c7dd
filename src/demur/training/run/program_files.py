"""Compiled programs on disk, so that the next process need not compile them again.

What the folder holds. A program is made from shapes, before anything is paid: at that
time no batch is drawn and the noise key does not exist, and both are arguments of the
program. But a loss that refers to an array makes it a constant of the program, and
people do refer to data. So a program is stored only if what was traced refers to no
array, at any depth, but for those that the noise of the plan brings along by itself
(`public`: coefficients, and indices of leaves). A JAX array of one number counts,
unless it is 0 or 1. A number of Python or numpy (a mean of the data, say) cannot be
told from a width or a rate: it is part of the program. A program also tells the shapes
of a batch, which follow from the plan and the number of records, and the names and
source lines of the functions in it. So the folder is for the owner alone.

Trust. What is read is run. A folder or file that others could write is not used. A file
begins with the digest of the rest, so that a damaged or half-written one is compiled
again; files are written aside and linked, and the first writer wins.

The user's own settings. Where JAX's persistent cache is set up
(`jax_compilation_cache_dir`) that one is used and this one is not; where it is switched
off (`jax_enable_compilation_cache`), neither is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.extend import core

from demur.durable import private_files
from demur.training.clipping.ghost.inlining import every_equation
from demur.training.devices import placement

_MOST_FILES = 64
_DIGEST = 32


def folder() -> Path:
    """DEMUR_PROGRAMS, or `demur/programs` in the user's cache."""
    chosen = os.environ.get("DEMUR_PROGRAMS")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "demur" / "programs"


def is_used() -> bool:
    """Whether programs are stored here: not where JAX does it, or is told not to."""
    config: Any = jax.config
    on = bool(config.jax_enable_compilation_cache)
    return on and not config.jax_compilation_cache_dir and jax.process_count() == 1


def may_be_stored(traced: core.ClosedJaxpr, public: Iterable[Any]) -> bool:
    """Whether the program refers to no array that is not among the `public` ones."""
    known = [array for array in public if _is_plain(array)]
    return all(
        _is_plain(array)
        and (_says_nothing(array) or any(_same(array, other) for other in known))
        for array in constants(traced)
    )


def _is_plain(array: Any) -> bool:
    return not jnp.issubdtype(array.dtype, jax.dtypes.extended)  # a random key


def constants(traced: core.ClosedJaxpr) -> Iterator[Any]:
    """The arrays of a program, at any depth; numbers written in it are none."""
    yield from traced.consts
    for eqn in every_equation(traced):
        yield from _arrays_in(tuple(eqn.params.values()))
        for atom in eqn.invars:
            if isinstance(atom, core.Literal) and np.ndim(atom.val):
                yield atom.val


def _arrays_in(value: Any) -> Iterator[Any]:
    if isinstance(value, core.ClosedJaxpr):
        yield from value.consts
    elif hasattr(value, "dtype") and hasattr(value, "shape") and np.ndim(value):
        yield value  # of numpy or JAX
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _arrays_in(part)


def _same(array: Any, other: Any) -> bool:
    alike = (array.dtype, array.shape) == (other.dtype, other.shape)
    return alike and np.asarray(array).tobytes() == np.asarray(other).tobytes()


def _says_nothing(array: Any) -> bool:
    return bool(not array.size or (array.size == 1 and np.ravel(array)[0] in (0, 1)))


@cache
def _machine() -> str:
    """What a compiled program is bound to besides its text."""
    features = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    # A program that was compiled for other threads rounds otherwise here: a resumed run
    # must not find it in place of its own.
    return " ".join(
        (
            jax.__version__,
            placement.machine(),
            str(jax.devices()[0].id),
            str(jax.device_count()),
            platform.processor(),
            features,
        )
    )


def _path(name: str) -> Path:
    bound = hashlib.sha256(f"{name} {_machine()}".encode()).hexdigest()
    return folder() / f"{bound}.program"


def load(name: str, lowered: Any) -> Any:
    """The stored program of this name, or None."""
    try:
        path = _path(name)
        content = private_files.read(path)
        payload = content[_DIGEST:]
        if hashlib.sha256(payload).digest() != content[:_DIGEST]:
            path.unlink()  # damaged: the next one is written in its place
            return None
        # Left to itself JAX takes it for a program of all devices of this process.
        program = serialize_executable.deserialize_and_load(
            payload,
            lowered.in_tree,
            lowered.out_tree,
            execution_devices=[jnp.zeros(()).device],
        )
        with contextlib.suppress(OSError):  # a medium that is read only
            os.utime(path)
    except Exception:  # whatever keeps a file from being read, the program is compiled
        return None
    return program


def store(name: str, program: Any) -> None:
    """Store a program under its name; a folder that cannot be used is left alone."""
    try:
        payload, _, _ = serialize_executable.serialize(program)
        path = _path(name)
        private_files.write_new(path, hashlib.sha256(payload).digest() + payload)
        _drop_oldest(path.parent)
    except Exception:  # the run goes on without it
        return


def _drop_oldest(place: Path) -> None:
    def used(path: Path) -> float:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    # Those too that a writer had begun when it was killed.
    files = sorted(place.glob("*.program*"), key=used)
    for path in files[: max(0, len(files) - _MOST_FILES)]:
        with contextlib.suppress(OSError):
            path.unlink()
