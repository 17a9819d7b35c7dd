"""The pages in a real Chromium: what an officer does, on both stores.

Each page loads without a word on the console, fetches nothing from elsewhere, is not
wider than the screen, and can be used with a keyboard and a screen reader: every field
has a name, every page one heading and a language, colours can be told apart.
"""

import json
import os
import re
import subprocess
import time
from contextlib import contextmanager

import pytest

from demur import Budget
from demur.audit import AuditResult
from demur.core.accounting.events import GaussianEvent
from demur.core.cost import Cost, Fixed, GaussianOverBalls
from demur.core.curve import PiecewiseLinear
from demur.core.declaration import Declaration
from demur.errors import ApprovalPending
from demur.ledger import ApprovalRule
from tests.programs import python
from tests.report import layout
from tests.report.browser import Browser
from tests.serve.kit import BALL, UNIT, serving
from tests.serve.test_deletions import used_up

pytestmark = pytest.mark.slow
TERMS = {
    "budgets": {UNIT: Budget(4.0, 1e-6), BALL: Budget(2.0, 1e-6)},
    "approval": ApprovalRule(above=0.5),
}
# What a screen reader or a keyboard would stumble over.
STUMBLES = """
  (() => {
    const found = [];
    const name = e => e.getAttribute('aria-label') || e.innerText?.trim()
      || (e.id && document.querySelector(`label[for="${e.id}"]`)?.innerText.trim());
    for (const e of document.querySelectorAll(
        'a, button, select, input:not([type=hidden])'))
      if (e.checkVisibility() && !name(e))
        found.push(`no name: ${e.outerHTML.slice(0, 80)}`);
    for (const e of document.querySelectorAll('svg:not([role=img])'))
      if (!e.closest('svg[role=img]')) found.push('a picture without a role');
    for (const e of document.querySelectorAll('[role=img]'))
      if (!e.getAttribute('aria-label')) found.push('a picture without words');
    if (document.querySelectorAll('h1').length !== 1) found.push('not one heading');
    if (!document.documentElement.lang) found.push('no language');
    if (!document.title) found.push('no title');
    if (!document.querySelector('main')) found.push('no main part');
    const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
    if (new Set(ids).size !== ids.length) found.push('an id twice');
    for (const e of document.querySelectorAll('th'))
      if (!e.getAttribute('scope')) found.push('a heading without a scope');
    for (const e of document.querySelectorAll('[tabindex]'))
      if (e.tabIndex > 0) found.push('an order of its own');
    return found;
  })()
"""
LINE = PiecewiseLinear([(0.0, 0.0), (1.0, 1.0)], saturates=True)


def head(name, noise):
    """A mechanism with a cost at every distance, and one for a record's presence."""
    by_distance = GaussianOverBalls("pixels", LINE, 4.0)
    return Declaration(name, Cost((by_distance, Fixed(UNIT, GaussianEvent(noise)))))


