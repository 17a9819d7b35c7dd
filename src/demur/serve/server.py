"""A running service: uvicorn with our limits, which stops when its work is done."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

_STOPPING = 30  # seconds for requests that are under way
_IDLE = 75  # seconds that a connection is kept without a request
_HEADERS = 20.0  # seconds for the first line and the headers of a request


@dataclass(frozen=True)
class Tls:
    """The certificate of a service, and its key, as PEM files."""

    certificate: Path
    key: Path


class Connection(H11Protocol):
    """A connection on which a request has to begin in time.

    uvicorn waits for ever for headers, and for the rest of a body that was answered
    already. The body of a request is timed by the application.
    """

    patience = _HEADERS
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Stop waiting once a request is being served; go on waiting until then."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._rest()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.patience, self.transport.close)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def configure(
    app: Starlette, host: str, port: int, tls: Tls | None = None
) -> uvicorn.Config:
    """uvicorn's settings: it believes no proxy's header, and says little of itself."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        http=Connection,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=_STOPPING,
        limit_concurrency=2000,
        h11_max_incomplete_event_size=64 << 10,
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
        lifespan="off",
        ws="none",
    )


def serve(config: uvicorn.Config, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that are under way are finished."""
    server = uvicorn.Server(config)
    asyncio.run(server.serve(sockets=[listening]))
    close(config)


def close(config: uvicorn.Config) -> None:
    """Wait for threads that still write, then close ledgers and tokens."""
    app = config.app
    assert isinstance(app, Starlette)
    app.state.door.close()
    app.state.house.ledgers.close()
    app.state.house.access.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket on this port, or on a free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol: asyncio asks for it before it turns off Nagle's delay.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except BaseException:
        listening.close()
        raise
    return listening


class RunningService:
    """A service in a thread of this process, for programs and tests."""

    def __init__(self, app: Starlette, host: str = "127.0.0.1", port: int = 0) -> None:
        self._config = configure(app, host, port)
        self._server = uvicorn.Server(self._config)
        self._socket = listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):
            asyncio.run(self._server.serve(sockets=[self._socket]))

    def start(self) -> RunningService:
        """Begin to listen."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """Finish what is under way, and stop."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        close(self._config)


@contextlib.contextmanager
def running(app: Starlette) -> Iterator[RunningService]:
    """A service for the length of a block."""
    service = RunningService(app).start()
    try:
        yield service
    finally:
        service.stop()
