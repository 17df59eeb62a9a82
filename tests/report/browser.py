"""A headless Chromium, where there is one: what a page shows, complains about and asks the network for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)

# The protocol is spoken on descriptors 3 and 4.
_LAUNCH = """
import os, sys
ends = [os.dup(os.dup(int(number))) for number in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def found() -> str | None:
    """Where Chromium is."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


@dataclass
class Browser:
    """One page, driven over the DevTools protocol: objects ended by a zero byte, through two pipes.

    Attributes:
        complaints: Console errors, exceptions, and what the page was not allowed to do.
        requests: Addresses that it asked for.
    """

    into: int
    out: int
    session: str = ""
    number: int = 0
    pending: bytes = b""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method and wait for its result; events meanwhile are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._event(answer)

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Show a file in a window of this width."""
        if not self.session:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url=page.resolve().as_uri())
        while self.value("document.readyState") != "complete":
            pass

    def value(self, expression: str) -> Any:
        """What an expression comes to in the page."""
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, target: Path) -> None:
        """The whole page as PNG."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        target.write_bytes(base64.b64decode(data))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.pending:
            read = os.read(self.out, 2**16)
            assert read, "the browser has gone"
            self.pending += read
        raw, _, self.pending = self.pending.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _event(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"].get("text")))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(params["args"]))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile; it ends with the block."""
    program = found()
    assert program is not None
    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), program, *_FLAGS]
    command.append(f"--user-data-dir={profile}")
    process = subprocess.Popen(
        command, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        process.terminate()
        process.wait(timeout=20)
        os.close(ours_in)
        os.close(ours_out)
