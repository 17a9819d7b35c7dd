"""`demur ledger`: make a ledger, back it up, check a backup, end unfinished runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from demur.cli.ledger.options import (
    Address,
    Full,
    KeysFolder,
    PasswordFile,
    Signer,
    SigningKey,
    TipOption,
    load_key,
    open_to_read,
    read_tip,
)
from demur.cli.ledger.views import ledger_app as ledger_app
from demur.cli.shell import AsJson, Code, console, errors, print_json, written

if TYPE_CHECKING:
    from demur.cli.ledger.terms import NewLedger
    from demur.ledger import BackupCheck, Ledger, Unfinished


class FilterName(StrEnum):
    """Which rule declines a charge."""

    GAUSSIAN = "gaussian"
    PURE = "pure"
    RDP = "rdp"


@ledger_app.command("create")
def create(
    address: Address,
    terms: Annotated[
        Path | None,
        typer.Option(help="Take the terms from this TOML file, not from options."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The name of the data that it protects.")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="As in add-or-remove-one:2:1e-6 or"
            " ball,radius=0.2,space=pixels:1:1e-6; may be repeated.",
            metavar="UNIT:EPSILON[:DELTA]",
        ),
    ] = None,
    filter: Annotated[
        FilterName | None,
        typer.Option(help="Default: pure if some delta is 0, gaussian otherwise."),
    ] = None,
    blocks: Annotated[
        float | None,
        typer.Option(help="The share set aside for sampled plans, 0 to 1."),
    ] = None,
    order: Annotated[
        list[int] | None,
        typer.Option(help="Order of the filter rdp; may be repeated."),
    ] = None,
    approval_above: Annotated[
        float | None,
        typer.Option(help="A charge that alone costs more epsilon needs approval."),
    ] = None,
    approval_for: Annotated[
        list[str] | None,
        typer.Option(
            help="Charges of mechanisms with such a name need approval, as in"
            " 'DP-SGD*'; may be repeated.",
            metavar="NAME",
        ),
    ] = None,
    signing_key: SigningKey = None,
    password_file: PasswordFile = None,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """Make a new ledger, and print its terms and its tip, to be stored elsewhere.

    Its terms never change. An address that has a ledger is refused.
    """
    from demur.cli.ledger.terms import make_approval
    from demur.durable import private_files
    from demur.ledger import Ledger

    approval = make_approval(approval_above, approval_for)
    if terms is None:
        new = _from_options(dataset, budget, filter, blocks, order)
    elif dataset or budget or filter or blocks is not None or order or approval:
        raise ValueError(
            "--terms is a file of all terms: give no --dataset, --budget, --filter,"
            " --blocks, --order or --approval beside it. Nothing was made."
        )
    else:
        new = _from_file(terms)
    for name, given, in_file in (
        ("signing_key", signing_key, new.signing_key),
        ("keys", keys, new.keys),
    ):
        if given and in_file:
            raise ValueError(
                f"{name} is in {terms} and an option: give it once. Nothing was made."
            )
    folder = keys or new.keys
    if folder is not None:
        private_files.check_folder(folder.expanduser())
    ledger = Ledger.create(
        address,
        dataset=new.dataset,
        budgets=dict(new.budgets),
        filter=new.filter,
        maps=new.maps,
        approval=approval or new.approval,
        signing_key=load_key(signing_key or new.signing_key, password_file),
        keys=folder,
        testing=new.testing,
    )
    with ledger:
        _print_terms(ledger, as_json)


def _from_options(
    dataset: str | None,
    budget: list[str] | None,
    filter: FilterName | None,
    blocks: float | None,
    order: list[int] | None,
) -> NewLedger:
    from demur.cli.ledger.terms import NewLedger, make_filter, parse_budgets

    if not dataset or not budget:
        raise ValueError(
            "a ledger needs --dataset and at least one --budget, or --terms with a"
            " file of them. Nothing was made."
        )
    budgets = parse_budgets(budget)
    name = None if filter is None else filter.value
    return NewLedger(dataset, budgets, make_filter(name, blocks, order or (), budgets))


def _from_file(terms: Path) -> NewLedger:
    from demur.cli.ledger.terms import read_terms

    return read_terms(terms)


def _print_terms(ledger: Ledger, as_json: bool) -> None:
    from demur.core.rounding import printed_down

    terms, tip = ledger.terms, ledger.tip()
    if as_json:
        print_json(
            {
                "dataset": terms.dataset,
                "id": ledger.id,
                "budgets": [
                    {"unit": unit.to_json()} | budget.to_json()
                    for unit, budget in terms.budgets
                ],
                "filter": str(terms.filter),
                "maps": [str(m) for m in terms.maps],
                "approval": terms.approval and terms.approval.to_json(),
                "signer": terms.signer,
                "testing": terms.testing,
                "tip": str(tip),
            }
        )
        return
    table = Table(
        title=f"A new ledger of {escape(repr(terms.dataset))}", title_justify="left"
    )
    for column in ("unit", "what is protected", "epsilon", "delta"):
        table.add_column(column)
    for unit, budget in terms.budgets:
        table.add_row(
            escape(str(unit)),
            escape(unit.describe()),
            printed_down(budget.epsilon),
            printed_down(budget.delta),
        )
    console.print(table)
    lines = [f"filter: {terms.filter}", *(f"map: {m}" for m in terms.maps)]
    if terms.approval is not None:
        lines.append(str(terms.approval))
    lines.append(f"signed by: {terms.signer or 'nobody (no signing key)'}")
    if terms.testing:
        lines.append("for TESTS: it accepts seeded noise, which is NOT PRIVATE")
    lines += [
        f"tip: {tip}",
        "Store the tip (and the signer's public key, if there is one) where whoever"
        " runs the ledger cannot write: a ledger that was replaced does not contain"
        " them.",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


@ledger_app.command("backup")
def backup(
    address: Address,
    file: Annotated[
        Path, typer.Argument(help="A new file; none is replaced.", metavar="FILE")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a ledger in a file to FILE, whole or not at all, and print the copy's tip.

    Others may write to the ledger meanwhile. Noise keys are not copied.
    """
    from demur.ledger import backup_ledger

    with open_to_read(address) as ledger:
        tip = backup_ledger(ledger, file)
    if as_json:
        print_json({"written": str(file), "tip": str(tip)})
        return
    written(file)
    console.print(f"tip: {tip}", highlight=False, soft_wrap=True)


