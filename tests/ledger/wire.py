"""Hosts of our own on one machine: network namespaces, and a wire that can fail.

Each host is a namespace with one interface. The other ends lie in the root namespace,
without an address, and a thread carries the frames between the server and the clients.
So a fault is exact and needs nothing of the kernel but namespaces: frames vanish in one
direction or both, without a reset and without an interface going down; are late; or are
lost at random, from a seed.
"""

import array
import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from tests.ledger.kit import HERE, subprocess_environment, wait_until

NETWORK = "10.77.0"
AMBUSH_SECONDS = 3.0
_EVERY_PROTOCOL = 3
_OUTGOING = 4  # a packet socket also sees what it sends
_OFFLOADS = (0x17, 0x1F, 0x24)  # checksums, TCP and generic segmentation: all in kernel
_SIOCETHTOOL = 0x8946
_count = itertools.count()


class NoWire(Exception):
    """This machine gives us no network namespaces."""


@dataclass
class Way:
    """One direction of a client's link."""

    cut: bool = False
    delay: float = 0.0
    loss: float = 0.0


@dataclass
class Link:
    """A client's link: `up` to the server, `down` from it.

    `ambush`: the share of COMMITs whose answers vanish, with all that comes down in the
    next `AMBUSH_SECONDS`.
    """

    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)
    ambush: float = 0.0
    deaf_until: float = 0.0
    ambushes: int = 0

    def set(self, *, up=None, down=None):
        self.up, self.down = up or Way(), down or Way()

    def cut(self):
        self.set(up=Way(cut=True), down=Way(cut=True))

    def heal(self):
        self.set()
        self.ambush, self.deaf_until, self.ambushes = 0.0, 0.0, 0


def _ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise NoWire(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Wire:
    """A server's namespace, some clients', and the frames between them."""

    def __init__(self, clients, seed=1):
        if not sys.platform.startswith("linux") or os.getuid():
            raise NoWire("network namespaces need Linux and root")
        if not all(map(shutil.which, ("ip", "nsenter", "setpriv"))):
            raise NoWire("ip, nsenter or setpriv is not installed")
        self.tag = f"dm{os.getpid() % 10**6}{chr(97 + next(_count) % 26)}"
        self.names = [f"{self.tag}{i}" for i in range(clients + 1)]  # 0: the server
        self.links = [Link() for _ in range(clients)]
        self._random = random.Random(seed)
        self._sockets = []
        self._late: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        self._ended = threading.Event()
        self.failed = None
        try:
            for number, name in enumerate(self.names):
                self._make(number, name)
        except (NoWire, OSError) as error:
            self.close()
            raise NoWire(str(error)) from error
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _make(self, number, name):
        inner = f"{name}x"
        _ip("netns", "add", name)
        mac = f"02:00:00:00:00:{number:02x}"
        _ip(*f"link add {name} type veth peer name {inner} address {mac}".split())
        for end in (name, inner):
            _ip("link", "set", end, "addrgenmode", "none")
            _without_offloads(end)
        _ip("link", "set", inner, "netns", name)
        _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", inner)
        for end in ("lo", inner):
            _ip("-n", name, "link", "set", end, "up")
        _ip("link", "set", name, "up")
        port = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL)
        )
        self._sockets.append(port)
        port.bind((name, 0))
        port.setblocking(False)

    @staticmethod
    def address(number):
        return f"{NETWORK}.{number + 1}"

    def inside(self, number):
        """The words before a command that is to run on this host."""
        return ["nsenter", f"--net=/run/netns/{self.names[number]}"]

    def heal(self):
        for link in self.links:
            link.heal()

    # -- the frames --------------------------------------------------------------

    def _carry(self):
        try:
            while not self._ended.is_set():
                wait = 0.02
                if self._late:
                    wait = min(wait, max(0.0, self._late[0][0] - time.monotonic()))
                ready, _, _ = select.select(self._sockets, [], [], wait)
                for port in ready:
                    self._take(self._sockets.index(port))
                while self._late and self._late[0][0] <= time.monotonic():
                    _, _, number, frame = heapq.heappop(self._late)
                    self._put(number, frame)
        except Exception as error:
            self.failed = error

    def _take(self, number):
        with contextlib.suppress(BlockingIOError, OSError):
            for _ in range(64):
                frame, where = self._sockets[number].recvfrom(65536)
                if where[2] == _OUTGOING:
                    continue
                if number:
                    link = self.links[number - 1]
                    if self._send(0, frame, link.up):
                        self._ambush(link, frame)
                    continue
                to = frame[5]
                for client, link in enumerate(self.links, start=1):
                    meant = frame[0] & 1 or to == client  # for everybody, or for it
                    if meant and time.monotonic() > link.deaf_until:
                        self._send(client, frame, link.down)

    def _ambush(self, link, frame):
        if link.ambush and b"COMMIT" in frame and self._random.random() < link.ambush:
            link.deaf_until = time.monotonic() + AMBUSH_SECONDS
            link.ambushes += 1

    def _send(self, number, frame, way):
        """Whether it is on its way."""
        if way.cut or (way.loss and self._random.random() < way.loss):
            return False
        if way.delay:
            late = (time.monotonic() + way.delay, next(self._order), number, frame)
            heapq.heappush(self._late, late)
        else:
            self._put(number, frame)
        return True

    def _put(self, number, frame):
        with contextlib.suppress(OSError):
            self._sockets[number].send(frame)

    def close(self):
        self._ended.set()
        if hasattr(self, "_thread"):
            self._thread.join()
        for port in self._sockets:
            port.close()
        for name in self.names:
            for words in (("link", "del", name), ("netns", "del", name)):
                with contextlib.suppress(NoWire):
                    _ip(*words)
        if self.failed:
            raise self.failed


def _without_offloads(name):
    """Frames leave the kernel here: they need real checksums and sizes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for feature in _OFFLOADS:
            value = array.array("B", struct.pack("II", feature, 0))
            request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
            fcntl.ioctl(any_socket.fileno(), _SIOCETHTOOL, request)


class Host:
    """A client process on a host of the wire; host.py says what it can be told."""

    def __init__(self, inside, folder):
        self.process = subprocess.Popen(
            [*inside, sys.executable, str(HERE / "host.py")],
            env=subprocess_environment(DEMUR_KEYS=folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout
        self._rest = b""

    def tell(self, do, **what):
        """Start something, and do not wait for it."""
        self._input.write(json.dumps({"do": do, **what}).encode() + b"\n")
        self._input.flush()

    def answer(self, seconds=60.0):
        """What came of it; fails if the host does not answer in time."""
        give_up = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = give_up - time.monotonic()
            assert left > 0, f"the client hangs: no answer in {seconds} s"
            if select.select([self._output], [], [], left)[0]:
                more = os.read(self._output.fileno(), 65536)
                assert more, "the client died"
                self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def ask(self, do, **what):
        self.tell(do, **what)
        return self.answer()

    def wait_until_stopped(self):
        """Until it has stopped itself, where it was told to."""
        status = f"/proc/{self.process.pid}/stat"

        def stopped():
            with open(status) as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "T"

        wait_until(stopped)

    def wake(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self):
        self.wake()
        self._input.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()
