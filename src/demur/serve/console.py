"""Pages about ledgers: at a glance, entry by entry, by distance, requests, what if."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any

from markupsafe import Markup

from demur.core.accounting.events import Pure
from demur.core.adjacency import Ball, Unit
from demur.core.cost import Cost, Fixed
from demur.core.declaration import Declaration
from demur.core.entry import Entry
from demur.core.errors import DemurError, NotCovered, NotPriced
from demur.ledger import ApprovalRequest, Ledger, Readings, forecast, project
from demur.mechanisms import Gaussian
from demur.report import gather, sections
from demur.report.distance import space_costs, unit_name
from demur.report.distance_chart import distance_chart
from demur.report.facts import budget_facts
from demur.report.figure import Chart, inline
from demur.report.page import audit_section
from demur.report.text import json_data
from demur.serve.deletion_services import REASONS, attached_service
from demur.serve.roles import Permission
from demur.serve.visit import Reply, Visit, json_reply, moved

_PAGE = 50
_DECLINED = 20
_RESERVED = 20
_CERTIFICATES = 100


def _render(visit: Visit, name: str, **facts: Any) -> Reply:
    may = {each.name.lower(): visit.who.role.may(each) for each in Permission}
    text = visit.house.templates.render(name, visit=visit, may=may, **facts)
    return Reply(text)


def home(visit: Visit) -> Reply:
    """All ledgers that the token is for, and how much of each is left."""
    ledgers = []
    for name in visit.house.ledgers.names():
        if not visit.who.covers(name):
            continue
        ledger = visit.house.ledgers.calls(name).ledger
        waiting = sum(r.decision is None for r in _asked(ledger))
        rows = [(unit_name(s.unit), s) for s in ledger.status()]
        ledgers.append((name, ledger.terms.dataset, rows, waiting))
    return _render(visit, "home.html", ledgers=ledgers)


def overview(visit: Visit) -> Reply:
    """Budgets, what is left, what waits, what was declined."""
    ledger = visit.ledger
    cards = Markup(sections.cards(budget_facts(ledger)))
    return _render(
        visit,
        "overview.html",
        ledger=ledger,
        cards=cards,
        forecasts=[(unit_name(f.unit), f) for f in forecast(ledger)],
        reserved=_reserved(ledger),
        waiting=[r for r in _asked(ledger) if r.decision is None],
        declined=ledger.declined()[-_DECLINED:][::-1],
        tip=str(ledger.tip()),
        in_a_file=ledger._store.path is not None,
    )


def _reserved(ledger: Ledger) -> list[tuple[Entry, int]]:
    """Entries of several runs that are paid for and not finished: runs left in each."""
    several = [each.entry for each in ledger.unfinished() if each.entry.count > 1]
    left = ((entry, entry.count - ledger._drawn(entry)) for entry in several[::-1])
    return list(islice(((entry, runs) for entry, runs in left if runs), _RESERVED))


def _asked(ledger: Ledger) -> tuple[ApprovalRequest, ...]:
    return () if ledger.terms.approval is None else ledger.requests()


def entries(visit: Visit) -> Reply:
    """Entries with search and filter, newest first."""
    search = visit.query.get("search", "")[:200]
    state = visit.query.get("state", "")
    ledger = visit.ledger
    only_open = state == "unfinished"
    open_ones = {u.entry.id for u in ledger.unfinished()} if only_open else set()
    found = [
        entry
        for entry in reversed(ledger.entries())
        if _matches(entry, search)
        and (not only_open or entry.id in open_ones)
        and (state != "deletions" or entry.declaration.cost.only_erasure())
        and (state != "not private" or not entry.private)
    ]
    pages = max(1, -(-len(found) // _PAGE))
    page = min(pages, _number("page", visit.query.get("page", "1")))
    shown = found[(page - 1) * _PAGE : page * _PAGE]
    return _render(
        visit,
        "entries.html",
        ledger=ledger,
        units=[unit_name(unit) for unit, _ in ledger.terms.budgets],
        rows=[(entry, _own_costs(ledger, entry),
               only_open or ledger.commit_of(entry) is None) for entry in shown],
        found=len(found), page=page, pages=pages, search=search, state=state,
    )  # fmt: skip


def _matches(entry: Entry, search: str) -> bool:
    wanted = search.casefold().split()
    text = f"{entry.sequence} {entry.label} {entry.declaration.name} {entry.actor}"
    return all(word in text.casefold() for word in wanted)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text)):
        raise ValueError(f"{name} must be a whole number from 1; got {text[:20]!r}")
    return int(text)


def _own_costs(ledger: Ledger, entry: Entry) -> list[float | None]:
    return [_cost(entry, unit, budget.delta) for unit, budget in ledger.terms.budgets]


def _cost(entry: Entry, unit: Unit, delta: float) -> float | None:
    try:
        return entry.epsilon(unit, delta)
    except (NotCovered, NotPriced):
        return None


def entry(visit: Visit) -> Reply:
    """One entry whole: statement, cost at every unit, commit, notes."""
    ledger = visit.ledger
    found = ledger.entry(visit.path["number"])
    costs = [
        (unit_name(unit), budget.delta, _cost(found, unit, budget.delta))
        for unit, budget in ledger.terms.budgets
    ]
    return _render(
        visit,
        "entry.html",
        ledger=ledger,
        entry=found,
        costs=costs,
        stated=found.declaration.cost.stated_units(),
        commit=ledger.commit_of(found),
        notes=ledger.notes(found),
        request=next((r for r in _asked(ledger) if r.entry == found.sequence), None),
    )


def distance(visit: Visit) -> Reply:
    """Epsilon over distance; move the radius, see epsilon."""
    ledger = visit.ledger
    costs = space_costs(ledger, Readings(ledger), ledger.entries())
    spaces = [cost.space for cost in costs]
    space = visit.query.get("space") or (spaces[0] if spaces else "")
    chosen = next((cost for cost in costs if cost.space == space), None)
    if chosen is None:
        return _render(visit, "distance.html", ledger=ledger, spaces=spaces, cost=None)
    far = chosen.radii[-1]
    radius = _positive("radius", visit.query.get("radius", f"{far / 2:.4g}"))
    return _render(
        visit,
        "distance.html",
        ledger=ledger,
        spaces=spaces,
        cost=chosen,
        chart=_drawn(distance_chart(chosen, (), "distance", at=radius)),
        radius=radius,
        far=far,
        epsilon=Readings(ledger).epsilon(Ball(radius, space=space), chosen.delta),
    )


def _drawn(chart: Chart) -> Markup:
    return Markup(_without_style(inline(chart)))


def _without_style(drawn: str) -> str:
    """A chart without a style of its own, which the page's policy would refuse."""
    return re.sub("<style.*?</style>", "", drawn, flags=re.DOTALL)