@ledger_app.command("check-backup")
def check_backup(
    file: Annotated[Path, typer.Argument(help="The backup.", metavar="FILE")],
    tip: TipOption = None,
    ledger: Annotated[
        str | None, typer.Option(help="Compare with this ledger, the live one.")
    ] = None,
    signer: Signer = None,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """Verify a backup, and say how far it is behind a tip or the ledger.

    Nothing is written to FILE. Exit code 1 if something is wrong in it, or if it is no
    beginning of the ledger.
    """
    from demur.ledger import check_backup as check

    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    live = None if ledger is None else open_to_read(ledger)
    try:
        result = check(file, tip=read_tip(tip), ledger=live, signer=signer, full=full)
    finally:
        if live is not None:
            live.close()
    if as_json:
        print_json(
            {
                "ok": result.ok,
                "rows": result.verification.rows,
                "tip": str(result.tip),
                "behind_tip": result.behind_tip,
                "behind_ledger": result.behind_ledger,
                "problems": result.problems,
                "unknown": result.verification.unknown,
            }
        )
    else:
        for line in _backup_lines(result):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not result.ok:
        raise typer.Exit(int(Code.ERROR))


def _backup_lines(result: BackupCheck) -> list[str]:
    lines = [f"{result.verification.rows} rows checked, tip {result.tip}"]
    lines += [f"PROBLEM: {p}" for p in result.problems] or ["no problem found"]
    lines += [f"not known: {u}" for u in result.verification.unknown]
    behind = result.behind_tip
    if behind is not None and behind > 0:
        lines.append(
            f"It ends {_rows(behind)} before the tip. Whether it leads to that tip only"
            " the ledger can tell (--ledger). What those rows spent stays spent."
        )
    elif behind is not None and result.ok:
        after = f", and goes on for {_rows(-behind)}" if behind else " and ends there"
        lines.append(f"It contains the tip{after}.")
    behind = result.behind_ledger
    if behind:
        lines.append(
            f"It is {_rows(behind)} behind the ledger. Whoever goes on with it instead"
            " spends the budget of those rows twice."
        )
    elif behind == 0:
        lines.append("It has every row of the ledger.")
    return lines


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


@ledger_app.command("unfinished")
def unfinished(
    address: Address,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Remove the noise keys of these entries.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before keys are removed.")
    ] = False,
    keys: KeysFolder = None,
    as_json: AsJson = False,
) -> None:
    """List entries that were charged and never committed, and their keys on this disk.

    With its key an interrupted run can be repeated: the same noise, no second charge.
    --wipe removes the keys. Those runs can then not be repeated with the same noise;
    their entries stay spent.
    """
    from demur.ledger import Ledger

    if yes and not wipe:
        raise ValueError("--yes answers the question of --wipe: give both")
    open_to_read(address).close()  # one that is not there is reported in our words
    with Ledger.open(address, keys=keys, read_only=True) as ledger:
        found = ledger.unfinished()
        stored = [each for each in found if each.key is not None]
        if not as_json:
            _print_unfinished(found)
        if wipe and stored and not yes and not _agreed(len(stored)):
            raise ValueError("No key was removed.")
        wiped = stored if wipe else []
        for each in wiped:
            ledger.wipe_key(each.entry)
    if as_json:
        facts = [_unfinished_facts(each) for each in found]
        print_json(
            {"unfinished": facts, "wiped": [each.entry.sequence for each in wiped]}
        )
    elif wipe:
        console.print(
            f"{_keys(len(wiped))} removed. Those runs cannot be repeated with the same"
            " noise; their entries stay spent."
            if wiped
            else "There is no key to remove.",
            highlight=False,
        )


def _agreed(count: int) -> bool:
    errors.print(
        "Without its key a run cannot be repeated with the same noise: another run is"
        " another charge. The entries stay spent. Stop runs that are under way first.",
        highlight=False,
    )
    try:
        return typer.confirm(f"Remove {_keys(count)}?", err=True)
    except typer.Abort:
        return False


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"


def _print_unfinished(found: tuple[Unfinished, ...]) -> None:
    if not found:
        console.print("Every entry is committed.")
        return
    table = Table(title="Charged and never committed", title_justify="left")
    for column in ("no.", "date", "label", "mechanism", "runs", "who", "key"):
        table.add_column(column)
    for each in found:
        entry = each.entry
        table.add_row(
            str(entry.sequence),
            entry.time[:10],
            escape(entry.label),
            escape(entry.declaration.name),
            str(entry.count),
            escape(entry.actor),
            "-" if each.key is None else "on disk",
        )
    console.print(table)
    console.print(
        "They are spent. Where the key is on disk, the same run repeats its noise and"
        " pays nothing more; --wipe removes the keys.",
        highlight=False,
    )


def _unfinished_facts(each: Unfinished) -> dict[str, Any]:
    entry = each.entry
    return {
        "sequence": entry.sequence,
        "id": entry.id,
        "label": entry.label,
        "mechanism": entry.declaration.name,
        "count": entry.count,
        "time": entry.time,
        "actor": entry.actor,
        "key": None if each.key is None else str(each.key),
    }
