"""`demur doctor`: whether demur can work on this machine."""

from __future__ import annotations

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.shell import AsJson, Code, console, print_json


def doctor(as_json: AsJson = False) -> None:
    """Look at this machine: packages, entropy, devices, folders that can be written.

    Exit code 1 if demur cannot work here. Nothing is written and nothing is spent.
    """
    from demur.cli.doctor.findings import findings

    looked = findings()
    broken = [each for each in looked if each.ok is False]
    if as_json:
        facts = [
            {"subject": each.subject, "state": each.state, "ok": each.ok}
            for each in looked
        ]
        print_json({"ok": not broken, "findings": facts})
    else:
        table = Table(show_header=False, box=None, pad_edge=False)
        words = {True: "[green]good[/]", False: "[bold red]BAD[/]", None: ""}
        for each in looked:
            table.add_row(escape(each.subject), words[each.ok], escape(each.state))
        console.print(table)
    if broken:
        raise typer.Exit(int(Code.ERROR))
