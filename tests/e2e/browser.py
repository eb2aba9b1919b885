"""Headless Chromium over its debugging pipe: no port, no driver, no library. Only what the page's tests need."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.programs import slack

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
_PATIENCE = 40.0


class Browser:
    """One process. `page` opens tabs; `close` ends it."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program is not None
        commands, self._out = os.pipe()
        self._in, answers = os.pipe()
        # Chromium reads its commands from descriptor 3 and answers on 4.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in (commands, answers)]
        os.close(commands)
        os.close(answers)

        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "-", program, f"--user-data-dir={profile}", *_FLAGS],
            pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TZ": "UTC"},
        )  # fmt: skip
        for fd in high:
            os.close(fd)
        self._number, self._buffer = 0, b""
        self._pages: dict[str, Page] = {}
        self._targets: list[str] = []

    def page(self, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """A new tab of that size."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._targets.append(target)
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come between go to their pages."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + slack(_PATIENCE)  # noqa: TID251 - a real browser runs on the real clock
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = until - time.monotonic()  # noqa: TID251
            ready, _, _ = select.select([self._in], [], [], max(0.0, left))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = dict(json.loads(text))
        page = self._pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.note(message["method"], message["params"])
        return message

    def close_pages(self) -> None:
        """Close every tab: one that nobody looks at would go on asking its daemon."""
        self._pages.clear()
        while self._targets:
            self.call("Target.closeTarget", targetId=self._targets.pop())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(timeout=slack(10))
        for fd in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(fd)


class Page:
    """A tab. `problems` collects whatever its console would show in red; `requests` every address asked for."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.problems: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the DevTools protocol."""
        return self._browser.call(method, self._session, **parameters)

    def note(self, method: str, parameters: dict[str, Any]) -> None:
        """Take in an event."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.problems.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def resize(self, width: int, height: int = 900) -> None:
        """Give the tab another size; narrow ones are phones."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, promises awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, timeout: float = 15.0) -> None:
        """Until the expression is true."""
        until = time.monotonic() + slack(timeout)  # noqa: TID251
        while not self.evaluate(expression):
            assert time.monotonic() < until, f"never: {expression}; {self.problems}"  # noqa: TID251
            select.select([], [], [], 0.05)

    def text(self, selector: str) -> str:
        """What an element says."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))

    def key(self, key: str) -> None:
        """Press a key in the element that has the focus."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at one point, move, let go at another."""
        steps = [("mouseMoved", start), ("mousePressed", start)]
        steps += [("mouseMoved", (start[0] + (end[0] - start[0]) * part / 4, end[1])) for part in range(1, 5)]
        for kind, (x, y) in [*steps, ("mouseReleased", end)]:
            button = "none" if kind == "mouseMoved" and kind == steps[0][0] and (x, y) == start else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A picture of the page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}}