AUDIT = AuditResult(
    "a head", "black box", "GDP mu test", "AddOrRemoveOne()", 1.0, 1e-6, 0.4, 1000,
    1e-6, False, "It would have found an epsilon of 2.",
)  # fmt: skip
LOUDER = head("a sharper head", 4.0)
PAGES = (
    "", "/entries", "/entries/1", "/distance", "/requests", "/verify?tip=",
    "/deletions", "/audits",
    "/what-if?epsilon=0.4&unit=0&times=2&until=2027-06-01&like=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return used_up(tmp_path_factory.mktemp("model"))


@contextmanager
def at_work(ledger_url, folder, model):
    """A ledger with entries, costs by distance, an audit, a reservation, requests that
    wait, and a deletion service."""
    attached = {"visits": (str(model[0]),)}
    with serving(ledger_url, folder, services=attached, **TERMS) as served:
        with served.open(purpose="the monthly figures") as ledger:
            for label in ("May", "June"):
                entry = ledger.charge(head("a head", 20.0), label=label)
            ledger.annotate(entry, "audit", AUDIT.to_json())
            ledger.reserve(head("a head", 90.0), count=5, label="daily counts").draw()
            for key in ("July", "August"):
                with pytest.raises(ApprovalPending):
                    ledger.charge(LOUDER, label=key, idempotency_key=key)
        yield served


@pytest.fixture
def office(ledger_url, tmp_path, model):
    """On each kind of store: what an officer does to it."""
    with at_work(ledger_url, tmp_path, model) as served:
        yield served


@pytest.fixture(scope="module")
def desk(tmp_path_factory, model):
    """On a file: what pages look like."""
    folder = tmp_path_factory.mktemp("desk")
    with at_work(str(folder / "visits.db"), folder, model) as served:
        yield served


def sign_in(browser, served, role):
    browser.call("Network.clearBrowserCookies")
    browser.visit(f"{served.url}/", width=1280)
    assert browser.evaluate("location.pathname") == "/sign-in"
    token = served.tokens[role]
    browser.evaluate(f"document.querySelector('#token').value = '{token}'")
    browser.follow("document.querySelector('main form button').click()")
    assert browser.evaluate("location.pathname") == "/"


def problems(browser, served, path, width=1280, dark=False):
    browser.visit(served.url + path, width=width, dark=dark)
    ours = (f"request: {served.url}", "request: data:")  # icons of the browser itself
    found = [m for m in browser.messages if not m.startswith(ours)]
    return found + layout.on_screen(browser) + browser.evaluate(STUMBLES)


def text(browser):
    return browser.evaluate("document.querySelector('main').innerText")


def test_every_page_is_sound_on_a_phone_and_on_a_desk(browser, desk):
    sign_in(browser, desk, "officer")
    for path in PAGES:
        for width, dark in ((390, False), (1280, True)):
            place = f"/ledgers/visits{path}"
            assert problems(browser, desk, place, width, dark) == [], place
    sign_in(browser, desk, "administrator")
    assert problems(browser, desk, "/access", 390) == []
    assert problems(browser, desk, "/", 390) == []
    browser.call("Network.clearBrowserCookies")
    assert problems(browser, desk, "/sign-in", 390) == []


SPOILT = {
    "a field without a name": "<input name=x>",
    "two headings": "<h1>again</h1>",
    "pale letters": "<p style='color: #bbb; background: #fff'>pale</p>",
    "something wide": "<div style='width: 3000px'>wide</div>",
    "a picture without words": "<svg role=img></svg>",
}


def test_a_spoilt_page_is_found(browser, shared):
    sign_in(browser, shared, "viewer")
    for markup in SPOILT.values():
        browser.visit(f"{shared.url}/", width=390)
        assert browser.evaluate(STUMBLES) + layout.on_screen(browser) == []
        add = f"insertAdjacentHTML('beforeend', `{markup}`)"
        browser.evaluate(f"document.querySelector('main').{add}")
        found = browser.evaluate(STUMBLES) + layout.on_screen(browser)
        assert found, markup


def test_an_officer_approves_and_declines_and_the_analyst_goes_on(browser, office):
    sign_in(browser, office, "officer")
    browser.visit(f"{office.url}/ledgers/visits/requests", width=1280)
    shown = text(browser)
    assert "the monthly figures" in shown and "the analyst" in shown
    assert "It protects" in shown, "the statement is there"
    for verdict, reason in (("approve", "as agreed"), ("decline", "not in August")):
        browser.evaluate(f"document.querySelector('[name=reason]').value = '{reason}'")
        browser.follow(f"document.querySelector('button[value={verdict}]').click()")
    assert "Nothing waits" in text(browser)
    told = in_another_process(office, "July", "August")
    number = re.fullmatch(r"entry (\d+)\nApprovalDeclined: .*not in August.*\n", told)
    assert number, told
    browser.visit(f"{office.url}/ledgers/visits/entries/{number[1]}", width=1280)
    assert "as agreed" in text(browser)
    assert office.ledger.verify().ok


CHARGES = """
import json, sys
from demur import Declaration, Ledger
from demur.errors import DemurError
url, declaration, *labels = sys.argv[1:]
mechanism = Declaration.from_json(json.loads(declaration))
with Ledger.open(url) as ledger:
    for label in labels:
        try:
            entry = ledger.charge(mechanism, label=label, idempotency_key=label)
            print("entry", entry.sequence)
        except DemurError as error:
            print(f"{type(error).__name__}: {error}")
"""


def in_another_process(served, *labels):
    """What a program prints that charges under these labels."""
    given = [f"{served.url}/ledgers/visits", json.dumps(LOUDER.to_json()), *labels]
    done = subprocess.run(
        [*python(), "-c", CHARGES, *given],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"DEMUR_TOKEN": served.tokens["analyst"]},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_second_officer_at_once_is_told(browser, office):
    sign_in(browser, office, "officer")
    browser.visit(f"{office.url}/ledgers/visits/requests", width=1280)
    token, _ = office.access.create("another officer", "officer")
    office.tokens["other"] = token
    other = office.browser("other")
    number = office.ledger.requests()[0].sequence
    done = other.post(
        f"/ledgers/visits/requests/{number}", reason="no", verdict="decline"
    )
    assert done[0] == 303
    browser.evaluate("document.querySelector('[name=reason]').value = 'yes'")
    browser.follow("document.querySelector('button[value=approve]').click()")
    assert "was declined by another officer" in text(browser)


def test_what_if_says_when_it_is_empty_and_charges_nothing(browser, office):
    sign_in(browser, office, "viewer")
    before = office.ledger.tip()
    browser.visit(f"{office.url}/ledgers/visits/what-if", width=1280)
    browser.evaluate("document.querySelector('#like').value = '1'")
    browser.evaluate("document.querySelector('#times').value = '30'")
    browser.evaluate("document.querySelector('#until').value = '2028-06-01'")
    browser.follow("document.querySelector('main form button').click()")
    found = re.search(r"after (\d+) of (\d+) releases", text(browser))
    assert found and int(found[1]) < int(found[2])
    assert office.ledger.tip() == before


def test_the_radius_moves_epsilon(browser, desk):
    sign_in(browser, desk, "viewer")
    browser.visit(f"{desk.url}/ledgers/visits/distance?radius=0.2", width=1280)
    shown = "document.querySelector('#epsilon').textContent"
    first = browser.evaluate(shown)
    browser.evaluate(
        "(() => { const s = document.querySelector('input[type=range]');"
        " s.value = s.max; s.dispatchEvent(new Event('input')); })()"
    )
    for _ in range(200):
        if browser.evaluate(shown) != first:
            break
        time.sleep(0.02)
    assert float(browser.evaluate(shown)) > float(first)
    radius = browser.evaluate("document.querySelector('#radius').value")
    moved = browser.evaluate(shown)
    browser.visit(f"{desk.url}/ledgers/visits/distance?radius={radius}", width=1280)
    assert browser.evaluate(shown) == moved, "the script rounds as the page does"


def test_search_and_print(browser, office, tmp_path):
    sign_in(browser, office, "viewer")
    browser.visit(f"{office.url}/ledgers/visits/entries?search=june", width=1280)
    assert "1 entry" in text(browser) and "May" not in text(browser)
    browser.visit(f"{office.url}/ledgers/visits/report", width=718)
    browser.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    browser.visit(f"{office.url}/ledgers/visits/entries/1", width=718)
    browser.call("Emulation.setEmulatedMedia", media="print")
    gone = "getComputedStyle(document.querySelector('header.console')).display"
    assert browser.evaluate(gone) == "none"


INK = "rgb(29, 39, 51)"  # dark, on white paper, whatever the screen


def test_every_page_prints_without_its_forms(browser, desk):
    sign_in(browser, desk, "officer")
    shown = "[...document.querySelectorAll('form')].some(f => f.checkVisibility())"
    for path in PAGES:
        browser.visit(f"{desk.url}/ledgers/visits{path}", width=718, dark=True)
        assert layout.on_paper(browser, dark=True) == [], path
        browser.call("Emulation.setEmulatedMedia", media="print")
        assert not browser.evaluate(shown), path
        assert browser.evaluate("getComputedStyle(document.body).color") == INK


def test_the_deletion_queue_shows_what_waits_and_what_was_deleted(
    browser, office, model
):
    sign_in(browser, office, "officer")
    browser.visit(f"{office.url}/ledgers/visits", width=1280)
    click = "[...document.querySelectorAll('nav a')].find(a => a.innerText == '{}')"
    browser.follow(click.format("Deletions") + ".click()")
    shown = text(browser)
    assert "Waiting at model.db" in shown and model[1].record[:12] in shown
    assert "1 issued" in shown and "person" not in shown
    browser.follow(click.format("Audits") + ".click()")
    assert "It would have found an epsilon of 2." in browser.evaluate(
        "document.querySelector('main').textContent"
    )


def press(browser, key, code=0):
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
            **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
        )  # fmt: skip


