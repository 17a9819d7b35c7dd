"""Training on 1 and 2 processes of this machine over the loopback, in depth on 4."""

import re

import jax
import numpy as np
import pytest

from demur.training.devices.aborted_processes import EXIT_CODE
from demur.training.distributed import start
from tests.families import thinned
from tests.training.processes.launch import launch
from tests.training.processes.worker import open_ledger

pytestmark = [pytest.mark.slow, pytest.mark.serial]

SAME = ("plain", "drawn", "clipping")
SPREAD = ("noise_cost", "distinct_shards", "handed_round")
# With two processes only.
MORE = ("noise_alone", "other_noise", "in_parts", "people", "lattice")
ALONE = ("microbatches", "stops", "failures", "agreements", "undisturbed")
KILLED = ("killed_first", "killed_second")
# Sums of up to 64 float32 terms of size 1/20 a step, over 12 steps of rate 0.5, and
# parameters of size 1: orders of summation differ by a few units of 2^-24.
CLOSE = {"rtol": 2e-6, "atol": 2e-6}

# Starting a process takes longer than what it does here. So one launch ends with the
# kill of a process, and another one, which takes the killed runs up, with a SIGTERM.


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def killed(place):
    """Two processes of which one was killed at step 8 of a run, after a checkpoint."""
    many = (*SAME, *MORE, *SPREAD, *ALONE, "killed_second")
    return {
        "killed_second": launch(2, place / "two", *many),
        "killed_first": launch(2, place / "other two", "killed_first"),
    }


@pytest.fixture(scope="module")
def two(killed):
    return [process.found for process in killed["killed_second"]]


@pytest.fixture(scope="module")
def heads(place, killed):
    """The ledger and the checkpoint right after the kill."""
    return {name: state_of(place / name) for name in KILLED}


@pytest.fixture(scope="module")
def one(place, heads):
    return fine(launch(1, place / "one", *SAME, *MORE, "other_mesh"))


@pytest.fixture(scope="module")
def four(place, heads):
    return fine(launch(4, place / "four", *SAME, *SPREAD, "other_mesh"))


@pytest.fixture(scope="module")
def after_refusals(place, one):
    return {name: state_of(place / name) for name in KILLED}


@pytest.fixture(scope="module")
def again(place, after_refusals):
    return launch(2, place / "again", "taken_up", "terminated")


@pytest.fixture(params=thinned(["two", "four"], 2))
def several(request):
    return request.getfixturevalue(request.param)


def fine(ended):
    for process in ended:
        assert process.code == 0, process.output[-4000:]
    return [process.found for process in ended]


def state_of(folder):
    with open_ledger(folder) as ledger:
        ledger.verify()
        (entry,) = ledger.entries()
        head = ledger.tip()
        reserved = ledger.epsilon()
    files = sorted(path.name for path in (folder / "run").rglob("*.npz"))
    return {"entry": entry, "head": head, "epsilon": reserved, "files": files}


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, **CLOSE)


# -- the same result -------------------------------------------------------------------


def test_several_processes_end_where_one_ends(one, several):
    all_close(one, several, "plain")


@pytest.mark.parametrize("scenario", ["in_parts", "people", "lattice", "noise_alone"])
def test_parts_and_people_and_other_noise_do_too(one, two, scenario):
    all_close(one, two, scenario)


def all_close(one, several, scenario):
    (alone,) = one
    for found in several:
        assert found[scenario]["params"] == several[0][scenario]["params"]
        close(found[scenario]["params"], alone[scenario]["params"])


def test_all_else_is_told_alike(one, several):
    (alone,) = one
    for found in several:
        close(found["plain"]["average"], alone["plain"]["average"])
        assert found["plain"]["seen"] == found["plain"]["params"]
        close(found["plain"]["loss"], alone["plain"]["loss"])
        for name in ("steps", "waste", "statement"):
            assert found["plain"][name] == alone["plain"][name]


def test_a_missing_gradient_is_seen(one, two):
    """The comparison has power: a run without gradients is far outside it."""
    (alone,) = one
    with pytest.raises(AssertionError):
        close(two[0]["noise_alone"]["params"], alone["plain"]["params"])


