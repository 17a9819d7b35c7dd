"""Hand a program to the server, pass signals on, and end as it ends.

A script of its own, for `python -I -S`: it starts in 20 ms.
"""

import json
import os
import signal
import socket
import sys
import time

PATIENCE = 120.0  # seconds until the server has imported everything


def connected(address: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            link.connect(address)
            return link
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def main() -> None:
    link = connected(os.environ["DEMUR_TEST_PROGRAMS"])
    asked = {"words": sys.argv[1:], "folder": os.getcwd(), "env": dict(os.environ)}
    text = json.dumps(asked).encode()
    socket.send_fds(link, [len(text).to_bytes(8, "big")], [0, 1, 2])
    link.sendall(text)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: link.sendall(bytes([got])))
    answer = link.recv(4)
    if len(answer) < 4:
        sys.exit("the server of programs ended")
    status = int.from_bytes(answer, "big", signed=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
