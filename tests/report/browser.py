"""A headless Chromium, spoken to over its debugging pipe: nothing else is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def program() -> str:
    """The browser of this machine, or a skip that says what is missing."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("machine: no Chromium (Debian package chromium)")


class Browser:
    """One browser with one page; every message of its console is kept."""

    def __init__(self, profile: Path) -> None:
        here, there_write = os.pipe()
        there_read, back = os.pipe()
        self._in, self._out = here, back

        def connect() -> None:  # fd 3: commands to the browser, fd 4: its answers
            os.dup2(there_read, 100)
            os.dup2(there_write, 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self._process = subprocess.Popen(
            [
                program(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there_read)
        os.close(there_write)
        self._id, self._rest, self._session = 0, b"", None
        self.messages: list[str] = []
        self._seen: set[str] = set()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call(
            "Target.attachToTarget", targetId=target, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._id += 1
        command: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._id:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self, patience: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self._in], [], [], left)[0]
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser went away"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.messages.append(f"console: {params['type']} {params['args']}")
        elif method == "Runtime.exceptionThrown":
            self.messages.append(f"exception: {params['exceptionDetails']['text']}")
        elif method == "Log.entryAdded":
            entry = params["entry"]
            self.messages.append(f"log: {entry['level']} {entry['text']}")
        elif method == "Network.requestWillBeSent":
            self.messages.append(f"request: {params['request']['url'][:200]}")
        self._seen.add(method)

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Load a file at a width, and wait until it is drawn."""
        self.visit(path.resolve().as_uri(), width=width, dark=dark)

    def visit(self, url: str, *, width: int, dark: bool = False) -> None:
        """Load an address at a width, and wait until it is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.messages.clear()
        self._seen.clear()
        self.call("Page.navigate", url=url)
        self.wait_for_load()
        own = f"request: {url}"[: 9 + 200]
        self.messages = [m for m in self.messages if m != own]

    def wait_for_load(self) -> None:
        """Wait until the next page is drawn."""
        while "Page.loadEventFired" not in self._seen:
            self._next()

    def follow(self, script: str) -> None:
        """Run what leads to another page, and wait for it."""
        self._seen.clear()
        self.evaluate(script)
        self.wait_for_load()

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def screenshot(self, path: Path, most: int = 20_000) -> None:
        """The whole page as PNG, up to a height."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], most),
            "scale": 1,
        }
        data = self.call(
            "Page.captureScreenshot", clip=clip, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(data["data"]))

    def print(self, path: Path) -> None:
        """The page as a printed PDF."""
        data = self.call("Page.printToPDF", printBackground=False)
        path.write_bytes(base64.b64decode(data["data"]))

    def close(self) -> None:
        """End the browser that this object started."""
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)