def test_the_numbers_drawn_have_the_same_bits_on_any_mesh(one, several):
    (alone,) = one
    for found in several:
        assert found["drawn"] == alone["drawn"]
    assert all(len(values) == len(set(values)) for values in alone["drawn"].values())


def test_memories_that_are_no_ring_give_the_same_noise(one, two):
    (alone,) = one
    for found in two:
        for memory, params in alone["other_noise"].items():
            close(found["other_noise"][memory], params)


# -- each process its share ------------------------------------------------------------


def test_a_process_reads_its_share_of_the_rows(one, several):
    (alone,) = one
    reads = [found["plain"]["read"] for found in several]
    assert reads == [alone["plain"]["read"] // len(several)] * len(several)


def test_a_device_draws_its_share_of_the_noise_and_no_more(several):
    size, count = 101 * 99, len(several)
    for found in several:
        cost = found["noise_cost"]
        share = -(-size // count)
        assert cost["ours"]["words"] == share
        assert cost["twin"]["words"] == size
        assert cost["ours"]["flops"] < 1.1 * cost["twin"]["flops"] / count
        # Two steps of the past in float32.
        assert cost["ours"]["memory"] == 2 * 4 * share
        assert cost["twin"]["memory"] == 2 * 4 * size


def test_microbatches_do_not_gather_the_rows_of_other_devices(two):
    for found in two:
        assert found["microbatches"]["ours"] == 64 // len(two)
        assert found["microbatches"]["twin"] == 64


def all_differ(shards):
    values = np.asarray(shards)
    return len(np.unique(values)) == values.size


def test_no_two_shards_have_the_same_noise(several):
    for found in several:
        assert all_differ(found["distinct_shards"]["ours"])
        assert not all_differ(found["distinct_shards"]["twin"])


def test_inside_shard_map_examples_are_clipped_before_they_are_summed(one, several):
    (alone,) = one
    for found in several:
        close(found["clipping"]["sum"], alone["clipping"]["sum"])
        close(found["clipping"]["ours"], alone["clipping"]["sum"])
        with pytest.raises(AssertionError):
            close(found["clipping"]["twin"], alone["clipping"]["sum"])


def test_arrays_are_handed_round_whole(several):
    for found in several:
        for arrays in found["handed_round"].values():
            assert arrays and all(arrays.values())


# -- who decides, and who fails --------------------------------------------------------


def test_the_first_process_decides_when_to_stop(two):
    for found in two:
        assert found["stops"] == {"process 0": 4, "process 1": 12}


@pytest.mark.parametrize(
    "case, first, second, entries",
    [
        ("no mesh", "ValueError: mesh must be given where 2 processes", None, 0),
        ("fewer rows", "ProcessesDisagree: .* differ in data", None, 0),
        (
            "bad data",
            "TypeError: process 1: data must be numbers",
            "TypeError: data",
            0,
        ),
        ("other order", "ProcessesDisagree: .* differ in data .the rows, in", None, 0),
        ("other parameters", "ProcessesDisagree: .* first parameters", None, 0),
        ("other loss", "ProcessesDisagree: .* program", None, 0),
        ("bad loss", "RuntimeError: process 1: no such", "RuntimeError: no such", 0),
        ("other plan", "ProcessesDisagree: .* differ in plan", None, 0),
        (
            "ledger in the second",
            "TypeError: process 1: ledger must be None",
            "TypeError: ledger must be None",
            0,
        ),
        ("declined", "BudgetExceeded: 'DP", "BudgetExceeded: process 0: 'DP", 0),
        ("callback", "ProcessFailed: process 1: KeyError", "KeyError", 1),
        ("interrupt", "KeyboardInterrupt: process 1", "KeyboardInterrupt", 1),
        ("disk", "ProcessFailed: process 1: OSError: the disk", "OSError", 1),
    ],
)
def test_what_fails_in_one_process_fails_in_all(two, case, first, second, entries):
    for found, wanted in zip(two, (first, second or first), strict=True):
        assert re.match(wanted, found["failures"]["errors"][case])
    assert two[0]["failures"]["after"][case]["entries"] == entries


def entered_twice(found):
    """(record, step) pairs that more than one process brought."""
    steps = [process["records"] for process in found]
    pairs = [
        (r, i) for process in steps for i, step in enumerate(process) for r in step
    ]
    assert pairs
    return len(pairs) - len(set(pairs))


def test_rows_in_another_order_would_enter_twice_and_are_refused(two):
    """The attack: process 1 holds the same rows backwards, without a checkpoint."""
    found = [process["agreements"] for process in two]
    assert entered_twice([process["same"] for process in found]) == 0
    for process in found:
        assert "differ in data (the rows, in order)" in process["other order"]["error"]
        assert "Nothing was spent" in process["other order"]["error"]
    # The twin compares shapes alone: it trains, and the price is no longer true.
    assert entered_twice([process["order unchecked"] for process in found]) > 10


@pytest.mark.parametrize(
    "case, said, twin",
    [
        ("other draws", "batches drawn from one key", "draws unchecked"),
        ("other numpy", r"numpy \((0\.0|[2-9].*) here\)", "numpy unchecked"),
    ],
)
def test_another_sampler_or_library_is_refused_by_name(two, case, said, twin):
    for process in two:
        found = process["agreements"]
        assert re.search(
            f"ProcessesDisagree: .* differ in {said}", found[case]["error"]
        )
        assert "params" in found[twin]  # accepted without the check


# -- killed, and taken up again --------------------------------------------------------


@pytest.mark.parametrize("name, who", [("killed_first", 0), ("killed_second", 1)])
def test_a_killed_process_ends_the_run(killed, name, who):
    ended = killed[name]
    assert ended[who].code == -9
    other = ended[1 - who]
    # By an error of Python's, or by JAX's abort, which has a name: by no signal.
    assert other.code in (1, EXIT_CODE) and "finished" not in other.output
    assert "ProcessLost" in other.output and "start all processes" in other.output


def test_a_lost_process_and_its_survivors_leave_no_memory_behind(killed, place):
    """All may dump (`ulimit -c unlimited`), and JAX aborts; no file holds a key."""
    assert not [path for path in place.rglob("core*") if path.is_file()]
    for ended in killed.values():
        assert all("dumped" not in process.output for process in ended)


def test_a_process_can_be_told_to_end(again):
    first, second = again
    assert second.code == -15
    assert first.code in (1, EXIT_CODE) and "ProcessLost" in first.output


def test_the_lost_process_is_named_where_the_others_get_to_speak(killed):
    first = killed["killed_second"][0].output
    assert "ProcessLost" in first and "resumed where it was" in first


@pytest.mark.parametrize("name", KILLED)
def test_after_the_kill_the_ledger_has_one_open_entry(heads, name):
    assert heads[name]["epsilon"] > 0
    assert "model-5.npz" in heads[name]["files"]
    assert "noise-5.npz" in heads[name]["files"]


def test_another_mesh_is_refused_and_nothing_is_drawn(heads, one, after_refusals):
    for found in one:
        assert "CheckpointRefused" in found["other_mesh"]["error"]
    assert after_refusals == heads


@pytest.mark.deep
def test_a_mesh_of_four_is_refused_too(four):
    for found in four:
        assert "CheckpointRefused" in found["other_mesh"]["error"]


@pytest.mark.parametrize("name", KILLED)
def test_the_same_mesh_goes_on_bit_for_bit(two, again, place, name):
    for process, wanted in zip(again, two, strict=True):
        taken = process.found["taken_up"][name]
        assert taken["params"] == wanted["undisturbed"]["params"]
    assert again[0].found["taken_up"][name]["entries"] == 1
    after = state_of(place / name)
    # Committed: the secret half is gone.
    assert after["files"] == ["model-12.npz"]


# -- starting --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, error",
    [
        (("127.0.0.1:1", 2, 2), "from 0 to 1"),
        (("127.0.0.1:1", 0, 0), "processes"),
        (("127.0.0.1", 2, 0), "host:port"),
        ((":1", 2, 0), "host:port"),
    ],
)
def test_a_bad_start_is_refused(arguments, error):
    with pytest.raises(ValueError, match=error):
        start(*arguments)
    assert jax.process_count() == 1
