"""How processes find each other, before JAX: a roll call at the coordinator's port.

JAX waits at start-up for all processes, and aborts with a stack of C++ when one does
not come or its port is taken. So process 0 listens at that port first. The others say
which process they are and of how many; when all are there, process 0 tells them to go
on, lets go of the port, and JAX takes it. If one is missing when the time is up, or two
say that they are the same, all that did come are told, by name.

The lines say numbers alone. No secret is sent, and nothing that arrives is trusted: an
unknown caller is ignored.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field

from demur.training.devices.network import addresses_of
from demur.training.errors import StartRefused

_LINE = 2048  # bytes of a line, at most
_KIND = "demur roll call 1"
_PAUSE_S = 0.1


@dataclass(frozen=True)
class SocketAddress:
    """Where process 0 listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, name: str, text: str) -> SocketAddress:
        """Read "host:port"; the host may be [an address of IPv6]."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(f"{name} must be 'host:port'; got {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def listen(place: SocketAddress) -> socket.socket:
    """The port of process 0, taken; a port that somebody else has is refused."""
    host = addresses_of(place.host)[0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, place.port), family=family)
    except OSError as error:
        why = {
            errno.EADDRINUSE: "another program listens there; choose a free port",
            errno.EADDRNOTAVAIL: "this machine has no such address: process 0 runs on"
            " the coordinator's host, or takes another address of it as bind=",
            errno.EACCES: "this user may not listen there; take a port above 1023",
        }.get(error.errno or 0, error.strerror)
        raise StartRefused(
            f"process 0 cannot listen at {place}: {why}. Nothing was spent."
        ) from None


@dataclass
class _Caller:
    """A connection at process 0, and what it has sent so far."""

    connection: socket.socket
    line: bytes = b""


@dataclass
class _RollCall:
    """Who has come, of `processes` processes; 0 is there."""

    processes: int
    present: dict[int, _Caller] = field(default_factory=dict)

    @property
    def missing(self) -> list[int]:
        return [k for k in range(1, self.processes) if k not in self.present]

    def hear(self, caller: _Caller) -> str | None:
        """Note who calls; why the start fails, if it does."""
        message = _read(caller.line)
        if message is None:
            return None
        who, of = message.get("process"), message.get("processes")
        if of != self.processes:
            return f"process {who} expects {of} processes and process 0 expects"
        if not isinstance(who, int) or not 0 < who < self.processes:
            return f"somebody calls as process {who}, of"
        if who in self.present:
            return f"two processes call as process {who}, of"
        self.present[who] = caller
        return None

    def tell(self, callers: Iterable[_Caller], error: str | None) -> None:
        """Send everybody the outcome; one that has gone away is not waited for."""
        for caller in callers:
            with suppress(OSError):
                _send(caller.connection, {"error": error})


def gather(
    listener: socket.socket, place: SocketAddress, processes: int, wait_s: float
) -> None:
    """In process 0: wait for all others, and tell them to go on; or refuse in words."""
    roll, deadline = _RollCall(processes), time.monotonic() + wait_s
    callers: dict[socket.socket, _Caller] = {}
    with ExitStack() as stack:
        stack.enter_context(closing(listener))
        waiting = stack.enter_context(selectors.DefaultSelector())
        waiting.register(listener, selectors.EVENT_READ)
        error: str | None = None
        while roll.missing and error is None:
            left = deadline - time.monotonic()
            if left <= 0:
                error = _absent(roll.missing, place, wait_s)
                break
            for key, _ in waiting.select(left):
                if key.fileobj is listener:
                    connection = listener.accept()[0]
                    stack.enter_context(closing(connection))
                    connection.setblocking(False)
                    callers[connection] = _Caller(connection)
                    waiting.register(connection, selectors.EVENT_READ)
                    continue
                caller = callers[key.fileobj]  # type: ignore[index]
                more = b""
                with suppress(OSError):
                    more = caller.connection.recv(_LINE)
                caller.line += more
                if more and b"\n" not in caller.line and len(caller.line) < _LINE:
                    continue
                waiting.unregister(caller.connection)
                clash = roll.hear(caller)
                if clash is not None:
                    error = f"{clash} {processes}: give each its own number, from 0"
        roll.tell(callers.values(), error)
    if error is not None:
        raise _refusal(error)


def call(place: SocketAddress, processes: int, process: int, wait_s: float) -> None:
    """In every other process: say who calls, and wait until all have."""
    deadline = time.monotonic() + wait_s
    addresses_of(place.host)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _refusal(_absent([0], place, wait_s))
        try:
            with socket.create_connection((place.host, place.port), left) as connection:
                _send(connection, {"process": process, "processes": processes})
                # Process 0 gives up at its own time, and then says who is missing.
                connection.settimeout(left + 5.0)
                answer = _read(_receive(connection))
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
            time.sleep(_PAUSE_S)  # process 0 is not there yet
            continue
        except TimeoutError:
            raise _refusal(_absent([0], place, wait_s)) from None
        except OSError as error:
            raise _refusal(f"{place} cannot be reached: {error.strerror}") from None
        if answer is None:
            time.sleep(_PAUSE_S)
            if time.monotonic() + _PAUSE_S > deadline:
                raise _refusal(f"what answers at {place} is not process 0 of a start")
            continue
        if answer.get("error") is not None:
            raise _refusal(str(answer["error"]))
        return


def _absent(missing: list[int], place: SocketAddress, wait_s: float) -> str:
    which = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
    who = f"process {which} has" if len(missing) == 1 else f"processes {which} have"
    return (
        f"{who} not come to {place} within {wait_s:g} s: start all of them, with the"
        " same coordinator, and look whether a firewall is between them (join_s= waits"
        " longer)"
    )


def _refusal(why: str) -> StartRefused:
    return StartRefused(f"the processes were not joined: {why}. Nothing was spent.")


def _send(connection: socket.socket, message: dict[str, object]) -> None:
    connection.sendall(json.dumps({"kind": _KIND} | message).encode() + b"\n")


def _receive(connection: socket.socket) -> bytes:
    line = b""
    while b"\n" not in line and len(line) < _LINE:
        more = connection.recv(_LINE)
        if not more:
            break
        line += more
    return line


def _read(line: bytes) -> dict[str, object] | None:
    """A line of a roll call; None for anything else."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    known = isinstance(message, dict) and message.get("kind") == _KIND
    return message if known else None
