"""Elastic checkpoints: killed in a save, taken up again, and moved to another mesh."""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from demur.core.entropy import NoiseKey
from demur.core.errors import EntryCommitted
from demur.training import Checkpoint, CheckpointRefused, load_model
from demur.training.devices.processes import Processes
from demur.training.run import agreement
from demur.training.run.checkpoints import elastic, orbax_files
from demur.training.run.paid_run import PaidRun
from demur.training.run.steps import Steps
from tests.programs import python

from .elastic_run import EVERY, open_ledger, run
from .kit import N, loss, make_data, make_params, make_plan

pytestmark = pytest.mark.slow
MOST = 70  # changes of files in a save; there are a few more
FEW = (1, 25, 50, MOST)


def mesh():
    """One device, and yet another layout than none: the programs differ."""
    return Mesh(np.array(jax.devices()[:1]), ("data",))


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# -- killed in a save ------------------------------------------------------------------


def begun(folder, twin, points):
    """Runs that were killed at these points of their second save: their folders."""
    folders = {point: folder / f"{twin}-{point}" for point in points}
    for place in folders.values():
        place.mkdir()
    asked = [(str(place), str(point)) for point, place in folders.items()]
    found = subprocess.run(
        [*python(), "-m", "tests.training.elastic_run", twin]
        + list(chain.from_iterable(asked)),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert found.stdout.split() == ["-9"] * len(points), found.stderr[-2000:]
    return folders


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    # 0: after the save, at a step.
    return begun(tmp_path_factory.mktemp("killed"), "ours", [0, *FEW])


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight"))


@pytest.mark.parametrize("point", [0, *FEW])
def test_killed_at_any_point_of_a_save_it_goes_on_bit_for_bit(killed, straight, point):
    goes_on(killed[point], straight, point)


@pytest.mark.deep
def test_killed_at_every_point_of_a_save(tmp_path, killed, straight):
    most = int((killed[0] / "changes").read_text())
    for first in range(1, most + 1, 7):
        points = range(first, min(first + 7, most + 1))
        for point, folder in begun(tmp_path, "ours", points).items():
            goes_on(folder, straight, point)
            print(f"killed at {point} of {most}: goes on bit for bit")
            shutil.rmtree(folder)


def goes_on(folder, straight, point):
    if not point:
        assert int((folder / "changes").read_text()) >= MOST
    note = json.loads((folder / "run" / "secret" / "latest.json").read_text())
    assert note["step"] in (EVERY, 2 * EVERY)
    done = run(folder)
    same(done.value, straight.value)
    assert done.steps == 24
    with open_ledger(folder) as ledger:
        ledger.verify()
        assert len(ledger.entries()) == 1
        assert ledger._drawn(done.entry) == done.entry.count
    # Nothing is left of the save that was cut short.
    assert len(list((folder / "run").glob("model-*"))) == 1
    assert not list((folder / "run" / "secret").glob("noise-*"))


def test_a_save_that_deletes_too_early_is_noticed(tmp_path):
    """The twin: the last checkpoint goes before the next one is whole."""
    folder = begun(tmp_path, "early", [40])[40]
    with pytest.raises(CheckpointRefused, match="missing"):
        run(folder)


# -- moved to another layout -----------------------------------------------------------


class Stop(Exception):
    pass


@pytest.fixture
def watched(monkeypatch):
    """The steps whose noise was added, and the key, in each life of a run."""
    lives = []
    plain = Steps.run

    def noted(self, state, step_input, key):
        own = NoiseKey(key.handed_on(), private=False)  # the run's is wiped
        lives[-1].append((step_input.step, own))
        return plain(self, state, step_input, key)

    monkeypatch.setattr(Steps, "run", noted)
    return lives


def interrupted(folder, at=8, **options):
    def callback(report):
        if report.step == at:
            raise Stop

    folder.mkdir(exist_ok=True)
    with pytest.raises(Stop):
        run(folder, callback=callback, iterations=60, **options)


def moved(folder, **options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        done = run(folder, iterations=60, **options)
    return done, [str(one.message) for one in told]


def by_hand(key, steps, iterations=60):
    """SGD over the given steps: clipped example by example, noise of those steps."""
    plan = make_plan(iterations=iterations, bands=3)
    batches = list(plan.batch_selection_strategy.batch_iterator(N, key))
    add, data = plan.noise_addition_transform, make_data()
    params = make_params()
    state, update, noises = add.init(params), jax.jit(add.update), []
    grad = plan.gradient(loss)
    zero = jax.jit(grad)(params, jax.tree.map(lambda a: a[:1], data), num_real=0)
    for step in range(iterations):
        words = np.frombuffer(key.stream("step noise", step).read(16), "<u4")
        noisy, state = update(zero, state, key=words.reshape(2, 2))
        noises.append(noisy)
    for step in steps:
        rows = [jax.tree.map(lambda a, i=i: a[i : i + 1], data) for i in batches[step]]
        total = jax.tree.map(lambda leaf: np.array(leaf), noises[step])
        for row in rows:
            g = jax.grad(loss)(params, row)
            norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in g.values()))
            total = {n: total[n] + min(1.0, 1.0 / norm) * g[n] / 20.0 for n in g}
        params = {n: params[n] - 0.5 * total[n] for n in params}
    return params