def distance_data(visit: Visit) -> Reply:
    """The tight epsilon at one radius, for the script of the page."""
    ledger = visit.ledger
    space = visit.query.get("space", "")
    deltas = [b.delta for u, b in ledger.terms.budgets
              if isinstance(u, Ball) and u.space == space]  # fmt: skip
    delta = max(deltas or [b.delta for _, b in ledger.terms.budgets])
    radius = _positive("radius", visit.query.get("radius", ""))
    epsilon = Readings(ledger).epsilon(Ball(radius, space=space), delta)
    return json_reply(json_data({"epsilon": epsilon, "delta": delta}))


def _positive(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < 1e300:
        raise ValueError(f"{name} must be a positive number; got {text[:40]!r}")
    return number


def requests(visit: Visit) -> Reply:
    """Charges that wait for a decision, and what was decided."""
    ledger = visit.ledger
    asked = _asked(ledger)
    units = [unit_name(unit) for unit, _ in ledger.terms.budgets]
    waiting = [
        (each, _statement(ledger, each), ledger.would_fit(each.declaration))
        for each in asked
        if each.decision is None
    ]
    decided = [each for each in reversed(asked) if each.decision is not None]
    facts = {"ledger": ledger, "units": units, "waiting": waiting}
    return _render(visit, "requests.html", decided=decided[:200], **facts)


def _statement(ledger: Ledger, request: ApprovalRequest) -> str:
    """What the statement of the entry would say."""
    return Entry(
        id=request.id,
        sequence=request.sequence,
        label=request.label,
        declaration=request.declaration,
        count=request.count,
        noise="os",
        time=request.time,
        dataset=ledger.terms.dataset,
        durable=True,
        promises=request.promises,
        maps=request.maps,
        actor=request.actor,
    ).statement().partition(" Recorded as entry")[0]  # fmt: skip


def decide(visit: Visit) -> Reply:
    """Approve or decline a request."""
    verdict = visit.data.get("verdict")
    if verdict not in ("approve", "decline"):
        raise ValueError("a decision is to approve or to decline. Nothing was decided.")
    reason = " ".join(str(visit.data.get("reason", "")).split())
    call = {
        "number": visit.path["number"],
        "approved": verdict == "approve",
        "reason": reason,
    }
    visit.calls.decide(visit.who.name, call)
    return moved(f"/ledgers/{visit.path['name']}/requests")


def deletions(visit: Visit) -> Reply:
    """Deletions that wait, certificates, and what the ledger has noted of them."""
    attached = visit.house.services.get(visit.path["name"], ())
    services = [attached_service(each) for each in attached]
    noted = Markup(sections.deletions(gather(visit.ledger)))
    facts = {"reasons": REASONS, "most": _CERTIFICATES}
    return _render(visit, "deletions.html", services=services, noted=noted, **facts)


def audits(visit: Visit) -> Reply:
    """Audits that were noted in the ledger, each with what it could have found."""
    facts = gather(visit.ledger)
    title = '<h2 id="audits">Audits</h2>'  # the page has one
    drawn = Markup(_without_style(audit_section(facts).removeprefix(title)))
    return _render(visit, "audits.html", audits=drawn, unread=facts.unread_notes)


def what_if(visit: Visit) -> Reply:
    """What the ledger would read, and when it would be empty; nothing is charged."""
    ledger, query = visit.ledger, visit.query
    today = datetime.now(UTC).date()
    values = {
        "like": query.get("like", ""),
        "epsilon": query.get("epsilon", "0.5"),
        "unit": query.get("unit", "0"),
        "times": query.get("times", "2"),
        "until": query.get("until", (today + timedelta(days=180)).isoformat()),
    }
    units = [unit_name(unit) for unit, _ in ledger.terms.budgets]
    projection, problem = None, ""
    if query:
        try:
            declaration = _imagined(ledger, values)
            dates = _dates(values, today)
            projection = project(ledger, declaration, len(dates))
        except (DemurError, ValueError) as error:
            problem = str(error)
    steps = [] if projection is None else projection.steps
    table = [
        (dates[i].isoformat(), steps[i])
        for i in range(len(steps))
        if i % max(1, len(steps) // 24) == 0 or i == len(steps) - 1
    ]
    ends = None
    if projection is not None and len(steps) < projection.asked:
        ends = dates[len(steps)].isoformat()
    return _render(
        visit, "what_if.html", ledger=ledger, values=values, units=units,
        projection=projection, table=table, ends=ends, problem=problem,
    )  # fmt: skip


def _imagined(ledger: Ledger, values: dict[str, str]) -> Declaration:
    """The release that is asked about: one like an entry, or noise for an epsilon."""
    if values["like"]:
        return ledger.entry(_number("like", values["like"])).declaration
    known = {str(i): each for i, each in enumerate(ledger.terms.budgets)}
    if values["unit"] not in known:
        raise ValueError("unit must be one of the ledger's budgets")
    unit, budget = known[values["unit"]]
    epsilon = _positive("epsilon", values["epsilon"])
    if budget.delta:
        return Gaussian.calibrated(
            sensitivity={unit: 1.0}, epsilon=epsilon, delta=budget.delta, unit=unit
        ).declaration()
    return Declaration("an imagined release", Cost((Fixed(unit, Pure(epsilon)),)))


def _dates(values: dict[str, str], today: date) -> list[date]:
    """The days of the releases: so many in a month, from tomorrow on."""
    times = _positive("times", values["times"])
    try:
        until = date.fromisoformat(values["until"])
    except ValueError:
        raise ValueError(
            f"until must be a day, YYYY-MM-DD; got {values['until'][:20]!r}"
        ) from None
    if not 0 < (until - today).days <= 3660 or times > 1000:
        raise ValueError(
            "until must be a day in the next ten years, and at most 1000 a month"
        )
    step = 30.4375 / times
    many = int((until - today).days / step)
    return [today + timedelta(days=round((i + 1) * step)) for i in range(many)]


def verify(visit: Visit) -> Reply:
    """Every row checked, against an exported tip if there is one."""
    tip = visit.query.get("tip", "").strip()
    check, problem = None, ""
    if "tip" in visit.query:
        try:
            check = visit.ledger.verify(tip or None)
        except ValueError as error:
            problem = str(error)
    return _render(
        visit, "verify.html", ledger=visit.ledger, check=check, tip=tip[:120],
        problem=problem,
    )  # fmt: skip
