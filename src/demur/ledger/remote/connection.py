"""Calls to a service over HTTP, repeated safely after a lost answer.

An answer of the service is final. A call that was never sent spent nothing. A call that
was sent and not answered may have been carried out, so it is sent again, with the same
names in it; the service looks for them under the ledger's lock, at every call. It does
so for a lost call that arrives late, too: whichever of the two is first writes, and the
other one finds what it wrote. So a charge is paid once, in whatever order they arrive.

A definite refusal that follows a lost call is final as well. Budgets only shrink: what
is declined now would be declined later. After anything else (no answer in time, a
refusal that is about the caller and not about the charge) the outcome is unknown.

The token goes to the address it was given for, over TLS or to this very machine, and
is in no error, log or pickle. Redirections are not followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from demur.core.errors import (
    AccessRefused,
    LedgerMissing,
    LedgerUnreachable,
    OutcomeUnknown,
)
from demur.durable.chain import canonical
from demur.durable.postgres import Timeouts
from demur.ledger.remote.wire import error_of

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 1.0
_LARGEST = 64 << 20  # bytes of an answer
_TRY_LATER = (429, 503)  # the service did nothing
_IDLE = 8  # connections that are kept


@dataclass(frozen=True)
class Address:
    """Where a ledger is served: https://HOST[:PORT][/PREFIX]/ledgers/NAME."""

    secure: bool
    host: str
    port: int
    prefix: str
    name: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a text names, or a clear error without the text itself."""
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "url must be https://HOST/ledgers/NAME with nothing else in it: a token"
                " in an address ends in logs. Give it as token=. Nothing was spent."
            )
        prefix, slash, name = parts.path.rstrip("/").rpartition("/ledgers/")
        if not parts.hostname or not slash or not _NAME.fullmatch(name):
            raise ValueError(
                "url must read https://HOST/ledgers/NAME, as the service prints it; got"
                f" {url[:80]!r}. Nothing was spent."
            )
        secure = parts.scheme == "https"
        if not secure and not _is_loopback(parts.hostname):
            raise ValueError(
                f"url must begin with https:// for {parts.hostname!r}: over http://"
                " anybody on the way reads the token. Nothing was spent."
            )
        port = parts.port or (443 if secure else 80)
        return cls(secure, parts.hostname, port, prefix, name)

    def path(self, call: str) -> str:
        """The path of a call on the service."""
        return f"{self.prefix}/api/ledgers/{quote(self.name)}/{call}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Caller:
    """Makes calls, with a few connections that are kept open."""

    def __init__(self, url: str, token: str | None, timeouts: Timeouts) -> None:
        self.address = Address.parse(url)
        secret = os.environ.get("DEMUR_TOKEN") if token is None else token
        if not isinstance(secret, str) or not _TOKEN.fullmatch(secret):
            raise ValueError(
                "token must be a token of the service, or be in DEMUR_TOKEN. Nothing"
                " was spent."
            )
        self._authorisation = f"Bearer {secret}"
        self._timeouts = timeouts
        self._context = ssl.create_default_context() if self.address.secure else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock, self._process = threading.Lock(), os.getpid()
        # One that nobody closed is closed when nobody has it any more.
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    def read(self, call: str, **data: Any) -> Any:
        """The answer to a call that changes nothing."""
        return self._call(call, data, writes=False)

    def write(self, call: str, **data: Any) -> Any:
        """The answer to a call that may have been carried out if none comes."""
        return self._call(call, data, writes=True)

    def close(self) -> None:
        """Close the connections; another call opens new ones."""
        with self._lock:
            _close_all(self._idle, self._process)

    def _call(self, call: str, data: dict[str, Any], *, writes: bool) -> Any:
        content = canonical(data).encode()
        give_up = time.monotonic() + self._timeouts.call
        in_doubt, wait, words = False, _FIRST_WAIT, "no answer"
        while True:
            sent = False
            try:
                connection, sent = self._connection(give_up), True
                status, answer = self._exchange(connection, call, content, give_up)
            except (OSError, http.client.HTTPException) as error:
                words = f"{type(error).__name__}: {error}"[:200]
                if isinstance(error, ssl.SSLCertVerificationError) and not in_doubt:
                    raise LedgerUnreachable(
                        f"{self.address.host} could not show who it is: {words}."
                        " Nothing was sent and nothing was spent."
                    ) from error
                in_doubt = in_doubt or sent
            else:
                if status == 200 and isinstance(answer, dict) and "is" in answer:
                    return answer["is"]
                told = answer.get("error") if isinstance(answer, dict) else None
                refusal = error_of(told)
                if isinstance(refusal, OutcomeUnknown):
                    refusal = None  # the service does not know either: ask again
                if refusal is not None and status not in _TRY_LATER:
                    if in_doubt and isinstance(refusal, AccessRefused | LedgerMissing):
                        break
                    raise refusal
                words = f"status {status}"
                in_doubt = in_doubt or refusal is None
            if time.monotonic() + wait > give_up:
                break
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        if in_doubt and writes:
            raise OutcomeUnknown(
                f"the service at {self.address.host} was asked and did not answer"
                f" ({words}), so it may or may not have been written. Repeat the same"
                " call with the same idempotency key: it pays once. Without a key,"
                " count it as spent."
            )
        raise LedgerUnreachable(
            f"the service at {self.address.host} could not be reached: {words}. Try"
            " again later. Nothing was spent by this step; what was charged before it"
            " stays spent."
        )

    def _connection(self, give_up: float) -> http.client.HTTPConnection:
        """A connection that is open; nothing was sent on it for this call."""
        with self._lock:
            if os.getpid() != self._process:  # the parent's, which must stay open
                self._idle.clear()
                self._process = os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if connection.sock is not None and not _has_ended(connection.sock):
                    return connection
                connection.close()
        left = max(0.1, min(self._timeouts.connect, give_up - time.monotonic()))
        place = self.address
        connection = (
            http.client.HTTPConnection(place.host, place.port, timeout=left)
            if self._context is None
            else http.client.HTTPSConnection(
                place.host, place.port, timeout=left, context=self._context
            )
        )
        connection.connect()
        assert connection.sock is not None
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        call: str,
        content: bytes,
        give_up: float,
    ) -> tuple[int, Any]:
        try:
            assert connection.sock is not None
            patience = self._timeouts.lock + self._timeouts.silence
            left = min(patience, give_up - time.monotonic())
            connection.sock.settimeout(max(0.1, left))
            headers = {
                "Authorization": self._authorisation,
                "Content-Type": "application/json",
                "Accept": "application/json",
            }
            path = self.address.path(call)
            connection.request("POST", path, body=content, headers=headers)
            response = connection.getresponse()
            text = response.read(_LARGEST + 1)
            if len(text) > _LARGEST:
                raise http.client.HTTPException("an answer that is too long")
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                keep = len(self._idle) < _IDLE and os.getpid() == self._process
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, None

    def __reduce__(self) -> Any:
        raise TypeError("a connection with a token cannot be pickled")

    def __repr__(self) -> str:
        return f"<Caller of {self.address.host}>"


def _close_all(idle: list[http.client.HTTPConnection], process: int) -> None:
    """Close connections, in the process that opened them."""
    if os.getpid() == process:
        for connection in idle:
            connection.close()
    idle.clear()


def _has_ended(link: socket.socket) -> bool:
    """Whether the other end has closed a connection that nothing was asked on."""
    try:
        link.setblocking(False)
        return link.recv(1, socket.MSG_PEEK) == b""
    except (BlockingIOError, ssl.SSLWantReadError, ValueError):
        return False  # nothing to read, or TLS, which cannot peek
    except OSError:
        return True
    finally:
        link.settimeout(None)
