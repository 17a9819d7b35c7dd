"""What the ledger's tests share: short names, raw SQL, and a PostgreSQL server."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import demur
from demur import AddOrRemoveOne, Budget, Declaration
from demur.core.cost import Cost, Fixed
from tests.programs import python

UNIT = AddOrRemoveOne()
BUDGET = Budget(2.0, 1e-6)
HERE = Path(__file__).parent


def says(event, unit=UNIT, name="a noisy count", **more):
    """A mechanism with one event at one unit."""
    return Declaration(name, Cost((Fixed(unit, event),)), **more)


def subprocess_environment(**more):
    """The environment of a worker: the same demur as the tests."""
    source = str(Path(demur.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source} | {k: str(v) for k, v in more.items()}


def run_script(name, *arguments, timeout=240):
    """What tests/ledger/<name> prints, in a process of its own."""
    done = subprocess.run(
        [*python(), str(HERE / name), *map(str, arguments)],
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def is_file(url):
    return "://" not in str(url)


_PATH = "-c search_path=demur,public"


def edit(url, *statements, **values):
    """Run SQL past the ledger: sqlite3 on a file, psycopg on a server."""
    if is_file(url):
        with closing(sqlite3.connect(url)) as connection:
            for statement in statements:
                connection.execute(statement, values)
            connection.commit()
        return
    psycopg = __import__("psycopg")
    with psycopg.connect(url, options=_PATH) as connection:
        for statement in statements:
            plain = re.sub(r"(?<!:):(\w+)", r"%(\1)s", statement.replace("%", "%%"))
            connection.execute(plain, values)


def ask(url, statement):
    """The rows that SQL past the ledger returns."""
    if is_file(url):
        with closing(sqlite3.connect(url)) as connection:
            return connection.execute(statement).fetchall()
    psycopg = __import__("psycopg")
    with psycopg.connect(url, options=_PATH) as connection:
        return connection.execute(statement).fetchall()


class Server:
    """A PostgreSQL server of our own, on a Unix socket in a folder of its own.

    `inside` are words before its commands, to run it in a network namespace, where it
    also listens on `address` and trusts the other hosts of that network. With `primary`
    it is a standby of that server, by streaming replication.
    """

    def __init__(self, *, inside=(), address=None, primary=None, **more):
        self.binaries = _find_binaries()
        self.inside, self.address = list(inside), address
        self.folder = Path(tempfile.mkdtemp(prefix="demur-pg-"))
        self.user = None
        if os.getuid() == 0:
            self.user = _unprivileged()
            shutil.chown(self.folder, self.user)
        self.data = self.folder / "data"
        where = ("-D", self.data, "--no-sync", "-U", "demur")
        if primary is None:
            self._run("initdb", *where, "-A", "trust", *_LOCALE)
        else:
            copied = ("-h", primary.folder, "-R", "-c", "fast", "-X", "stream")
            self._run("pg_basebackup", *where, *copied)
        settings = {
            "listen_addresses": f"'{address or ''}'",
            "unix_socket_directories": f"'{self.folder}'",
            "max_connections": "200",
            "shared_buffers": "'64MB'",
        } | more
        lines = "".join(f"{k} = {v}\n" for k, v in settings.items())
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(lines)
        if address:
            with (self.data / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {address}/24 trust\n")
        self.start()
        self._count = 0

    def start(self):
        log = self.folder / "log"
        self._run("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode="fast"):
        self._run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def promote(self):
        """Let a standby take the place of its primary."""
        self._run("pg_ctl", "-D", self.data, "-w", "-t", "60", "promote")

    def kill(self):
        """End every process of the server at once, as a power cut does."""
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        for process in [main, *_children(main)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self):
        with suppress(RuntimeError):  # it was killed
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database):
        return f"postgresql://demur@/{database}?host={self.folder}"

    def url_over_the_wire(self, database):
        return f"postgresql://demur@{self.address}/{database}"

    def admin(self, statement):
        psycopg = __import__("psycopg")
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def new_database(self):
        self._count += 1
        name = f"ledger{self._count}"
        self.admin(f"CREATE DATABASE {name}")
        return name

    def _run(self, program, *arguments):
        # A server must not inherit the pipes of its starter: output goes to a file.
        output = self.folder / f"{program}.out"
        command = [self.binaries / program, *map(str, arguments)]
        drop = {
            "user": self.user,
            "group": self.user and _group(self.user),
            "extra_groups": [] if self.user else None,
        }
        if self.inside:
            # Entering a namespace needs root: privileges are dropped behind it.
            owner = [f"--reuid={self.user}", f"--regid={_group(self.user)}"]
            command = [*self.inside, "setpriv", *owner, "--clear-groups", *command]
            drop = {}
        with output.open("w+") as file:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                **drop,
                cwd=self.folder,
                env=os.environ | {"LC_ALL": "C", "HOME": str(self.folder)},
            )
        if done.returncode:
            raise RuntimeError(f"{program}: {output.read_text()[-2000:]}")


def _children(process):
    named = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in named.split()]


_LOCALE = ("-E", "UTF8", "--locale=C")


class NoServer(Exception):
    """This machine has no PostgreSQL server."""


def _find_binaries():
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)],
    )
    places = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    for place in [*reversed(folders), *places]:
        needed = ("initdb", "pg_ctl", "postgres")
        if all((place / name).is_file() for name in needed):
            return place
    on_path = shutil.which("initdb"), shutil.which("pg_ctl")
    if all(on_path):
        return Path(str(on_path[0])).resolve().parent
    raise NoServer("no initdb and pg_ctl on PATH or in /usr/lib/postgresql/*/bin")


def _unprivileged():
    pwd = __import__("pwd")
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoServer("running as root, and there is no unprivileged user to run as")


def _group(user):
    return __import__("pwd").getpwnam(user).pw_gid


def wait_until(holds, seconds=30.0):
    """Wait for something to become true, or fail."""
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.005)