ACTIVE = "(document.activeElement.innerText || document.activeElement.id).trim()"


def test_a_keyboard_is_enough_to_sign_in_and_decide(browser, office):
    browser.call("Network.clearBrowserCookies")
    browser.visit(f"{office.url}/", width=1280)
    for _ in range(500):  # it gets the focus when the page is first drawn
        if browser.evaluate("document.activeElement.id") == "token":
            break
        time.sleep(0.01)
    else:
        raise AssertionError("the field has no focus")
    browser.call("Input.insertText", text=office.tokens["officer"])
    reach(browser, "Sign in")
    enter(browser)
    browser.visit(f"{office.url}/ledgers/visits/requests", width=1280)
    press(browser, "Tab", 9)
    assert browser.evaluate(ACTIVE) == "Skip to the content"
    seen = "getComputedStyle(document.activeElement).outlineStyle"
    number = office.ledger.requests()[0].sequence
    reach(browser, f"why{number}")
    assert browser.evaluate(seen) != "none", "one sees where one is"
    browser.call("Input.insertText", text="by keyboard")
    reach(browser, "Decline")
    enter(browser)
    decision = office.ledger.requests()[0].decision
    assert decision.reason == "by keyboard" and not decision.approved


def reach(browser, name):
    """Press Tab until something of this name has the focus."""
    for _ in range(60):
        if browser.evaluate(ACTIVE) == name:
            return
        press(browser, "Tab", 9)
    raise AssertionError(f"no Tab leads to {name}")


