"""Start-up in words: ports, missing processes, networks; a lost process is named."""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from demur.training import StartRefused, distributed
from demur.training.devices import joining, network
from demur.training.devices.aborted_processes import EXIT_CODE
from demur.training.devices.joining import SocketAddress
from demur.training.devices.processes import Processes
from tests.training.processes.launch import free_port

pytestmark = pytest.mark.slow


def outcome(act, *arguments):
    try:
        act(*arguments)
    except StartRefused as error:
        return str(error)
    return "joined"


def roll_call(processes, callers, wait_s=10.0):
    """What process 0 and each (process, of how many) is told."""
    place = SocketAddress("127.0.0.1", free_port())

    def first():
        joining.gather(joining.listen(place), place, processes, wait_s)

    with ThreadPoolExecutor(len(callers) + 1) as pool:
        others = [
            pool.submit(outcome, joining.call, place, of, who, wait_s)
            for who, of in callers
        ]
        mine = pool.submit(outcome, first)
        return [mine.result(), *(other.result() for other in others)]


def test_all_processes_are_waited_for():
    assert roll_call(4, [(3, 4), (1, 4), (2, 4)]) == ["joined"] * 4


def test_missing_processes_are_named_to_all_that_came():
    told = roll_call(4, [(2, 4)], wait_s=0.5)
    assert len(told) == 2
    for text in told:
        assert "processes 1, 3 have not come" in text and "0.5 s" in text
        assert "Nothing was spent" in text


def test_a_missing_first_process_is_named():
    place = SocketAddress("127.0.0.1", free_port())
    began = time.monotonic()
    assert "process 0 has not come" in outcome(joining.call, place, 2, 1, 0.5)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "callers, said",
    [
        ([(1, 3), (1, 3)], "two processes call as process 1, of 3"),
        ([(1, 2)], "process 1 expects 2 processes and process 0 expects 3"),
    ],
)
def test_numbers_that_do_not_fit_are_named(callers, said):
    for text in roll_call(3, callers):
        assert said in text


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartRefused, match="another program listens there"):
            distributed.start(address, 2, 0, join_s=1)
    assert jax.process_count() == 1


def test_somebody_else_at_the_port_is_no_process():
    """A caller that says nothing of a roll call, and a server that is none."""
    place = SocketAddress("127.0.0.1", free_port())
    listener = joining.listen(place)

    def stranger():
        with socket.create_connection((place.host, place.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            time.sleep(0.2)

    thread = threading.Thread(target=stranger)
    thread.start()
    said = outcome(joining.gather, listener, place, 2, 0.5)
    thread.join()
    assert "process 1 has not come" in said
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = SocketAddress("127.0.0.1", server.getsockname()[1])
        stop = threading.Event()

        def serve():
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    connection = server.accept()[0]
                except TimeoutError:
                    continue
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        said = outcome(joining.call, other, 2, 1, 0.8)
        stop.set()
        thread.join()
    assert "not process 0" in said or "process 0 has not come" in said


# -- whose network ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"coordinator": "192.0.2.1:7777"},
        {"coordinator": "127.0.0.1:7777", "bind": "0.0.0.0:7777"},
        {"coordinator": "[2001:db8::1]:7777"},
    ],
)
def test_another_network_than_the_loopback_needs_the_owners_word(options):
    with pytest.raises(StartRefused, match="own_network=True"):
        distributed.start(processes=2, process=1, join_s=1, **options)


def test_with_the_owners_word_it_is_tried(monkeypatch):
    """The refusal is that one alone: a start beyond it goes on to the roll call."""

    def called(*_):
        raise InterruptedError("at the roll call")

    monkeypatch.setattr(joining, "call", called)
    with pytest.raises(InterruptedError, match="roll call"):
        distributed.start("192.0.2.1:7777", 2, 1, own_network=True)


def test_a_host_without_an_address_is_named():
    with pytest.raises(StartRefused, match="no-such-host.invalid"):
        distributed.start("no-such-host.invalid:7777", 2, 1, join_s=1)


class Device:
    def __init__(self, process):
        self.process_index = process


def test_processes_that_were_joined_elsewhere_need_the_owners_word(monkeypatch):
    """`jax.distributed.initialize` by hand: `fit` asks whose network it is."""
    devices = [Device(0), Device(1)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(network, "_owners_word", False)
    mesh = Mesh(np.array(devices), ("data",))
    with pytest.raises(StartRefused, match=r"own_network\(\)"):
        Processes(mesh)
    distributed.own_network()
    assert Processes(mesh).count == 2


# -- aborted ---------------------------------------------------------------------------

ABORTED = """
import os, threading, time
from demur.training.devices import aborted_processes
{named}
threading.Thread(target=os.abort).start()
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "named, code", [("aborted_processes.name_them()", EXIT_CODE), ("", -6)]
)
def test_an_abort_has_a_name_and_a_code(tmp_path, named, code):
    """JAX aborts in a thread of its own; the twin without the handler dies of it."""
    done = subprocess.run(
        [sys.executable, "-c", ABORTED.format(named=named)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code
    assert ("ProcessLost: JAX has ended" in done.stderr) == bool(named)
