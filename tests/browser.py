"""A headless Chromium for tests, over the DevTools protocol on a pair of pipes: real input events, and nothing to install."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The browser reads from descriptor 3 and writes to 4.
_START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
_KEYS = {"ArrowUp": 38, "ArrowDown": 40, "Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "End": 35, "Backspace": 8}
_MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


def found() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


needed = pytest.mark.skipif(found() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")


class Browser:
    """One page of a browser; ``close`` ends it.

    Args:
        folder: where it keeps its profile.
        size: of the window, in pixels.
        mobile: as a phone, with touch.
    """

    def __init__(self, folder: Path, size: tuple[int, int] = (1280, 1000), *, mobile: bool = False) -> None:
        path = found()
        assert path is not None
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs_in, theirs_out)]
        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}",
        )  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, passed), path, *options, "about:blank"],
            pass_fds=passed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (theirs_in, theirs_out, *passed):
            os.close(fd)
        self._in, self._out = ours_in, ours_out
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=mobile)
        if mobile:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True)

    def close(self) -> None:
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._session = None
            self.call("Browser.close")
        for fd in (self._in, self._out):
            os.close(fd)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError("The browser does not answer.")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("The browser has ended.")
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Show a file, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for(f"location.href === {path.resolve().as_uri()!r} && document.readyState === 'complete'")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + 30
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression, as JSON."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def errors(self) -> list[str]:
        """What went wrong in scripts of the page."""
        self.value("1")
        return [str(event["params"]) for event in self.events if event.get("method") == "Runtime.exceptionThrown"]

    # Input ------------------------------------------------------------------------------------------------------------

    def key(self, name: str, *modifiers: str) -> None:
        """Press a key, and let it go."""
        what = {"key": name, "code": name, "windowsVirtualKeyCode": _KEYS.get(name, 0)}
        what["modifiers"] = sum(_MODIFIERS[one] for one in modifiers)
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **what, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def type(self, text: str) -> None:
        """Replace what is in the field that has the focus, and leave it as Enter does."""
        self.value("document.activeElement.select?.()")
        self.key("Backspace")
        for character in text:
            self.call("Input.dispatchKeyEvent", type="keyDown", text=character, key=character)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=character)
        self.key("Enter")

    def box(self, selector: str, *, scroll: bool = False) -> tuple[float, float, float, float]:
        """x, y, width and height of an element; brought into view first where ``scroll`` is set."""
        view = "e.scrollIntoView({block: 'center'});" if scroll else ""
        found = f"const e = document.querySelector({json.dumps(selector)}); {view} const b = e.getBoundingClientRect();"
        return tuple(self.value(f"(() => {{ {found} return [b.x, b.y, b.width, b.height]; }})()"))

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, after it was brought into view."""
        x, y, width, height = self.box(selector, scroll=True)
        return x + width / 2, y + height / 2

    def mouse(self, kind: str, x: float, y: float, *, down: bool = True) -> None:
        held = {"button": "left", "buttons": 1 if down else 0, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **held)

    def click(self, selector: str) -> None:
        x, y = self.place(selector)
        self.mouse("Pressed", x, y)
        self.mouse("Released", x, y, down=False)

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        self.call("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=[{"x": x, "y": y} for x, y in points])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        import base64

        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
