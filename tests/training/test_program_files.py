"""Programs on disk: read by the next process, and without data."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from demur.core.entropy import Seeded
from demur.training.run import program_files, programs
from demur.training.run.programs import Programs
from demur.training.sizes.shapes import ShapePlan
from tests.training.kit import make_plan, train

PLAN = ShapePlan((4,), None, 10, 0.0, 0.0, 0.0)
SECRET = np.arange(1, 65, dtype=np.float32) * np.float32(0.7310586)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A fresh folder, as in a process where JAX has no cache of its own."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    monkeypatch.setenv("DEMUR_PROGRAMS", str(tmp_path / "programs"))
    new_process(monkeypatch)
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


def new_process(monkeypatch):
    monkeypatch.setattr(programs, "_CACHE", type(programs._CACHE)())


def step(x):
    return jnp.tanh(x) * 2.5


def arguments(size):
    return (jax.ShapeDtypeStruct((size,), jnp.float32),)


def run(function=step, public=()):
    with Programs(function, PLAN, arguments, public=public) as ready:
        return np.asarray(ready[4](jnp.arange(4.0)))


def compiled(monkeypatch, function=step):
    """The result in a new process, and whether it was compiled there."""
    new_process(monkeypatch)
    times = []
    compile_it = jax.stages.Lowered.compile

    def count(self, *args, **kwargs):
        times.append(self)
        return compile_it(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(jax.stages.Lowered, "compile", count)
        result = run(function)
    return result, bool(times)


def files(folder):
    return sorted(folder.glob("*")) if folder.exists() else []


def test_the_next_process_reads_what_this_one_compiled(folder, monkeypatch):
    expected = run()
    (path,) = files(folder)
    result, again = compiled(monkeypatch)
    assert not again
    np.testing.assert_array_equal(result, expected)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_another_program_is_another_file(folder, monkeypatch):
    run()
    result, again = compiled(monkeypatch, lambda x: jnp.tanh(x) * 2.25)
    assert again
    np.testing.assert_allclose(result, np.tanh(np.arange(4.0)) * 2.25, rtol=1e-6)
    assert len(files(folder)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_file_is_compiled_again(folder, monkeypatch, damage):
    expected = run()
    (path,) = files(folder)
    content = bytearray(path.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
    kept = {"cut": len(content) // 2, "changed": len(content), "empty": 0}[damage]
    path.write_bytes(bytes(content[:kept]))
    result, again = compiled(monkeypatch)
    assert again
    np.testing.assert_array_equal(result, expected)
    assert not compiled(monkeypatch)[1], "the file was mended"


@pytest.mark.slow
def test_writers_at_the_same_time_leave_one_whole_file(folder, monkeypatch):
    traced = jax.jit(step).trace(*arguments(4))
    lowered = traced.lower()
    program = lowered.compile()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            pool.submit(program_files.store, "one name", program)
    assert len(files(folder)) == 1
    loaded = program_files.load("one name", lowered)
    np.testing.assert_array_equal(loaded(jnp.arange(4.0)), program(jnp.arange(4.0)))


@pytest.mark.slow
def test_only_so_many_are_kept(folder, monkeypatch):
    monkeypatch.setattr(program_files, "_MOST_FILES", 2)
    for factor in (1.5, 2.5, 3.5):
        run(lambda x, factor=factor: x * factor)
    assert len(files(folder)) == 2


def test_a_folder_that_others_can_write_is_not_used(folder, monkeypatch):
    run()
    folder.chmod(0o777)
    assert compiled(monkeypatch)[1]


def test_a_folder_that_cannot_be_written_stops_nothing(folder, tmp_path, monkeypatch):
    (tmp_path / "programs").write_text("a file is in the way")
    np.testing.assert_allclose(run(), np.tanh(np.arange(4.0)) * 2.5, rtol=1e-6)


def test_a_user_without_a_home_compiles(folder, monkeypatch):
    """A container's user without a home: storing fails, and no run with it."""

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DEMUR_PROGRAMS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(program_files.Path, "home", nowhere)
    np.testing.assert_allclose(run(), np.tanh(np.arange(4.0)) * 2.5, rtol=1e-6)


