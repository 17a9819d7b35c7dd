"""Compares the numbers of a page with its JSON and with the ledger."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from demur import Ball
from demur.core.rounding import printed_pair
from demur.ledger import Ledger
from demur.report.text import number_down, number_up


class Page(HTMLParser):
    """The numbers of a page by their place, its JSON, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: dict[str, str] = {}
        self.bounds: dict[str, str] = {}
        self.loads: list[str] = []
        self.ids: list[str] = []
        self._into: tuple[dict[str, str], str] | None = None
        self.feed(text)
        (data,) = re.findall(
            r'<script type="application/json" id="ledger">(.*?)</script>',
            text,
            re.DOTALL,
        )
        self.data = json.loads(data)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        for key in ("src", "href", "xlink:href", "action", "srcset"):
            value = given.get(key, "#")
            if not value.startswith("#") and value != "data:,":
                self.loads.append(f"{tag} {value}")
        if tag in ("iframe", "img", "object", "embed", "form"):
            self.loads.append(tag)
        if tag == "script" and given.get("type") != "application/json":
            self.loads.append(tag)
        self.loads += [key for key in given if key.startswith("on")]
        if "data-number" in given:
            self._into = self.numbers, given["data-number"]
        elif "data-lower" in given:
            self._into = self.bounds, given["data-lower"]

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            where, place = self._into
            where[place] = where.get(place, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._into = None


def value_at(data: Any, place: str) -> Any:
    """The value at a place such as budgets.0.epsilon."""
    for step in place.split("."):
        try:
            data = data[int(step)] if isinstance(data, list) else data[step]
        except (IndexError, KeyError):
            return "missing"
    return float(data) if data in ("inf", "-inf") else data


def differences(
    numbers: dict[str, str], bounds: dict[str, str], data: Any, ledger: Ledger
) -> list[str]:
    """Every place where page, JSON and ledger do not agree."""
    wrong = [
        f"{place}: the page has {text}, the JSON {value_at(data, place)}"
        for shown, rounded in ((numbers, number_up), (bounds, number_down))
        for place, text in shown.items()
        if text != _printed(data, place, rounded)
    ]
    truth = _truth(ledger)
    for place, value in truth.items():
        if value_at(data, place) != value:
            wrong.append(f"{place}: the JSON differs from the ledger's {value}")
    needed = [p for p in truth if p.startswith(("budgets", "entries"))]
    wrong += [f"{p} is not in the page" for p in needed if p not in numbers | bounds]
    if data["chain"]["tip"] != str(ledger.tip()):
        wrong.append("the tip")
    if len(data["entries"]) != len(ledger.entries()):
        wrong.append("the number of entries")
    for i, cost in enumerate(data["spaces"]):
        for k in range(0, len(cost["radii"]), 6):
            ball = Ball(cost["radii"][k], space=cost["space"])
            if cost["epsilon"][k] != ledger.epsilon(cost["delta"], ball):
                wrong.append(f"spaces.{i}.epsilon.{k}")
    return wrong


def _printed(data: Any, place: str, rounded: Callable[[float | None], str]) -> str:
    """What the page must have at a place; a budget is printed with what is spent."""
    if place.startswith("budgets.") and place.rpartition(".")[2] in (
        "spent_epsilon",
        "epsilon",
    ):
        own = place.rpartition(".")[0]
        spent = value_at(data, f"{own}.spent_epsilon")
        if isinstance(spent, float) and math.isfinite(spent):
            pair = printed_pair(spent, value_at(data, f"{own}.epsilon"))
            return pair[place.endswith(".epsilon")]
    return _text(rounded, value_at(data, place))


def _text(rounded: Callable[[float | None], str], value: Any) -> str:
    return "" if value == "missing" else rounded(value)


def _truth(ledger: Ledger) -> dict[str, float]:
    truth: dict[str, float] = {}
    for i, status in enumerate(ledger.status()):
        truth[f"budgets.{i}.spent_epsilon"] = status.spent_epsilon
        truth[f"budgets.{i}.epsilon"] = status.budget.epsilon
        truth[f"budgets.{i}.delta"] = status.budget.delta
        truth[f"budgets.{i}.tight_epsilon"] = ledger.epsilon(unit=status.unit)
    for i, entry in enumerate(ledger.entries()):
        for k, promise in enumerate(entry.promises):
            deletion = entry.declaration.cost.only_erasure()
            if deletion == (promise.unit.kind == "erasure"):
                cost = entry.epsilon(promise.unit, promise.delta)
                truth[f"entries.{i}.epsilon.{k}"] = cost
    return truth
