"""`demur ledger`: show, verify and export a ledger, and one entry of it whole."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.ledger.options import (
    Address,
    Full,
    Signer,
    TipOption,
    open_to_read,
    read_tip,
)
from demur.cli.shell import (
    App,
    AsJson,
    Code,
    console,
    json_text,
    print_json,
    written,
)
from demur.core.errors import NotCovered, NotPriced
from demur.core.rounding import printed_down, printed_up

if TYPE_CHECKING:
    from demur.core.adjacency import Unit
    from demur.core.entry import Entry
    from demur.ledger import Ledger

ledger_app = App(
    help="Make, read, check and back up a ledger of privacy charges.",
    no_args_is_help=True,
)


@ledger_app.command("show")
def show(
    address: Address,
    unit: Annotated[
        str | None,
        typer.Option(
            help="The unit of each entry's epsilon, as in ball,radius=0.2,space=pixels"
            " (default: the first budget's)."
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Of that epsilon (default: the budget's).")
    ] = None,
    limit: Annotated[int, typer.Option(help="How many entries, newest last.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Print the budgets and what is spent, the newest entries and declined requests."""
    from demur.ledger import export_ledger

    with open_to_read(address) as ledger:
        at = _chosen_unit(ledger, unit, delta)
        if as_json:
            print_json(export_ledger(ledger) | _shown(ledger, *at))
            return
        for table in ledger_tables(ledger, limit, at):
            console.print(table)


