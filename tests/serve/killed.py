"""A service to be killed; run as a script: killed.py LEDGER ACCESS honest|forgetful

For each line on its input, the name of a step, it forks a service that kills itself at
that step of the next write, and after that another one, at the same port, that lives
until the next line. "forgetful" takes every call for a new one.
"""

import os
import secrets
import signal
import sys
from pathlib import Path

import sqlalchemy as sa

from demur.ledger import LedgerCalls
from demur.ledger.storage import rows
from demur.serve import access, app, ledgers, logs, server


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step, ledger):
    engine = ledger._store._engine
    if step == "before":
        LedgerCalls.charge = LedgerCalls.commit = LedgerCalls.draw = die
        LedgerCalls.decide = die
    elif step == "row":
        rows.append = die
    elif step == "commit":
        write = "demur_write"
        sa.event.listen(
            engine,
            "commit",
            lambda link: die() if link.get_execution_options().get(write) else None,
        )
    elif step == "answer":
        answer = app.Door._response
        app.Door._response = lambda door, told: (
            die() if _is_of_a_write(told) else answer(door, told)
        )


def _is_of_a_write(told):
    return "receipts" in str(told.content) or "ApprovalPending" in str(told.content)


def run(ledger_path, folder, listening, step, mode):
    if mode == "forgetful":
        body = LedgerCalls._body
        LedgerCalls._body = lambda self, *given: (
            body(self, *given) | {"id": secrets.token_hex(16)}
        )
    served = ledgers.ServedLedgers.open([f"visits={ledger_path}"])
    if step:
        arm(step, served.calls("visits").ledger)
    store = access.AccessStore(Path(folder) / "access.db")
    made = app.create_app(served, store, log=logs.AccessLog(None))
    server.serve(server.configure(made, "127.0.0.1", 0), listening)


def main(ledger_path, folder, mode):
    listening = server.listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    clean = None
    for line in sys.stdin:
        if clean is not None:
            os.kill(clean, signal.SIGKILL)
            os.waitpid(clean, 0)
        doomed = fork(ledger_path, folder, listening, line.strip(), mode)
        print("armed", flush=True)
        os.waitpid(doomed, 0)
        clean = fork(ledger_path, folder, listening, "", mode)
    if clean is not None:
        os.kill(clean, signal.SIGKILL)
        os.waitpid(clean, 0)


def fork(ledger_path, folder, listening, step, mode):
    process = os.fork()
    if process == 0:
        try:
            run(ledger_path, folder, listening, step, mode)
        finally:
            os._exit(1)
    return process


if __name__ == "__main__":
    main(*sys.argv[1:])