def test_a_medium_that_cannot_be_written_is_read(folder, monkeypatch):
    expected = run()

    def read_only(_):
        raise OSError("Read-only file system")

    monkeypatch.setattr(program_files.os, "utime", read_only)
    result, again = compiled(monkeypatch)
    assert not again
    np.testing.assert_array_equal(result, expected)


def test_what_a_killed_writer_left_is_dropped_in_its_turn(folder, monkeypatch):
    monkeypatch.setattr(program_files, "_MOST_FILES", 1)
    run()
    (path,) = files(folder)
    left = path.with_name(f"{path.name}.17.0123abcd")
    left.write_bytes(b"half of a program")
    os.utime(left, (1.0, 1.0))
    run(lambda x: x * 1.5)
    assert len(files(folder)) == 1
    assert not left.exists()


def captured(shape):
    """A step that refers to data, as a careless loss does."""
    array = jnp.asarray(SECRET[: int(np.prod(shape))].reshape(shape))
    return lambda x: x * jnp.ravel(array)[jnp.argmax(x) % array.size]


def inside(x):
    held = jnp.asarray(SECRET)
    return jax.lax.fori_loop(0, 3, lambda _, y: y + held[:4] * y, x)


def as_numpy(x):
    return x * np.max(x.shape) + SECRET[:4]


@jax.custom_vjp
def ruled(x):
    return x


ruled.defvjp(lambda x: (x, None), lambda _, g: (g * SECRET[:4],))


@jax.jit
def nested(x):
    return jax.jit(lambda y: y * jnp.asarray(SECRET)[:4] + y)(x)


def chosen(x):
    held = jnp.asarray(SECRET[:4])
    return jax.lax.cond(x[0] > 0, lambda: x * held, lambda: x)


KEY, COMPLEX = jax.random.key(3), jnp.complex64(1 + 2j)
ATTACKS = {
    "a complex number": lambda x: jnp.real(x * COMPLEX),
    "random key": lambda x: x + jax.random.normal(KEY, (4,)),
    "array": captured((64,)),
    "two numbers": captured((2,)),
    "one number": captured((1,)),
    "no axis": captured(()),
    "in a loop": inside,
    "as numpy": as_numpy,
    "in a derivative rule": jax.grad(lambda x: jnp.sum(ruled(x) ** 2)),
    "in a call": nested,
    "in a branch": chosen,
    "in a checkpoint": jax.grad(
        jax.checkpoint(lambda x: jnp.sum(jnp.sin(x * jnp.asarray(SECRET[:4]))))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_that_refers_to_an_array_is_not_stored(folder, name):
    run(ATTACKS[name])
    assert files(folder) == []


def test_arrays_that_are_known_to_be_public_may_be_stored(folder):
    run(as_numpy, public=[SECRET[:4]])
    assert len(files(folder)) == 1
    run(captured((64,)), public=[SECRET[:4], SECRET.astype(np.float64)])
    assert len(files(folder)) == 1


def test_what_would_be_stored_otherwise(folder, monkeypatch):
    """The broken twin: without the check, the array lies in the file as it is."""
    monkeypatch.setattr(program_files, "may_be_stored", lambda *_: True)
    run(ATTACKS["array"])
    (path,) = files(folder)
    assert SECRET.tobytes() in path.read_bytes()


def test_a_callback_is_not_stored(folder):
    def loud(x):
        jax.debug.callback(lambda _: None, x[0])
        return x

    run(loud)
    assert files(folder) == []


def test_the_users_own_settings_come_first(folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert not program_files.is_used()
    jax.config.update("jax_compilation_cache_dir", None)
    assert program_files.is_used()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert not program_files.is_used()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    run(public=None)
    assert files(folder) == []


@pytest.mark.slow
def test_a_run_stores_its_program_and_the_next_one_reads_it(folder, monkeypatch):
    plan = make_plan(iterations=2)
    first = train(plan, source=Seeded(3))
    (path,) = files(folder)
    new_process(monkeypatch)
    loaded = []
    load = program_files.load

    def watched(*args):
        loaded.append(load(*args))
        return loaded[-1]

    monkeypatch.setattr(program_files, "load", watched)
    second = train(plan, source=Seeded(3))
    assert [one is not None for one in loaded] == [True]
    np.testing.assert_array_equal(first.value["w"], second.value["w"])
    path.unlink()
    new_process(monkeypatch)
    train(plan, source=Seeded(3), store_programs=False)
    assert files(folder) == []
