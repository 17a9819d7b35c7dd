"""`demur serve` and `demur token`: a service in front of ledgers, and its tokens."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.ledger.options import PasswordFile, SigningKey, load_key
from demur.cli.shell import App, AsJson, console, print_json

if TYPE_CHECKING:
    from demur.serve import AccessStore

serve_commands = App()  # those of the main group
token_app = App(
    help="Make, list and revoke the tokens of a service.", no_args_is_help=True
)

AccessFolder = Annotated[
    Path,
    typer.Option(
        "--access",
        help="The private folder of tokens, sessions and the access log.",
    ),
]
_ACCESS = Path("demur-access")
_FILE, _LOG = "access.db", "access.jsonl"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@serve_commands.command("serve", rich_help_panel="The ledger")
def serve(
    ledgers: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders of *.db files, or NAME=ADDRESS.", metavar="LEDGER..."
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8400,
    access: AccessFolder = _ACCESS,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="A PEM file; with --tls-key, serve over TLS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's key, a PEM file.")
    ] = None,
    behind_tls: Annotated[
        bool,
        typer.Option("--behind-tls", help="A proxy in front of it speaks TLS."),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which browsers call it; may be repeated."),
    ] = None,
    proxy_header: Annotated[
        str,
        typer.Option(help="Believe this header of a reverse proxy who has signed in."),
    ] = "",
    proxy: Annotated[
        list[str] | None,
        typer.Option(help="That proxy's address (default: this machine)."),
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(
            help="Show the queue of a deletion service on a ledger's page; may be"
            " repeated.",
            metavar="NAME=ADDRESS",
        ),
    ] = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Serve ledgers to people (pages) and programs (an API), until Ctrl-C or SIGTERM.

    The first time, a token of an administrator is made, and printed once.
    """
    from demur.core.errors import DemurError, LedgerMissing
    from demur.serve.access import AccessStore

    try:
        from demur.serve.app import create_app
    except ModuleNotFoundError as error:
        raise DemurError(
            "a service needs Starlette, uvicorn and Jinja2: pip install 'demur[serve]'."
            " Nothing was served."
        ) from error
    from demur.serve.ledgers import ServedLedgers
    from demur.serve.logs import AccessLog
    from demur.serve.server import Tls, configure, listen
    from demur.serve.server import serve as run
    from demur.serve.settings import Settings

    if (tls_certificate is None) != (tls_key is None):
        raise ValueError("--tls-certificate and --tls-key belong together")
    tls = Tls(tls_certificate, tls_key) if tls_certificate and tls_key else None
    if host not in _LOOPBACK and tls is None and not behind_tls:
        raise ValueError(
            f"--host {host} lets others in, who would send tokens in the clear: give"
            " --tls-certificate and --tls-key, or --behind-tls if a proxy speaks TLS."
        )
    names = tuple(allow_host or (_LOOPBACK if host in _LOOPBACK else ()))
    settings = Settings(
        secure=tls is not None or behind_tls,
        proxy_header=proxy_header,
        proxies=tuple(proxy or ("127.0.0.1", "::1")),
        hosts=names,
    )
    attached: dict[str, tuple[str, ...]] = {}
    for given in service or ():
        name, equals, address = given.partition("=")
        if not equals:
            raise ValueError(f"--service must read NAME=ADDRESS; got {given[:80]!r}")
        attached[name] = (*attached.get(name, ()), address)
    key = load_key(signing_key, password_file)
    try:
        served = ServedLedgers.open(ledgers, signing_key=key)
    except LedgerMissing as error:
        place = str(error).partition(". To create")[0]
        raise LedgerMissing(
            f"{place}. `demur ledger create` makes one. Nothing was served."
        ) from error
    try:
        store = AccessStore(access / _FILE)
        listening = listen(host, port)
    except BaseException:
        served.close()
        raise
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    log = AccessLog(access / _LOG)
    app = create_app(served, store, settings=settings, log=log, services=attached)
    scheme = "http" if tls is None else "https"
    shown = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{listening.getsockname()[1]}"
    facts: dict[str, Any] = {
        "url": url,
        "ledgers": [f"{url}/ledgers/{name}" for name in served.names()],
    }
    if not store.grants():
        facts["token"], _ = store.create("administrator", "administrator", days=30)
    if as_json:
        print_json(facts)
    else:
        _announce(facts)
    run(configure(app, host, port, tls), listening)


def _announce(facts: dict[str, Any]) -> None:
    for line in facts["ledgers"]:
        console.print(f"serving {escape(line)}", highlight=False, soft_wrap=True)
    if "token" in facts:
        console.print(
            "the administrator's token, shown this once (30 days):"
            f" [bold]{escape(facts['token'])}[/]",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"sign in at {escape(facts['url'])}/sign-in; Ctrl-C stops",
        highlight=False,
        soft_wrap=True,
    )


@token_app.command("create")
def create(
    name: Annotated[
        str, typer.Argument(help="Who; entries and decisions carry it.", metavar="NAME")
    ],
    role: Annotated[
        str,
        typer.Option(help="viewer, analyst, officer, auditor or administrator."),
    ],
    ledger: Annotated[
        list[str] | None,
        typer.Option(help="A ledger it is for (default: all); may be repeated."),
    ] = None,
    days: Annotated[float, typer.Option(help="How long it is valid.")] = 90.0,
    access: AccessFolder = _ACCESS,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: it is stored as a hash."""
    from demur.core import validate

    validate.positive(days=days)
    store = _store(access)
    try:
        token, grant = store.create(name, role, ledgers=ledger or ("*",), days=days)
    finally:
        store.close()
    if as_json:
        print_json({"token": token, "id": grant.id, "ends": _day(grant.ends)})
    else:
        console.print(token, highlight=False, markup=False, soft_wrap=True)


@token_app.command("list")
def list_tokens(access: AccessFolder = _ACCESS, as_json: AsJson = False) -> None:
    """List the tokens, without their secrets."""
    store = _store(access, there=True)
    grants = store.grants()
    store.close()
    if as_json:
        print_json(
            {
                "tokens": [
                    {
                        "id": each.id,
                        "name": each.name,
                        "role": each.role.value,
                        "ledgers": list(each.ledgers),
                        "ends": _day(each.ends),
                        "revoked": each.revoked,
                    }
                    for each in grants
                ]
            }
        )
        return
    table = Table(title="Tokens", title_justify="left")
    for column in ("no.", "name", "role", "ledgers", "until"):
        table.add_column(column)
    for each in grants:
        until = "revoked" if each.revoked else _day(each.ends)
        named = escape(", ".join(each.ledgers))
        table.add_row(str(each.id), escape(each.name), each.role.value, named, until)
    console.print(table)


@token_app.command("revoke")
def revoke(
    number: Annotated[
        int, typer.Argument(help="The token's number, as `list` has it.", metavar="N")
    ],
    access: AccessFolder = _ACCESS,
    as_json: AsJson = False,
) -> None:
    """End a token and its sessions now."""
    store = _store(access, there=True)
    try:
        ended = store.revoke(number)
    finally:
        store.close()
    if not ended:
        raise ValueError(f"there is no token {number} to revoke")
    if as_json:
        print_json({"revoked": number})
    else:
        console.print(f"token {number} is revoked", highlight=False)


def _store(folder: Path, there: bool = False) -> AccessStore:
    from demur.serve.access import AccessStore

    if there and not (folder / _FILE).exists():
        raise ValueError(f"there are no tokens in {folder}. Nothing was changed.")
    return AccessStore(folder / _FILE)


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")