def test_another_mesh_repeats_no_step_that_may_have_been_seen(tmp_path, watched):
    watched.append([])
    interrupted(tmp_path / "run")
    with open_ledger(tmp_path / "run") as ledger:
        (entry,) = ledger.entries()
        paid_for = 3 * ledger._drawn(entry)
    watched.append([])
    done, told = moved(tmp_path / "run", mesh=mesh())
    first, second = ([step for step, _ in life] for life in watched)
    assert first == list(range(8)) and paid_for >= 8
    assert second == list(range(paid_for, 60))
    assert done.steps == EVERY + len(second)
    assert any(f"steps {EVERY} to {paid_for - 1} may have been seen" in t for t in told)
    with open_ledger(tmp_path / "run") as ledger:
        ledger.verify()
        assert len(ledger.entries()) == 1
        assert ledger._drawn(done.entry) == done.entry.count
    wanted = by_hand(watched[1][0][1], [*range(EVERY), *second])
    for name, leaf in wanted.items():
        np.testing.assert_allclose(done.value[name], leaf, rtol=2e-5, atol=2e-5)


def test_without_the_rule_the_same_noise_lies_on_two_sums(
    tmp_path, watched, monkeypatch
):
    """The twin takes every layout for the same one: steps are repeated elsewhere."""
    watched.append([])
    plain = elastic.ElasticCheckpoints.__init__

    def blind(self, *arguments, layout, **named):
        plain(self, *arguments, layout="any", **named)

    monkeypatch.setattr(elastic.ElasticCheckpoints, "__init__", blind)
    interrupted(tmp_path / "run", bands=1)
    watched.append([])
    moved(tmp_path / "run", bands=1, mesh=mesh())
    first, second = ({step for step, _ in life} for life in watched)
    assert first & second == {5, 6, 7}


def test_another_kind_of_device_is_another_layout(cut_short, watched, monkeypatch):
    """Its sums are rounded otherwise, though mesh and program are the same."""
    with open_ledger(cut_short) as ledger:
        (entry,) = ledger.entries()
        paid_for = 3 * ledger._drawn(entry)
    monkeypatch.setattr(agreement, "machine", lambda: "NVIDIA H200")
    watched.append([])
    moved(cut_short)
    assert watched[0][0][0] == paid_for


