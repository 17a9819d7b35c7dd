"""Terms of a new ledger: units and budgets as words, options or a TOML file.

A budget on the command line reads UNIT:EPSILON[:DELTA], and a unit its kind with its
fields, if it has any: `add-or-remove-one`, `replace-one,records_per_person=3`,
`ball,radius=0.2,space=pixels`. The kinds and the fields are those of a ledger's JSON
and of `demur train`; "-" and "_" are the same in a kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demur.core import validate
from demur.core.adjacency import LipschitzMap, Unit, unit_from_json
from demur.ledger import ApprovalRule, Budget, Filter

_SHORT = {"add_or_remove": "add_or_remove_one", "replace": "replace_one"}
_KINDS = "add-or-remove-one, replace-one, zero-out, erasure or ball"
_NUMBERS = {"radius": float, "records_per_person": int}
_NAMES = {
    "dataset", "filter", "blocks", "orders", "testing", "signing_key", "keys",
    "budgets", "maps", "approval_above", "approval_for",
}  # fmt: skip


@dataclass(frozen=True)
class NewLedger:
    """What is fixed when a ledger is made, and the files of whoever makes it."""

    dataset: str
    budgets: Mapping[Unit, Budget]
    filter: Filter | str | None
    maps: tuple[LipschitzMap, ...] = ()
    testing: bool = False
    approval: ApprovalRule | None = None
    signing_key: Path | None = field(default=None, compare=False)
    keys: Path | None = field(default=None, compare=False)


def parse_unit(text: str) -> Unit:
    """The unit that a text names.

    >>> parse_unit("ball,radius=0.2,space=pixels")
    Ball(radius=0.2, space='pixels', records_per_person=1)
    >>> parse_unit("add-or-remove")
    AddOrRemoveOne(records_per_person=1)
    """
    kind, *fields = [part.strip() for part in text.split(",")]
    kind = kind.lower().replace("-", "_")
    values: dict[str, Any] = {}
    try:
        for part in fields:
            name, _, value = part.partition("=")
            values[name] = _NUMBERS.get(name, str)(value)
        return unit_from_json({"unit": _SHORT.get(kind, kind)} | values)
    except ValueError as error:
        why = f" ({error})" if fields else ""
        raise ValueError(
            f"a unit is one of {_KINDS}, with its fields as in"
            f" ball,radius=0.2,space=pixels; got {text[:80]!r}{why}"
        ) from error


def parse_budgets(texts: Iterable[str]) -> dict[Unit, Budget]:
    """The budgets of options that read UNIT:EPSILON[:DELTA]."""
    budgets: dict[Unit, Budget] = {}
    for text in texts:
        words, *numbers = text.split(":")
        if len(numbers) not in (1, 2):
            raise _not_a_budget(text)
        unit = parse_unit(words)
        try:
            amounts = [float(number) for number in numbers]
        except ValueError as error:
            raise _not_a_budget(text) from error
        _add(budgets, unit, Budget(*amounts))
    return budgets


def _not_a_budget(text: str) -> ValueError:
    return ValueError(
        "--budget must read UNIT:EPSILON or UNIT:EPSILON:DELTA, as in"
        f" add-or-remove-one:2:1e-6; got {text[:80]!r}"
    )


def _add(budgets: dict[Unit, Budget], unit: Unit, budget: Budget) -> None:
    if unit in budgets:
        raise ValueError(f"two budgets are given for {unit}: give one")
    budgets[unit] = budget


def make_filter(
    name: str | None,
    blocks: float | None,
    orders: Iterable[int],
    budgets: Mapping[Unit, Budget],
) -> Filter | str | None:
    """The filter of these names, where only a share for blocks means the Gaussian."""
    orders = tuple(orders)
    if orders and name != "rdp":
        raise ValueError("orders are those of the filter rdp: name it as well")
    if blocks is None:
        return Filter.rdp(orders) if orders else name
    validate.probability(blocks=blocks)
    if orders:
        return Filter.rdp(orders, blocks=blocks)
    if name in (None, "gaussian"):
        return Filter.gaussian(blocks=blocks)
    if name == "rdp" and budgets and blocks < 1:
        first = next(iter(budgets.values()))
        rest = Budget(first.epsilon * (1 - blocks), first.delta * (1 - blocks))
        return Filter(Filter.named("rdp", rest).meters, blocks)
    raise ValueError(
        f"blocks is the share that the filters gaussian and rdp set aside; got {blocks}"
        f" for {name!r}"
    )


def make_approval(
    above: float | None, mechanisms: Iterable[str] | None
) -> ApprovalRule | None:
    """The rule of these settings, if there is one."""
    if above is None and not mechanisms:
        return None
    if isinstance(mechanisms, str):
        raise ValueError(f"approval_for must be a list; got {mechanisms!r:.80}")
    return ApprovalRule(above, tuple(mechanisms or ()))


def read_terms(path: Path) -> NewLedger:
    """The terms in a TOML file; paths in it are relative to its folder."""
    with path.open("rb") as file:
        try:
            data = tomllib.load(file)
        except ValueError as error:
            raise ValueError(f"{path} is no TOML file: {error}") from error
    unknown = sorted(set(data) - _NAMES)
    if unknown:
        raise ValueError(
            f"{path.name} has no settings {unknown}; it has {sorted(_NAMES)}."
            " Nothing was made."
        )
    missing = sorted({"dataset", "budgets"} - set(data))
    if missing:
        raise ValueError(f"{path.name} needs the settings {missing}. Nothing was made.")
    budgets: dict[Unit, Budget] = {}
    for table in _tables(data, "budgets"):
        amounts = {name: table.pop(name) for name in ("epsilon", "delta")
                   if name in table}  # fmt: skip
        if "epsilon" not in amounts:
            raise ValueError("each of [[budgets]] needs an epsilon. Nothing was made.")
        unit = str(table.get("unit", "")).lower().replace("-", "_")
        table["unit"] = _SHORT.get(unit, unit)
        _add(budgets, unit_from_json(table), Budget(**amounts))
    try:
        maps = tuple(LipschitzMap(**table) for table in _tables(data, "maps"))
    except TypeError as error:
        raise ValueError(
            "each of [[maps]] has source, target and constant. Nothing was made."
        ) from error
    orders = data.get("orders", [])
    if not isinstance(orders, list):
        raise ValueError(f"orders must be a list; got {orders!r:.40}")
    return NewLedger(
        dataset=data["dataset"],
        budgets=budgets,
        filter=make_filter(data.get("filter"), data.get("blocks"), orders, budgets),
        maps=maps,
        testing=data.get("testing", False),
        approval=make_approval(data.get("approval_above"), data.get("approval_for")),
        signing_key=_beside(path, data, "signing_key"),
        keys=_beside(path, data, "keys"),
    )


def _tables(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ValueError(f"{name} must be tables, [[{name}]]. Nothing was made.")
    return [dict(table) for table in tables]


def _beside(path: Path, data: dict[str, Any], name: str) -> Path | None:
    given = data.get(name)
    if given is None:
        return None
    if not isinstance(given, str) or not given:
        raise ValueError(f"{name} must be a path; got {given!r:.80}")
    return path.parent / Path(given).expanduser()
