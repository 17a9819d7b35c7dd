"""A writer to be killed; run as a script: writer.py URL honest|sabotaged

For each line on its input it forks a child that opens the ledger and writes for ever,
and reports every acknowledged row on its output, unbuffered, the moment the ledger has
returned. "sabotaged" reports a row before its transaction is committed.
"""

import os
import sys
import time

from demur import AddOrRemoveOne, Declaration, Ledger
from demur.core.accounting.events import Pure
from demur.core.cost import Cost, Fixed
from demur.ledger.storage import rows

GRAIN = Declaration("a grain", Cost((Fixed(AddOrRemoveOne(), Pure(2.0**-30)),)))


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write_for_ever(url, honest):
    ledger = Ledger.open(url)
    if not honest:
        append = rows.append

        def append_and_say(connection, state, body, *rest):
            appended = append(connection, state, body, *rest)
            say("row", body["kind"], body["id"], state.sequence + 1)
            time.sleep(0.003)
            return appended

        rows.append = append_and_say
    say("opened")
    while True:
        entry = ledger.charge(GRAIN, label="a grain")
        if honest:
            say("row", "charge", entry.id, entry.sequence)
        ledger._commit(entry, "artefact")
        if honest:
            say("row", "commit", entry.id, 0)
        reserved = ledger.reserve(GRAIN, count=2, label="two")
        if honest:
            say("row", "charge", reserved.entry.id, reserved.entry.sequence)
        reserved.draw()
        if honest:
            say("row", "draw", reserved.entry.id, 0)


def main(url, mode):
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                write_for_ever(url, mode == "honest")
            except BaseException as error:
                say("failed", repr(error))
            finally:
                os._exit(1)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main(*sys.argv[1:])
