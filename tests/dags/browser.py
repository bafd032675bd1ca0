"""Debian's chromium, headless, driven by its DevTools protocol: open, wait for text, click, look."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_PATIENCE_SECONDS = 400.0


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._last = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call the protocol; events in between are passed over."""
        self._last += 1
        self._connection.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while True:
            answer = json.loads(self._connection.recv(timeout=_PATIENCE_SECONDS))
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Evaluate JavaScript; gives its value."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def wait_for(self, *texts: str) -> str:
        """Wait until the page shows all of these; gives all that it shows."""
        self.until(lambda: all(t in self.text() for t in texts), f"{texts} on the page")
        return self.text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"no {what} after {_PATIENCE_SECONDS} s; it shows: {self.text()[:2000]}"
            time.sleep(0.25)

    def click(self, text: str) -> None:
        """Click the last visible button, link or tab with exactly this text or label."""
        script = f"""(() => {{
            const all = [...document.querySelectorAll('button, a, [role=tab], [role=button]')];
            const hit = all.filter(e => e.offsetParent !== null && !e.disabled &&
                (e.innerText.trim() === {json.dumps(text)} || e.getAttribute('aria-label') === {json.dumps(text)}));
            if (hit.length) hit[hit.length - 1].click();
            return hit.length;
        }})()"""
        self.until(lambda: self.run(script), f"button {text!r}")

    def fill(self, name: str, text: str) -> None:
        """Type into the field of this name."""
        script = f"""(() => {{
            const field = document.querySelector('[name="{name}"]');
            if (!field) return false;
            const set = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set;
            set.call(field, {json.dumps(text)});
            field.dispatchEvent(new Event('input', {{bubbles: true}}));
            return true;
        }})()"""
        self.until(lambda: self.run(script), f"field {name!r}")

    def choose(self, text: str) -> None:
        """Choose from the last drop-down list with a search field, by keyboard as people do."""
        script = """(() => {
            const field = [...document.querySelectorAll('input[role=combobox]')].pop();
            if (field) field.focus();
            return field ? field.value : null;
        })()"""

        def only_option() -> bool:
            # The field is made anew when its options have arrived, and has lost the text then.
            if self.run(script) == "":
                self.call("Input.insertText", text=text)
            return bool(self.run("[...document.querySelectorAll('[role=option]')].length === 1"))

        self.until(only_option, f"option {text!r}")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)

    def settled(self) -> str:
        """Wait until the page looks the same twice, a quarter of a second apart; gives that PNG as base64."""
        seen: list[str] = []

        def still() -> bool:
            seen.append(self.call("Page.captureScreenshot", format="png")["data"])
            return len(seen) > 1 and seen[-1] == seen[-2]

        self.until(still, "picture that stays")
        return seen[-1]

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(chromium: str, profile: Path) -> Iterator[Page]:
    """Run a browser with a new profile; it is gone at the end of the block."""
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--window-size=1500,1400",
               f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_page_address(process, profile), max_size=None, open_timeout=30, ping_interval=None) as connection:
            page = Page(connection)
            page.call("Page.enable")
            yield page
            page.call("Browser.close")
    finally:
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def _page_address(process: subprocess.Popen[bytes], profile: Path) -> str:
    import urllib.request

    deadline = time.monotonic() + _PATIENCE_SECONDS
    port = profile / "DevToolsActivePort"
    while not port.exists() or not port.read_text().strip():
        assert process.poll() is None, "the browser ended at once"
        assert time.monotonic() < deadline, "the browser did not start"
        time.sleep(0.1)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list", timeout=30) as answer:
        pages = [target for target in json.load(answer) if target["type"] == "page"]
    return str(pages[0]["webSocketDebuggerUrl"])
