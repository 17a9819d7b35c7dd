"""What tests of the service share: a running one, its tokens, raw requests."""

import http.client
import json
from contextlib import contextmanager
from urllib.parse import urlencode

from demur import AddOrRemoveOne, Ball, Budget, Ledger
from demur.core.accounting.events import GaussianEvent
from demur.ledger import ApprovalRule
from demur.serve.access import AccessStore
from demur.serve.app import create_app
from demur.serve.ledgers import ServedLedgers
from demur.serve.logs import AccessLog
from demur.serve.roles import Role
from demur.serve.server import running
from demur.serve.settings import Settings
from tests.ledger.kit import says

UNIT = AddOrRemoveOne()
TERMS = {
    "dataset": "people",
    "budgets": {UNIT: Budget(4.0, 1e-6)},
    "approval": ApprovalRule(above=0.5),
}
QUIET = says(GaussianEvent(20.0))  # epsilon 0.2 alone: paid at once
LOUD = says(GaussianEvent(4.0), name="a loud count")  # epsilon 1.1 alone: waits
HUGE = says(GaussianEvent(0.1), name="far too much")
BALL = Ball(0.2, space="pixels")


class Served:
    """A running service, and what a test needs to speak to it."""

    def __init__(self, service, access, log_path, ledger):
        self.service, self.access, self.log_path = service, access, log_path
        self.ledger, self.url, self.port = ledger, service.url, service.port
        self.tokens = {
            role.value: access.create(f"the {role.value}", role)[0] for role in Role
        }

    def open(self, role="analyst", name="visits", **more):
        return Ledger.open(
            f"{self.url}/ledgers/{name}", token=self.tokens[role], **more
        )

    def ask(self, method, path, body=None, **headers):
        """One raw request: status, headers, text."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            link.request(method, path, body=body, headers=headers)
            answer = link.getresponse()
            return answer.status, answer.headers, answer.read().decode(errors="replace")
        finally:
            link.close()

    def call(self, call, role="analyst", name="visits", **data):
        """One API call: its status, and what it says."""
        status, _, text = self.ask(
            "POST",
            f"/api/ledgers/{name}/{call}",
            json.dumps(data),
            Authorization=f"Bearer {self.tokens[role]}",
        )
        return status, json.loads(text)

    def browser(self, role="viewer"):
        """A browser without scripts, signed in."""
        return Visitor(self, self.tokens[role])


class Visitor:
    """A browser's cookie and its forms' secret."""

    def __init__(self, served, token):
        self.served = served
        status, headers, _ = served.ask(
            "POST", "/sign-in", urlencode({"token": token}), **FORM
        )
        assert status == 303, status
        self.set_cookie = headers["set-cookie"]
        self.cookie = self.set_cookie.split(";")[0]
        _, _, page = self.get("/")
        self.csrf = page.split('name="csrf" value="')[1].split('"')[0]

    def get(self, path):
        return self.served.ask("GET", path, Cookie=self.cookie)

    def post(self, path, csrf=None, headers=None, **fields):
        fields["csrf"] = self.csrf if csrf is None else csrf
        more = FORM | {"Cookie": self.cookie} | (headers or {})
        return self.served.ask("POST", path, urlencode(fields), **more)


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@contextmanager
def serving(ledger_url, folder, settings=None, services=None, name="visits", **terms):
    """A service over one ledger, called visits."""
    folder.mkdir(exist_ok=True)
    with Ledger.open(ledger_url, **(TERMS | terms)):
        pass
    access = AccessStore(folder / "access" / "access.db")
    key = terms.get("signing_key")
    ledgers = ServedLedgers.open([f"{name}={ledger_url}"], signing_key=key)
    log = folder / "access" / "access.jsonl"
    app = create_app(
        ledgers,
        access,
        settings=settings or Settings(),
        log=AccessLog(log),
        services=services,
    )
    with running(app) as service:
        yield Served(service, access, log, ledgers.calls(name).ledger)
