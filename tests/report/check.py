"""Is what the page says what the ledger says? The check, and what a twin must fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from demur.core.adjacency import Ball
from demur.ledger import Ledger
from demur.report.noted_charts import down
from demur.report.text import number


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
    found = [
        f"{place}: the page says {text}, the JSON {value_at(data, place)}"
        for shown, words in ((numbers, number), (bounds, down))
        for place, text in shown.items()
        if text != _said(words, value_at(data, place))
    ]
    truth = _truth(ledger)
    for place, value in truth.items():
        if value_at(data, place) != value:
            found.append(f"{place}: the JSON says other than the ledger's {value}")
    needed = [p for p in truth if p.startswith(("budgets", "entries"))]
    found += [f"{p} is not in the page" for p in needed if p not in numbers]
    if data["chain"]["tip"] != str(ledger.tip()):
        found.append("the tip")
    if len(data["entries"]) != len(ledger.entries()):
        found.append("the number of entries")
    for i, world in enumerate(data["worlds"]):
        for k in range(0, len(world["radii"]), 6):
            ball = Ball(world["radii"][k], space=world["space"])
            if world["epsilon"][k] != ledger.epsilon(world["delta"], ball):
                found.append(f"worlds.{i}.epsilon.{k}")
    return found


def _said(words: Callable[[float | None], str], value: Any) -> str:
    return "" if value == "missing" else words(value)


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
