"""Settings of a service."""

from __future__ import annotations

from dataclasses import dataclass

from demur.core import validate


@dataclass(frozen=True)
class Settings:
    """Limits and switches; the defaults are for one machine.

    - `secure`: whether browsers come over TLS, here or at a proxy: cookies say so.
    - `proxy_header`: the header in which a reverse proxy names the person it has
      signed in. It is believed from `proxies` alone, and from nobody if it is empty.
    - `session_hours`: how long a browser stays signed in.
    - `largest_body`: bytes of a request; `slowest_body`: seconds for all of them.
    - `failures`: refused tokens of one address in a minute, before it has to wait.
    - `calls_a_minute`: of one token.
    - `hosts`: the names by which browsers may call the service; empty is any.
    """

    secure: bool = False
    proxy_header: str = ""
    proxies: tuple[str, ...] = ("127.0.0.1", "::1")
    session_hours: float = 8.0
    largest_body: int = 1 << 20
    slowest_body: float = 20.0
    failures: int = 10
    calls_a_minute: int = 60_000
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate.positive(
            session_hours=self.session_hours, slowest_body=self.slowest_body
        )
        validate.count(
            largest_body=self.largest_body,
            failures=self.failures,
            calls_a_minute=self.calls_a_minute,
        )