def test_a_move_is_made_once_and_then_repeats_exactly(tmp_path, watched):
    """Killed after the move: the new mesh goes on bit for bit."""
    watched.append([])
    interrupted(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    watched.append([])
    straight, _ = moved(tmp_path / "run", mesh=mesh())
    with pytest.warns(UserWarning, match="other devices"):
        interrupted(tmp_path / "other", at=33, mesh=mesh())
    again, told = moved(tmp_path / "other", mesh=mesh())
    assert not told
    same(again.value, straight.value)


def test_a_copy_of_the_folder_that_was_left_behind_repeats_nothing(tmp_path, watched):
    """The attack: the old state on the old mesh, after steps on the new one."""
    place = tmp_path / "run"
    watched.append([])
    interrupted(place)
    shutil.copytree(place / "run", tmp_path / "copy")
    watched.append([])
    with pytest.warns(UserWarning, match="other devices"):
        interrupted(place, at=24, mesh=mesh())
    shutil.rmtree(place / "run")
    shutil.copytree(tmp_path / "copy", place / "run")
    watched.append([])
    moved(place)
    lives = [{step for step, _ in life} for life in watched]
    assert not (lives[0] & lives[1] or lives[1] & lives[2] or lives[0] & lives[2])


def test_a_copy_is_taken_for_the_run_where_the_ledger_is_not_asked(
    tmp_path, watched, monkeypatch
):
    """The twin of that: without the note in the ledger steps are repeated."""

    def unasked(self):
        note = self._read_note()
        drawn = self._of_first.reservation.drawn
        return elastic.ResumePoint(
            note["step"], note["step"], drawn, note["lineage"], False, note
        )

    place = tmp_path / "run"
    watched.append([])
    interrupted(place)
    shutil.copytree(place / "run", tmp_path / "copy")
    watched.append([])
    with pytest.warns(UserWarning, match="other devices"):
        interrupted(place, at=24, mesh=mesh())
    shutil.rmtree(place / "run")
    shutil.copytree(tmp_path / "copy", place / "run")
    watched.append([])
    monkeypatch.setattr(elastic.ElasticCheckpoints, "_decided", unasked)
    moved(place)
    lives = [{step for step, _ in life} for life in watched]
    assert lives[1] & lives[2]


def seen_by_both(place, watched, monkeypatch):
    """Steps of a line that runs on, and of a copy of it that moved meanwhile."""
    copy = Checkpoint(place / "copy", every=EVERY, elastic=True)
    options = {"iterations": 60, "bands": 1}
    first, second = [], []

    def callback(report):
        if report.step == 8:
            watched.append(second)
            shutil.copytree(place / "run", place / "copy")
            with monkeypatch.context() as patch, pytest.raises(Stop):
                patch.setattr(PaidRun, "pay", property(stopped))
                run(place, checkpoint=copy, mesh=mesh(), **options)
            watched.append(first)
        if report.step == 30:
            raise Stop

    def stopped(self):
        raise Stop  # the copy dies between its move and its first step

    watched.append(first)
    with pytest.raises((Stop, CheckpointRefused)):
        run(place, callback=callback, **options)
    watched.append(second)
    run(place, checkpoint=copy, mesh=mesh(), **options)
    return {step for step, _ in first} & {step for step, _ in second}


@pytest.mark.filterwarnings("ignore:the run goes on with other devices")
def test_a_line_that_still_runs_draws_nothing_after_a_move(
    tmp_path, watched, monkeypatch
):
    """The attack: a copy moves, the old line goes on, and then the copy is resumed."""
    assert not seen_by_both(tmp_path, watched, monkeypatch)


def test_of_two_that_move_at_once_the_later_name_goes_on(tmp_path, monkeypatch):
    plain = elastic.ElasticCheckpoints._own_draw

    def overtaken(self):
        held = self._of_first
        held.ledger.annotate(held.entry, "mesh", {"lineage": "later"})
        return plain(self)

    monkeypatch.setattr(elastic.ElasticCheckpoints, "_own_draw", overtaken)
    with pytest.raises(CheckpointRefused, match="moves this run at the same time"):
        run(tmp_path)
    monkeypatch.undo()
    with open_ledger(tmp_path) as ledger:
        (entry,) = ledger.entries()
        ledger.annotate(entry, "mesh", {"racks": 2})  # a note of somebody else's
    with pytest.warns(UserWarning, match="may have been seen"):
        assert run(tmp_path).steps == 21


@pytest.mark.filterwarnings("ignore:the run goes on with other devices")
def test_without_a_draw_of_its_own_a_move_repeats_what_others_drew(
    tmp_path, watched, monkeypatch
):
    """The twin of that: the name alone is noted."""
    plain = elastic.ElasticCheckpoints._own_draw
    monkeypatch.setattr(
        elastic.ElasticCheckpoints,
        "_own_draw",
        lambda self: self._of_first.reservation.drawn or plain(self),
    )
    assert seen_by_both(tmp_path, watched, monkeypatch)


def test_noise_is_remembered_as_if_it_had_been_drawn(tmp_path, monkeypatch):
    """`noise_after` has the bits of a run that went so far."""
    kept = {}
    plain = Steps.run

    def noted(self, state, step_input, key):
        found = plain(self, state, step_input, key)
        kept[step_input.step + 1] = jax.tree.map(np.array, found[0].noise)
        if step_input.step == 9:
            for step in (8, 9):
                fresh = NoiseKey(key.handed_on(), private=False)
                again = self.noise_after(kept["first"], fresh, step)
                kept[f"replay {step}"] = jax.tree.map(np.array, again)
        return found

    def begun_with(self, params, plain=Steps.init):
        kept["first"] = plain(self, params)
        return plain(self, params)

    monkeypatch.setattr(Steps, "run", noted)
    monkeypatch.setattr(Steps, "init", begun_with)
    run(tmp_path)
    same(kept["replay 9"], kept[9])
    with pytest.raises(AssertionError):
        same(kept["replay 8"], kept[9])


# -- refused ---------------------------------------------------------------------------


def test_lattice_noise_with_bands_is_refused_elsewhere(tmp_path):
    interrupted(tmp_path / "run", noise="lattice")
    with pytest.raises(CheckpointRefused, match="remembers exact sums"):
        run(tmp_path / "run", iterations=60, noise="lattice", mesh=mesh())
    done = run(tmp_path / "run", iterations=60, noise="lattice")
    assert done.steps == 60


def test_lattice_noise_without_bands_moves(tmp_path, watched):
    watched.append([])
    interrupted(tmp_path / "run", noise="lattice", bands=1)
    watched.append([])
    moved(tmp_path / "run", noise="lattice", bands=1, mesh=mesh())
    first, second = ({step for step, _ in life} for life in watched)
    assert first and second and not first & second


def test_where_no_step_is_left_it_is_refused(tmp_path):
    def callback(report):
        if report.step == 10:  # the last draw is that of step 9
            raise Stop

    with pytest.raises(Stop):
        run(tmp_path, iterations=12, callback=callback)
    with pytest.raises(CheckpointRefused, match="all 12 steps .* none is left"):
        run(tmp_path, iterations=12, mesh=mesh())
    with open_ledger(tmp_path) as ledger:
        assert not ledger.notes(about="mesh")[1:]  # nothing was noted by the refusal
    assert run(tmp_path, iterations=12).steps == 12


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template")
    interrupted(folder / "run")
    return folder / "run"


@pytest.fixture
def cut_short(template, tmp_path):
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


def other_loss(params, batch):
    return loss(params, batch) * 1.5


@pytest.mark.parametrize(
    "change",
    [
        {"data": make_data(seed=1)},
        {"params": jax.tree.map(lambda leaf: leaf + 1e-6, make_params())},
        {"optimizer": optax.sgd(0.25)},
        {"loss": other_loss},
        {"average": 0.5},
        {"elastic": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_run_is_refused_on_any_mesh(cut_short, change):
    for devices in (None, mesh()):
        with pytest.raises(CheckpointRefused, match="Nothing was spent"):
            run(cut_short, iterations=60, mesh=devices, **change)
    with open_ledger(cut_short) as ledger:
        assert len(ledger.entries()) == 1


def files_of(folder):
    return sorted(p for p in (folder / "run").rglob("*.orbax/**/*") if p.is_file())


@pytest.mark.parametrize("half", ["model", "noise"])
def test_edited_and_missing_files_are_refused(cut_short, half):
    for path in [p for p in files_of(cut_short) if f"{half}-" in str(p)][:4]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointRefused, match="edited or damaged"):
            run(cut_short, iterations=60)
        path.unlink()
        with pytest.raises(CheckpointRefused, match="missing"):
            run(cut_short, iterations=60)
        path.write_bytes(content)
    more = path.parent / "more"
    more.touch()
    with pytest.raises(CheckpointRefused, match="was put into the checkpoint"):
        run(cut_short, iterations=60)
    more.unlink()
    assert run(cut_short, iterations=60).steps == 60


@pytest.mark.parametrize("field", ["step", "layout", "lineage", "model", "files"])
def test_an_edited_note_is_refused(cut_short, field):
    path = cut_short / "run" / "secret" / "latest.json"
    note = json.loads(path.read_text())
    note[field] = {"step": 4, "files": {}}.get(field, "0" * 16)
    path.write_text(json.dumps(note))
    with pytest.raises(CheckpointRefused, match="edited or damaged"):
        run(cut_short, iterations=60)


def test_without_its_note_the_run_goes_on_after_what_was_paid(cut_short, watched):
    (cut_short / "run" / "secret" / "latest.json").unlink()
    with open_ledger(cut_short) as ledger:
        (entry,) = ledger.entries()
        paid_for = 3 * ledger._drawn(entry)
    watched.append([])
    done, _ = moved(cut_short)
    assert watched[0][0][0] == paid_for and done.steps == 60 - paid_for


class Elsewhere(Processes):
    """A process that has the folder's name, and another disk."""

    def from_first(self, make):
        return ".meeting-of-another-disk"


def test_a_folder_that_not_all_processes_see_is_refused(tmp_path, monkeypatch):
    elastic.check_reached(Processes(None), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.setattr(elastic, "_TRIES", 0)
    with pytest.raises(CheckpointRefused, match="does not see.*Nothing was spent"):
        elastic.check_reached(Elsewhere(None), tmp_path / "run")


def test_without_orbax_nothing_is_paid(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(orbax_files, "import_module", missing)
    with pytest.raises(ImportError, match=r"demur\[orbax\].*Nothing was spent"):
        run(tmp_path)
    with open_ledger(tmp_path) as ledger:
        assert not ledger.entries()


# -- reading ---------------------------------------------------------------------------


def test_the_finished_model_is_read_and_named(cut_short):
    done = run(cut_short, iterations=60)
    kept = load_model(cut_short / "run", make_params())
    same(kept, done.value)
    like = (make_params(), optax.sgd(0.5).init(make_params()), None, jnp.int32(0))
    assert int(load_model(cut_short / "run", like)[3]) == 60
    with pytest.raises(CheckpointRefused, match="where the model has"):
        load_model(cut_short / "run", {"w": jnp.zeros((3, 3))})
    with pytest.raises(EntryCommitted, match=r"model-60-.*\.orbax.*load_model"):
        run(cut_short, iterations=60)


def test_no_noise_lies_in_the_half_that_is_shown(cut_short):
    secret = cut_short / "run" / "secret"
    assert secret.stat().st_mode & 0o077 == 0
    assert list(secret.glob("noise-*")) and not list((cut_short / "run").glob("noise*"))


def test_odd_leaves_come_back_as_they_were(tmp_path):
    tree = [
        jnp.arange(3, dtype=jnp.bfloat16),
        jnp.zeros((0, 2)),
        jnp.array(True),
        jnp.uint32(7),
        jnp.float32(0.1),
    ]
    orbax_files.write(tmp_path / "a.orbax", tree)
    back = orbax_files.read(tmp_path / "a.orbax", tree)
    for one, other in zip(back, tree, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_checkpoint_is_elastic_or_not():
    with pytest.raises(TypeError, match="elastic must be True or False"):
        Checkpoint("run", elastic="yes")
