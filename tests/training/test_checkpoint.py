"""Runs that are cut short and taken up again."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from itertools import chain
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from demur.core.accounting.events import Pure
from demur.core.adjacency import AddOrRemoveOne
from demur.core.errors import EntryCommitted, KeysExposed, NoiseReuse
from demur.ledger import Budget, Filter, Ledger
from demur.training import Checkpoint, CheckpointRefused, ShapePlan, load_model
from demur.training.devices import placement
from demur.training.devices.placement import Placement
from demur.training.devices.processes import Processes
from demur.training.run import agreement, charges
from demur.training.run.checkpoints.checkpoint import CheckpointFolder, _pack, _unpack
from demur.training.run.steps import Steps
from tests.ledger.kit import says
from tests.programs import python

from .crash import open_ledger, run
from .kit import loss, make_data, make_params, make_plan, train

DIE_AT = {"threefry": 8, "lattice": 3}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Runs in other processes, which die right after a step: their folders."""
    folders = {noise: tmp_path_factory.mktemp(noise) for noise in DIE_AT}
    asked = [
        (str(folders[noise]), "3", noise, str(step)) for noise, step in DIE_AT.items()
    ]
    found = subprocess.run(
        [*python(), "-m", "tests.training.crash", *chain.from_iterable(asked)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.stdout.split() == ["-9", "-9"], found.stderr[-2000:]
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("noise, die_at", DIE_AT.items())
def test_a_killed_run_ends_as_if_it_had_not_been_killed(
    killed, tmp_path, noise, die_at
):
    """Killed before or after its first checkpoint: the same parameters, bit for bit,
    and the same draws."""
    cut, whole = killed[noise], tmp_path / "whole"
    whole.mkdir()
    with open_ledger(str(cut)) as ledger:
        (entry,) = ledger.entries()
        before = ledger._drawn(entry)
        assert before >= die_at // 3
    resumed = run(str(cut), noise=noise)
    straight = run(str(whole), noise=noise)
    for a, b in zip(
        jax.tree.leaves(resumed.value), jax.tree.leaves(straight.value), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    with open_ledger(str(cut)) as ledger:
        assert len(ledger.entries()) == 1
        assert ledger._drawn(resumed.entry) == resumed.entry.count == 4


def interrupted(folder, at=8, **options):
    """The run in this process, stopped by an exception after step `at`."""

    class Stop(Exception):
        pass

    def callback(report):
        if report.step == at:
            raise Stop

    with open_ledger(str(folder)) as ledger, pytest.raises(Stop):
        train(
            make_plan(bands=3),
            ledger=ledger,
            delta=None,
            checkpoint=Checkpoint(folder / "run", every=5),
            callback=callback,
            **options,
        )


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    interrupted(folder)
    return folder


@pytest.fixture
def cut_short(template, tmp_path):
    """A run that was stopped after step 8, last written after step 5."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


def again(folder, plan=None, data=None, **options):
    with open_ledger(str(folder)) as ledger:
        said = {"checkpoint": Checkpoint(folder / "run", every=5)} | options
        return train(
            plan or make_plan(bands=3), data, ledger=ledger, delta=None, **said
        )


@pytest.mark.slow
def test_what_lies_where(cut_short):
    run_folder = cut_short / "run"
    assert {p.name for p in run_folder.iterdir()} == {"model-5.npz", "secret"}
    secret = run_folder / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    assert {p.name for p in secret.iterdir()} == {
        "lock",
        "run.json",
        "noise-5.npz",
        "latest.json",
    }
    for file in secret.iterdir():
        if file.name != "lock":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # No key, and no noise, in the half that is shown around.
    noise = np.load(secret / "noise-5.npz", allow_pickle=False)
    model = (run_folder / "model-5.npz").read_bytes()
    for name in noise.files:
        if name.startswith("leaf") and noise[name].size > 16:
            assert noise[name].tobytes() not in model
    done = again(cut_short)
    assert done.steps == 12 and done.entry.private
    assert {p.name for p in run_folder.iterdir()} == {"model-12.npz", "secret"}
    assert {p.name for p in secret.iterdir()} == {"lock", "run.json"}
    like = (make_params(), optax.sgd(0.5).init(make_params()), None, jnp.int32(0))
    kept = load_model(run_folder, like)
    np.testing.assert_array_equal(kept[0]["w"], done.value["w"])


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(cut_short):
    again(cut_short)
    with pytest.raises(NoiseReuse, match="committed"):
        again(cut_short)


def other_loss(params, batch):
    return loss(params, batch) * 1.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"data": make_data(seed=1)},
        {"params": jax.tree.map(lambda leaf: leaf + 1e-6, make_params())},
        {"optimizer": optax.sgd(0.25)},
        {"optimizer": optax.adam(0.5)},
        {"loss": other_loss},
        {"plan": make_plan(bands=3, noise_multiplier=2.0)},
        {"average": 0.5},
        {"shapes": None, "minibatch_size": 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_run_is_refused(cut_short, change):
    """The noise of step 6 was drawn: on other sums it would reveal the difference."""
    with pytest.raises(CheckpointRefused, match="Nothing was spent"):
        again(cut_short, **change)
    with open_ledger(str(cut_short)) as ledger:
        assert len(ledger.entries()) == 1


@pytest.mark.slow
def test_another_kind_of_device_is_refused(cut_short, monkeypatch):
    monkeypatch.setattr(Placement, "digest", lambda self: "NVIDIA H200")
    with pytest.raises(CheckpointRefused, match="Nothing was spent"):
        again(cut_short)


@pytest.mark.slow
def test_edited_parameters_are_refused(cut_short):
    path = cut_short / "run" / "model-5.npz"
    path.write_bytes(_edited(path.read_bytes()))
    with pytest.raises(CheckpointRefused, match="edited or damaged"):
        again(cut_short)


def _edited(content):
    like = (make_params(), optax.sgd(0.5).init(make_params()), None, jnp.int32(0))
    params, *rest = _unpack(content, like)
    params["w"] = params["w"] + 1.0
    return _pack((params, *rest))


def weighted(weight):
    """A loss whose constant is inside a function that is jitted itself."""
    weights = np.linspace(0.5, weight, 2, dtype=np.float32)
    scaled = jax.jit(lambda value: value * jnp.asarray(weights).sum())
    return lambda params, batch: scaled(loss(params, batch))


@pytest.mark.slow
def test_a_constant_of_an_inner_function_is_part_of_the_program(tmp_path):
    interrupted(tmp_path, loss=weighted(1.0))
    with pytest.raises(CheckpointRefused, match="Nothing was spent"):
        again(tmp_path, loss=weighted(2.0))
    assert again(tmp_path, loss=weighted(1.0)).steps == 12


class Killed(BaseException):
    pass


def killed_in(monkeypatch, owner, name):
    def die(*_, **__):
        raise Killed

    monkeypatch.setattr(owner, name, die)


@pytest.mark.slow
def test_killed_before_the_ledger_is_committed(
    cut_short, tmp_path_factory, monkeypatch
):
    whole = tmp_path_factory.mktemp("whole")
    shutil.copytree(cut_short, whole, dirs_exist_ok=True)
    with monkeypatch.context() as patched:
        killed_in(patched, Ledger, "_commit")
        with pytest.raises(Killed):
            again(cut_short)
    seen = []
    done = again(cut_short, callback=seen.append)
    assert done.steps == 12 and not seen  # every step was in the last checkpoint
    np.testing.assert_array_equal(done.value["w"], again(whole).value["w"])


@pytest.mark.slow
def test_killed_after_the_ledger_is_committed(cut_short, monkeypatch):
    """The key is gone, and the model is there."""
    with monkeypatch.context() as patched:
        killed_in(patched, CheckpointFolder, "finish")
        with pytest.raises(Killed):
            again(cut_short)
    # The attack: an ordinary user runs the same program again, to save the model.
    with pytest.raises(EntryCommitted, match="finished and committed") as told:
        again(cut_short)
    text = str(told.value)
    model = cut_short / "run" / "model-12.npz"
    assert model.exists() and repr(str(model)) in text and "Nothing was spent" in text
    assert "harge a new entry" not in text  # what the ledger's own refusal would say
    assert "harge a new entry" in str(told.value.__cause__)
    (call,) = re.findall(r"load_model\('.*?', params\)", text)
    params = eval(call, {"load_model": load_model, "params": make_params()})
    like = (make_params(), optax.sgd(0.5).init(make_params()), None, jnp.int32(0))
    whole = load_model(cut_short / "run", like)
    assert int(whole[3]) == 12
    np.testing.assert_array_equal(params["w"], whole[0]["w"])
    with open_ledger(str(cut_short)) as ledger:
        assert len(ledger.entries()) == 1


@pytest.mark.slow
def test_a_finished_run_without_its_model_says_what_the_ledger_says(cut_short):
    again(cut_short)
    (cut_short / "run" / "model-12.npz").unlink()
    with pytest.raises(EntryCommitted, match="Charge a new entry"):
        again(cut_short)


@pytest.mark.slow
def test_parameters_of_another_shape_are_not_read(cut_short):
    again(cut_short)
    with pytest.raises(CheckpointRefused, match="where the model has"):
        load_model(cut_short / "run", {"w": jnp.zeros((3, 3))})


@pytest.mark.slow
def test_a_copied_folder_is_the_same_run(cut_short):
    """It ends with the same parameters, and after that there is no key for it."""
    shutil.copytree(cut_short / "run", cut_short / "copy")
    done = again(cut_short)
    with pytest.raises(NoiseReuse, match="committed"):
        again(cut_short, checkpoint=Checkpoint(cut_short / "copy", every=5))
    with open_ledger(str(cut_short)) as ledger:
        assert len(ledger.entries()) == 1
        assert ledger._drawn(done.entry) == done.entry.count


def test_two_that_draw_from_one_run_notice():
    plan = make_plan()
    ledger = Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure())
    reservation = plan.paid(ledger, label="shared").reservation
    one, other = (charges.payer(plan, reservation) for _ in "ab")
    one(0)
    with pytest.raises(CheckpointRefused, match="another process draws"):
        other(0)


def test_two_near_the_end_of_one_run_notice():
    """Fewer draws are left than one of them counts on: not a budget that is gone."""
    plan = make_plan()
    ledger = Ledger(Budget(50.0, 1e-5), unit=AddOrRemoveOne(), filter=Filter.pure())
    reservation = plan.paid(ledger, label="shared").reservation
    pay = charges.payer(plan, reservation)
    for step in range(3):
        pay(step)
    reservation.draw_many(reservation.remaining - 1)
    with pytest.raises(CheckpointRefused, match="another process draws"):
        pay(3)


@pytest.mark.parametrize("steps_per_draw", [1, 3])
def test_draws_are_taken_ahead_in_few_transactions(monkeypatch, steps_per_draw):
    """Each before its step, all of them once, and a long run in few rows."""
    ledger = Ledger(Budget(50.0), unit=AddOrRemoveOne(), filter=Filter.pure())
    reservation, asked = ledger.reserve(says(Pure(0.001)), count=600, label="long"), []
    plain = reservation.draw_many

    def counted(count):
        asked.append(count)
        return plain(count)

    monkeypatch.setattr(reservation, "draw_many", counted)
    pay = charges.payer(SimpleNamespace(steps_per_draw=steps_per_draw), reservation)
    for step in range(600 * steps_per_draw):
        pay(step)
        used = step // steps_per_draw + 1
        assert used <= sum(asked) < used + min(used + 1, charges._LARGEST_BLOCK)
    assert sum(asked) == 600 == reservation.drawn
    assert len(asked) < 7 + 600 / charges._LARGEST_BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model-5.npz", "secret/noise-5.npz"])
def test_a_missing_half_is_refused(cut_short, name):
    (cut_short / "run" / name).unlink()
    with pytest.raises(CheckpointRefused, match="missing"):
        again(cut_short)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "latest.json"])
def test_a_damaged_note_is_refused(cut_short, name):
    (cut_short / "run" / "secret" / name).write_text("{")
    with pytest.raises(CheckpointRefused, match="damaged"):
        again(cut_short)


@pytest.mark.slow
def test_an_older_pair_is_refused(cut_short):
    """A note that points at another step does not carry its seal."""
    secret = cut_short / "run" / "secret"
    note = json.loads((secret / "latest.json").read_text())
    note["step"] = 4
    (secret / "latest.json").write_text(json.dumps(note))
    (cut_short / "run" / "model-5.npz").rename(cut_short / "run" / "model-4.npz")
    (secret / "noise-5.npz").rename(secret / "noise-4.npz")
    with pytest.raises(CheckpointRefused, match="edited or damaged"):
        again(cut_short)


def test_a_secret_half_that_others_can_reach_is_refused(tmp_path):
    """A folder that somebody else prepared, and one that was opened up later."""
    planted = tmp_path / "run" / "secret"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    with pytest.raises(KeysExposed, match="has mode 777.* chmod 700 "):
        CheckpointFolder(Checkpoint(tmp_path / "run"))
    assert list(planted.iterdir()) == []
    planted.chmod(0o700)
    CheckpointFolder(Checkpoint(tmp_path / "run")).close()
    (planted / "run.json").chmod(0o644)
    with pytest.raises(KeysExposed, match="has mode 644.* chmod 600 "):
        CheckpointFolder(Checkpoint(tmp_path / "run"))


def test_two_at_once(tmp_path):
    with (
        CheckpointFolder(Checkpoint(tmp_path / "run")),
        pytest.raises(CheckpointRefused, match="another process"),
    ):
        CheckpointFolder(Checkpoint(tmp_path / "run"))
    CheckpointFolder(Checkpoint(tmp_path / "run")).close()


def test_a_ledger_that_does_not_last_is_refused(tmp_path):
    with pytest.raises(CheckpointRefused, match="ledger on disk or on a server"):
        train(make_plan(), checkpoint=str(tmp_path))


def test_any_dtype_comes_back_as_it_was():
    tree = {
        "a": jnp.arange(3, dtype=jnp.bfloat16),
        "b": np.float64(1.5),
        "c": jnp.zeros((0, 2)),
        "d": jnp.array(True),
    }
    back = _unpack(_pack(tree), tree)
    for name, leaf in tree.items():
        assert back[name].dtype == np.asarray(leaf).dtype
        assert back[name].tobytes() == np.asarray(leaf).tobytes()
    with pytest.raises(CheckpointRefused, match="holds"):
        _unpack(_pack(tree), tree | {"a": jnp.zeros(4)})
    with pytest.raises(CheckpointRefused, match="number of arrays"):
        _unpack(_pack(tree), {"a": jnp.zeros(3)})


# -- another machine -------------------------------------------------------------------


def alone(*what, flags=None):
    """What a process of its own prints: XLA reads its flags once."""
    own = {} if flags is None else {"XLA_FLAGS": flags}
    given = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.training.crash", *map(str, what)],
        capture_output=True,
        text=True,
        timeout=300,
        env=given | own,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout.splitlines()


@pytest.fixture(scope="module")
def two_places(tmp_path_factory):
    """A run that was cut short, and what it says on a processor without FMA."""
    folder = tmp_path_factory.mktemp("machines")
    place, copy = folder / "one", folder / "two"
    place.mkdir()
    (here,) = alone("here", place)
    shutil.copytree(place, copy)
    refused, there = alone("elsewhere", place, copy, flags="--xla_cpu_max_isa=AVX")
    return place, refused, json.loads(here), json.loads(there)


@pytest.mark.slow
def test_another_processor_is_refused(two_places):
    """It rounds sums otherwise; mesh, program and kind of device are the same."""
    place, refused, _, _ = two_places
    assert "another machine (processor, cores," in refused
    assert "Nothing was spent" in refused
    with open_ledger(str(place)) as ledger:
        assert len(ledger.entries()) == 1


@pytest.mark.slow
def test_unnoticed_it_shows_the_rounding_of_an_exact_sum(two_places):
    """The twin has the first one's name: one noise lies on two sums.

    The difference of what was seen has no noise, and is a function of the rows alone.
    """
    _, _, here, there = two_places
    assert sorted(there) == ["6", "7", "8"]
    shown = [
        np.frombuffer(bytes.fromhex(life["6"]), np.float32) for life in (here, there)
    ]
    apart = np.abs(shown[0] - shown[1]).max()
    assert 0 < apart < 1e-6


@pytest.mark.parametrize("name", placement._SETTINGS)
def test_a_setting_of_the_compiler_is_another_machine(monkeypatch, name, tmp_path):
    """NPROC=1 gives another sum of 300,000 numbers than NPROC=2, in its last bits."""
    before = placement.machine()
    monkeypatch.setenv(name, "1")
    assert placement.machine() != before
    monkeypatch.undo()
    assert placement.machine() == before
    if name == "XLA_FLAGS":
        flags = tmp_path / "flags"
        monkeypatch.setenv(name, str(flags))
        found = set()
        for isa in ("AVX", "AVX2"):
            flags.write_text(f"--xla_cpu_max_isa={isa}")
            found.add(placement.machine())
        assert len(found) == 2


@pytest.mark.slow
def test_the_number_of_threads_decides_how_a_sum_is_rounded():
    """Why: with another NPROC, XLA divides a sum into other parts."""
    code = (
        "import jax, jax.numpy as jnp;"
        "x = jax.random.normal(jax.random.key(0), (300_000,));"
        "print(jax.jit(jnp.sum)(x).tobytes().hex())"
    )
    sums = set()
    for count in "12":
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"NPROC": count, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        sums.add(found.stdout)
    assert len(sums) == 2


@pytest.mark.parametrize("number", [0, 1])
def test_every_process_has_its_machine_in_the_digest(monkeypatch, number):
    """The attack: process 0 is where it was, and another process is not."""

    class Two(Processes):
        def __init__(self, kinds):
            super().__init__(None)
            self.count, self.kinds = 2, kinds

        def every(self, array):
            rows = []
            for kind in self.kinds:
                monkeypatch.setattr(agreement, "machine", lambda kind=kind: kind)
                alone = agreement.machines(Processes(None))
                rows.append(np.frombuffer(bytes.fromhex(alone), np.uint8))
            return np.stack(rows)

    kinds = ["old", "old"]
    before = agreement.machines(Two(kinds))
    kinds[number] = "new"
    assert agreement.machines(Two(kinds)) != before
    assert agreement.machines(Two(["old", "old"])) == before


@pytest.mark.slow
@pytest.mark.parametrize("changed", [32, 64])
def test_any_size_of_a_batch_may_have_changed_its_program(
    tmp_path, monkeypatch, changed
):
    """The form of a step follows its size and a machine's memory (`memory="auto"`)."""
    shapes = ShapePlan((32, 64), None, 12, 0.0, 0.0, 0.0)
    interrupted(tmp_path, shapes=shapes)
    plain = Steps.digest

    def digest(self, state, batch):
        size = jax.tree.leaves(batch)[0].shape[0]
        return plain(self, state, batch) + ("other" if size == changed else "")

    monkeypatch.setattr(Steps, "digest", digest)
    with pytest.raises(CheckpointRefused, match="Nothing was spent"):
        again(tmp_path, shapes=shapes)
