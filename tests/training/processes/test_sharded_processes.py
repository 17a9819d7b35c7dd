"""Cut parameters, own rows and elastic checkpoints on 2 and 4 processes.

Eight host devices in all. The scenarios are those of test_processes, with sharding on,
and some of their own; what takes long is in `make deep`.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from demur.training.devices.aborted_processes import EXIT_CODE
from demur.training.run.agreement import ROWS_APART
from tests.training.processes.launch import launch
from tests.training.processes.worker import open_ledger

pytestmark = [pytest.mark.slow, pytest.mark.serial]
# As in test_processes, behind one layer more.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
QUICK = ("plain", "own_rows", "memory")
MORE = ("in_parts", "people", "lattice", "noise_alone", "stops", "tensor")
FAULTS = ("failures", "agreements", "undisturbed", "elastic")


def ended(count, folder, *scenarios):
    return launch(
        count, folder, *scenarios, sharded=True, module="sharded_worker", timeout=1200
    )


def fine(processes):
    for process in processes:
        assert process.code == 0, process.output[-4000:]
    return [process.found for process in processes]


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        np.testing.assert_allclose(found[name], leaf, err_msg=name, **CLOSE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded processes")


@pytest.fixture(scope="module")
def one(place):
    """One process on one device: its mesh is None, so nothing is cut."""
    return fine(ended(1, place / "one", "plain", "own_rows"))[0]


@pytest.fixture(scope="module")
def two(place):
    return fine(ended(2, place / "two", *QUICK))


# -- the same result, and a k-th of it on a device -------------------------------------


def test_two_processes_end_where_one_device_ends(one, two):
    ends_alike(one, two)


def ends_alike(one, several):
    for found in several:
        assert found["plain"]["params"] == several[0]["plain"]["params"]
        close(found["plain"]["params"], one["plain"]["params"])
        close(found["plain"]["average"], one["plain"]["average"])
        assert found["plain"]["seen"] == found["plain"]["params"]
        close(found["plain"]["loss"], one["plain"]["loss"])
        for name in ("steps", "statement"):
            assert found["plain"][name] == one["plain"][name]
        # Each reads the rows of its own devices.
        assert found["plain"]["read"] == one["plain"]["read"] // len(several)


def test_a_device_of_any_process_holds_an_eighth(two):
    for found in two:
        holds_an_eighth(found["memory"])


def holds_an_eighth(memory):
    """By the compiled programs' own figures; the replicated twin is refuted."""
    ours, twin, few = memory["sharded"], memory["replicated"], 1024
    whole = 8 * 256 * 256 * 4
    state = (1 + 2 + 2) * whole // 8  # parameters, two moments, two steps of noise

    def cut(figures):
        return (
            figures["params"] == whole // 8
            and abs(figures["optimizer"] - 2 * whole // 8) < few
            and abs(figures["noise"] - 2 * whole // 8) < few
            and figures["sums"] < whole // 8 + few
            and abs(figures["results"] - state) < 4096
        )

    assert cut(ours) and not cut(twin)
    assert twin["params"] == whole and twin["sums"] >= whole


# -- rows of one's own -----------------------------------------------------------------


def test_each_process_reads_its_own_rows_and_no_other(one, two):
    own_rows_alike(one, two)


def own_rows_alike(one, several):
    """Drawn over the union by public counts: the run of one process with all rows."""
    for found in several:
        for case in ("whole", "microbatches", "in parts"):
            close(found["own_rows"][case], one["plain"]["params"])
    # A row of another process raises IndexError; the data has no more than these.
    assert sum(found["own_rows"]["rows"] for found in several) == 200


def test_what_no_program_sees_of_own_rows_is_stated(one, two):
    """Rows that overlap in part: an officer reads that nobody has looked for them."""
    for found in two:
        assert ROWS_APART in found["own_rows"]["statement"]
        assert ROWS_APART not in found["plain"]["statement"]
    assert ROWS_APART not in one["own_rows"]["statement"]


@pytest.mark.parametrize(
    "case, said",
    [
        ("same rows", "processes 0 and 1 hold the same rows.*Nothing was spent"),
        ("a row is missing", r"counts\[1\] must be the number of rows.*109; got 110"),
        ("other counts", "differ in counts of rows.*Nothing was spent"),
        ("own rows in one alone", "differ in counts of rows.*Nothing was spent"),
        ("elastic in one alone", "differ in .*checkpoint.*Nothing was spent"),
        ("lattice", "ProcessRows add padding.*Nothing was spent"),
        ("mesh backwards", "in the order of the processes.*Nothing was spent"),
    ],
)
def test_rows_that_cannot_be_counted_once_are_refused(two, case, said):
    for found in two:
        assert re.search(said, found["own_rows"]["errors"][case])


# -- all of it, on two and on four processes -------------------------------------------


@pytest.fixture(scope="module")
def faults(place):
    """Two processes, all scenarios, and at the end one of them is killed."""
    return ended(2, place / "faults", *MORE, *FAULTS, "killed_second")


@pytest.fixture(scope="module")
def whole(place):
    return fine(ended(1, place / "whole", *MORE[:4]))[0]


@pytest.fixture(scope="module")
def four(place):
    return fine(ended(4, place / "four", *QUICK, "tensor", "lattice"))


@pytest.mark.deep
def test_four_processes_too(one, four):
    ends_alike(one, four)
    own_rows_alike(one, four)
    for found in four:
        holds_an_eighth(found["memory"])


@pytest.mark.deep
@pytest.mark.parametrize("scenario", ["in_parts", "people", "lattice", "noise_alone"])
def test_parts_and_people_and_other_noise(whole, faults, scenario):
    for process in faults:
        close(process.found[scenario]["params"], whole[scenario]["params"])


@pytest.mark.deep
def test_parameters_that_come_cut_keep_their_cut(one, faults, four):
    several = [[p.found for p in faults], four]
    for found in several:
        count = len(found)
        inside, across = 1 / (8 // count), 1 / count
        for process in found:
            tensor = process["tensor"]
            for name, result in tensor.items():
                if name != "errors":
                    close(result["params"], one["plain"]["params"])
            assert tensor["model inside, False"]["parts"]["v"] == inside
            assert tensor["model across, False"]["parts"]["v"] == across
            for name in ("model inside, True", "model across, True"):
                assert tensor[name]["parts"]["v"] == 1 / 8


@pytest.mark.deep
@pytest.mark.parametrize(
    "case, said",
    [
        ("cut in one alone", "ProcessesDisagree: .*shapes and shardings"),
        ("sharded in one alone", "ProcessesDisagree: .*shapes and shardings"),
        ("other batch axes", "ProcessesDisagree: .*shapes and shardings"),
        ("not finite", "ValueError: .*must be finite"),
    ],
)
def test_processes_that_cut_differently_are_refused_unpaid(faults, case, said):
    for process in faults:
        found = process.found["tensor"]["errors"][case]
        assert re.match(said, found) and "Nothing was spent" in found


@pytest.mark.deep
@pytest.mark.parametrize(
    "case, first, entries",
    [
        ("no mesh", "ValueError: mesh must be given", 0),
        ("fewer rows", "ProcessesDisagree: .* differ in data", 0),
        ("bad data", "TypeError: process 1: data must be numbers", 0),
        ("other order", "ProcessesDisagree: .* differ in data .the rows, in", 0),
        ("other parameters", "ProcessesDisagree: .* first parameters", 0),
        ("other loss", "ProcessesDisagree: .* program", 0),
        ("bad loss", "RuntimeError: process 1: no such", 0),
        ("other plan", "ProcessesDisagree: .* differ in plan", 0),
        ("ledger in the second", "TypeError: process 1: ledger must be None", 0),
        ("declined", "BudgetExceeded: 'DP", 0),
        ("callback", "ProcessFailed: process 1: KeyError", 1),
        ("interrupt", "KeyboardInterrupt: process 1", 1),
        ("disk", "ProcessFailed: process 1: OSError: the disk", 1),
    ],
)
def test_what_fails_in_one_process_fails_in_all(faults, case, first, entries):
    found = faults[0].found["failures"]
    assert re.match(first, found["errors"][case])
    assert found["after"][case]["entries"] == entries


@pytest.mark.deep
def test_who_disagrees_is_named_and_the_twin_trains(faults):
    for process in faults:
        found = process.found["agreements"]
        for case in ("other order", "other draws", "other numpy"):
            assert "ProcessesDisagree" in found[case]["error"]
        for twin in ("order unchecked", "draws unchecked", "numpy unchecked"):
            assert "error" not in found[twin]
    assert faults[0].found["stops"] == {"process 0": 4, "process 1": 12}


# -- killed, and taken up again --------------------------------------------------------


@pytest.fixture(scope="module")
def killed(place, faults):
    """Runs of two processes of which one was killed, and copies of the elastic one."""
    first = ended(2, place / "other", "killed_first")
    second = ended(2, place / "third", "elastic_killed")
    for count in (1, 4):
        shutil.copytree(place / "elastic_killed", place / f"elastic_killed_{count}")
    return {"killed_second": faults, "killed_first": first, "elastic": second}


@pytest.fixture(scope="module")
def again(place, killed):
    return fine(ended(2, place / "again", "taken_up", "elastic_again"))


@pytest.mark.deep
@pytest.mark.parametrize(
    "name, who", [("killed_first", 0), ("killed_second", 1), ("elastic", 1)]
)
def test_a_killed_process_ends_the_run(killed, name, who):
    processes = killed[name]
    assert processes[who].code == -9
    other = processes[1 - who]
    assert other.code in (1, EXIT_CODE) and "finished" not in other.output
    assert "ProcessLost" in other.output


@pytest.mark.deep
def test_the_same_mesh_goes_on_bit_for_bit(faults, again, place):
    for process, wanted in zip(again, faults, strict=True):
        for name in ("killed_first", "killed_second"):
            found = process["taken_up"][name]["params"]
            assert found == wanted.found["undisturbed"]["params"]
        found = process["elastic_again"]
        assert found["params"] == wanted.found["elastic"]["params"]
        assert found["steps"] == 60
    for name in ("killed_first", "killed_second", "elastic_killed"):
        with open_ledger(place / name) as ledger:
            ledger.verify()
            assert len(ledger.entries()) == 1


@pytest.mark.deep
def test_another_mesh_goes_on_after_what_may_have_been_seen(place, killed, again):
    """Four processes and one: the same steps left out, the same run up to rounding."""
    four = fine(ended(4, place / "moved to four", "elastic_again"))
    one = fine(ended(1, place / "moved to one", "elastic_again"))[0]["elastic_again"]
    assert 8 <= one["steps"] < 60
    for found in four:
        assert found["elastic_again"]["steps"] == one["steps"]
        close(found["elastic_again"]["params"], one["params"])
        with pytest.raises(AssertionError):
            close(found["elastic_again"]["params"], again[0]["elastic_again"]["params"])