@ledger_app.command("entry")
def entry(
    address: Address,
    number: Annotated[
        int, typer.Argument(help="The entry's number, as show prints it.", metavar="N")
    ],
    as_json: AsJson = False,
) -> None:
    """Print one entry whole: its statement, its cost at every unit, its notes."""
    with open_to_read(address) as ledger:
        facts = _entry_facts(ledger, ledger.entry(number))
    if as_json:
        print_json(facts)
        return
    commit = facts["committed"]
    finished = (
        "no: under way, interrupted, or its noise is drawn by another program"
        if commit is None
        else f"{commit['time']}, released {commit['artefact'] or 'without a digest'}"
    )
    lines = {
        "entry": f"{number} ({facts['id']})",
        "label": facts["label"],
        "mechanism": facts["mechanism"],
        "runs": f"{facts['count']:,}",
        "noise": "OS entropy" if facts["private"] else "seeded: NOT PRIVATE",
        "charged": f"{facts['time']} by {facts['actor']}",
        "committed": finished,
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in lines.items():
        table.add_row(name, escape(value))
    console.print(table)
    costs = Table(title="Cost", title_justify="left")
    for column in ("unit", "epsilon", "delta"):
        costs.add_column(column, justify="left" if column == "unit" else "right")
    for cost in facts["costs"]:
        shown, at = _epsilon_text(cost["epsilon"]), printed_up(cost["delta"])
        costs.add_row(escape(cost["shown"]), shown, at)
    console.print(costs)
    console.print(facts["statement"], highlight=False, markup=False)
    for gains in facts["gains"]:
        console.print(gains["statement"], highlight=False, markup=False)
    for note in facts["notes"]:
        stated = ", ".join(f"{name} {value}" for name, value in note["facts"].items())
        line = f"Note on {note['about']} ({note['time'][:10]}): {stated}"
        console.print(line, highlight=False, markup=False)


@ledger_app.command("verify")
def verify(
    address: Address,
    tip: TipOption = None,
    signer: Signer = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Check every row, link, signature, price and total; exit code 1 if one is wrong.

    A ledger with many different sampled plans is priced anew with --full only.
    """
    with open_to_read(address) as ledger:
        check = ledger.verify(read_tip(tip), signer=signer, full=full)
        if as_json:
            print_json(
                {
                    "ok": check.ok,
                    "rows": check.rows,
                    "tip": str(check.tip),
                    "problems": check.problems,
                    "unknown": check.unknown,
                }
            )
        else:
            console.print(str(check), highlight=False, soft_wrap=True)
        if not check.ok:
            raise typer.Exit(int(Code.ERROR))


@ledger_app.command("export")
def export(
    address: Address,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A file; default: print.")
    ] = None,
    tip_only: Annotated[
        bool, typer.Option("--tip", help="Only the tip, to store elsewhere.")
    ] = False,
    registry: Annotated[
        bool, typer.Option(help="Records for the public deployments registry.")
    ] = False,
    product: Annotated[str, typer.Option(help="For the registry.")] = "",
    organisation: Annotated[str, typer.Option(help="For the registry.")] = "",
    actors: Annotated[
        bool, typer.Option("--actors", help="Also who charged each entry.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ledger as JSON, its tip, or records for the public registry.

    The ledger and the records are always JSON; --json also applies to the tip and to
    the name of the file that was written.
    """
    from demur.ledger import export_ledger, registry_records

    if actors and (tip_only or registry):
        raise ValueError(
            "--actors is about entries, which are neither in the tip nor in records for"
            " the registry: leave it out"
        )
    with open_to_read(address) as ledger:
        if tip_only:
            text = str(ledger.tip())
            if as_json:
                text = json_text({"tip": text})
        elif registry:
            records = registry_records(
                ledger,
                product=product or ledger.terms.dataset,
                organisation=organisation,
            )
            text = json_text(records)
        else:
            text = json_text(export_ledger(ledger, actors=actors))
    if output is None:
        print(text)
        return
    output.write_text(text + "\n")
    if as_json:
        print_json({"written": str(output)})
    else:
        written(output)


def ledger_tables(
    ledger: Ledger, limit: int = 50, at: tuple[Unit, float] | None = None
) -> list[Table]:
    """Tables of budgets, newest entries and declined requests, for the terminal.

    `at` is the unit and the delta of each entry's epsilon (default: the first
    budget's).
    """
    unit, delta = at or _chosen_unit(ledger, None, None)
    tables = [_budget_table(ledger), _entry_table(ledger.entries(), limit, unit, delta)]
    declined = ledger.declined()
    if declined:
        table = Table(title="Declined: nothing was spent", title_justify="left")
        for column in ("no.", "date", "label", "who", "why"):
            table.add_column(column)
        for asked in declined[-limit:] if limit > 0 else []:
            table.add_row(
                str(asked.sequence),
                asked.time[:10],
                escape(asked.label),
                escape(asked.actor),
                escape(asked.why),
            )
        if len(declined) > limit:
            table.caption = f"the newest {limit} of {len(declined):,}"
        tables.append(table)
    recoveries = ledger.recoveries()
    if recoveries:
        table = Table(title="Rows that were lost", title_justify="left")
        for column in ("no.", "date", "up to row", "entered again", "who"):
            table.add_column(column)
        for done in recoveries:
            whole = "" if done.complete else "; others are written down"
            table.add_row(
                str(done.sequence),
                done.time[:10],
                str(done.tip.sequence),
                f"{done.entered} charges{whole}",
                escape(done.actor),
            )
        tables.append(table)
    return tables


def _budget_table(ledger: Ledger) -> Table:
    budgets = Table(
        title=f"Ledger of {escape(repr(ledger.terms.dataset))}", title_justify="left"
    )
    for column in ("unit", "spent", "of", "delta", "tight reading"):
        budgets.add_column(column, justify="left" if column == "unit" else "right")
    about = []
    for status in ledger.status():
        reading = ledger.reading(status.unit)
        if reading.persons:
            about.append(f"{status.unit}: {reading.protects}.")
        budgets.add_row(
            escape(str(status.unit)),
            *status.shown,
            printed_down(status.budget.delta),
            printed_up(reading.epsilon),
        )
    budgets.caption = escape("\n".join([f"Filter: {ledger.terms.filter}", *about]))
    return budgets


def _entry_table(entries: list[Entry], limit: int, unit: Unit, delta: float) -> Table:
    table = Table(title="Entries", title_justify="left")
    for column in ("no.", "date", "label", "mechanism", "runs"):
        table.add_column(column)
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("noise", no_wrap=True)
    few = f"The newest {limit} of {len(entries):,}. " if len(entries) > limit else ""
    where = f"{unit}, delta {printed_up(delta)}"
    skipped = " Numbers are rows of the ledger; commits and notes are rows, too."
    if [entry.sequence for entry in entries] == list(range(1, len(entries) + 1)):
        skipped = ""
    adds = " They do not add up: each alone has the whole delta." if entries[1:] else ""
    table.caption = escape(
        f"{few}Epsilon of each entry alone at {where}.{adds}{skipped}"
    )
    for entry in entries[-limit:] if limit > 0 else []:
        table.add_row(
            str(entry.sequence),
            entry.time[:10],
            escape(entry.label),
            escape(entry.declaration.name),
            str(entry.count),
            "covered"
            if entry.covered(unit)
            else _epsilon_text(_epsilon(entry, unit, delta)),
            "OS entropy" if entry.private else "[bold red]NOT PRIVATE[/]\n(seeded)",
        )
    return table


def _chosen_unit(
    ledger: Ledger, text: str | None, delta: float | None
) -> tuple[Unit, float]:
    """The unit of an option, as words or as `show` prints it, and its delta."""
    from demur.cli.ledger.terms import parse_unit
    from demur.core import validate

    budgets = dict(ledger.terms.budgets)
    first = next(iter(budgets))
    own = {str(unit): unit for unit in budgets}
    unit = first if text is None else own.get(text) or parse_unit(text)
    if delta is not None:
        validate.probability(delta=delta)
        return unit, delta
    return unit, budgets.get(unit, budgets[first]).delta


def _epsilon(entry: Entry, unit: Unit, delta: float) -> float | None:
    """What the entry alone costs there; None if it states no cost."""
    try:
        return entry.epsilon(unit, delta)
    except (NotCovered, NotPriced):
        return None


def _epsilon_text(epsilon: float | None) -> str:
    return "-" if epsilon is None else printed_up(epsilon)


def _shown(ledger: Ledger, unit: Unit, delta: float) -> dict[str, Any]:
    """What `show` has and an export has not."""
    return {
        "costs": {
            "unit": unit.to_json(),
            "delta": delta,
            "epsilon": {
                str(entry.sequence): _epsilon(entry, unit, delta)
                for entry in ledger.entries()
            },
        },
        "declined": [
            asdict(asked) | {"declaration": asked.declaration.to_json()}
            for asked in ledger.declined()
        ],
    }


def _entry_facts(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    from demur.audit.attacks import gains_of_entry
    from demur.ledger import entry_that_pays

    commit = ledger.commit_of(entry)
    return {
        "sequence": entry.sequence,
        "id": entry.id,
        "label": entry.label,
        "dataset": entry.dataset,
        "mechanism": entry.declaration.name,
        "declaration": entry.declaration.to_json(),
        "count": entry.count,
        "noise": entry.noise,
        "private": entry.private,
        "time": entry.time,
        "actor": entry.actor,
        "unsafe": list(entry.unsafe),
        "committed": None if commit is None else asdict(commit),
        "costs": [
            {
                "unit": unit.to_json(),
                "shown": str(unit),
                "delta": budget.delta,
                "epsilon": _epsilon(entry, unit, budget.delta),
            }
            for unit, budget in ledger.terms.budgets
        ],
        "notes": [asdict(note) for note in ledger.notes(entry)],
        "statement": entry.statement(paid_by=entry_that_pays(ledger, entry)),
        "gains": [
            {"unit": unit.to_json(), "statement": gains.statement(), **gains.to_json()}
            for unit, gains in gains_of_entry(entry)
        ],
    }