def enter(browser):
    browser._seen.clear()
    press(browser, "Enter", 13)
    browser.wait_for_load()


# What a screen reader announces without any name is of no use to its listener.
NAMED = {
    "link", "button", "textbox", "combobox", "spinbutton", "slider", "searchbox",
    "meter", "img", "image", "heading", "Date", "option", "navigation", "table",
}  # fmt: skip


UNNAMED = "<table><tr><th>a<th>b</tr><tr><td>1<td>2</tr></table>"


def unnamed(browser):
    """What has a role and no name, and all roles on the page."""
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    known = [n for n in nodes if not n.get("ignored") and n["role"]["value"] in NAMED]
    roles = {node["role"]["value"] for node in known}
    lacking = [n["role"]["value"] for n in known if not n.get("name", {}).get("value")]
    return lacking, roles


def test_a_screen_reader_has_a_name_for_everything(browser, desk):
    sign_in(browser, desk, "officer")
    browser.call("Accessibility.enable")
    seen = set()
    for path in PAGES:
        browser.visit(f"{desk.url}/ledgers/visits{path}", width=1280)
        lacking, roles = unnamed(browser)
        assert lacking == [], path
        seen |= roles
    assert seen >= {"link", "button", "textbox", "slider", "meter", "heading", "table"}
    for twin in (UNNAMED, "<button></button>"):
        add = f"insertAdjacentHTML('beforeend', '{twin}')"
        browser.evaluate(f"document.querySelector('main').{add}")
        assert len(unnamed(browser)[0]) > 0
    browser.call("Accessibility.disable")
