"""A headless Chromium, driven over chromedriver's HTTP (the W3C WebDriver protocol) with nothing in between."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from server_process import free_port

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--window-size=1100,900",
)
START_SECONDS = 60.0
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which WebDriver hands out elements


def find_browser() -> tuple[str, str] | None:
    """The paths of a browser and of its driver; None where they are not both installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window."""

    def __init__(self, http: httpx.Client, session: str) -> None:
        self._http = http
        self._session = session

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, f"/session/{self._session}{path}", json=body)
        value = answer.json()["value"]
        if answer.status_code != 200:
            raise AssertionError(f"{method} {path}: {value['error']}: {value['message']}")
        return value

    def go(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a function body in the page; a promise is waited for."""
        wrapped = f"return (async (...arguments) => {{ {script} }})(...arguments)"
        return self._call("POST", "/execute/sync", {"script": wrapped, "args": list(arguments)})

    def _find(self, css: str) -> str:
        element: str = self._call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]
        return element

    def click(self, css: str) -> None:
        self._call("POST", f"/element/{self._find(css)}/click", {})

    def type(self, css: str, text: str) -> None:
        """In place of what is there."""
        element = self._find(css)
        self._call("POST", f"/element/{element}/clear", {})
        self._call("POST", f"/element/{element}/value", {"text": text})

    def text(self, css: str) -> str:
        told: str = self._call("GET", f"/element/{self._find(css)}/text")
        return told

    def texts(self, css: str) -> list[str]:
        told: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.innerText)", css
        )
        return told

    def until(self, what: str, script: str, *arguments: Any, seconds: float = 60.0) -> Any:
        """The first result that is true of a function body in the page. Raises AssertionError with the page's log."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            result = self.run(script, *arguments)
            if result:
                return result
            time.sleep(0.03)
        raise AssertionError(f"it took too long: {what}\n{self.text('body')}\n{self.console()}")

    def console(self) -> list[str]:
        """What the page has written to its console, errors included, since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))


@contextmanager
def browsing(directory: Path) -> Iterator[Browser]:
    """A browser with an empty profile in the directory."""
    found = find_browser()
    assert found is not None, "no browser is installed"
    binary, driver = found
    port = free_port()
    environ = {**os.environ, "HOME": str(directory), "TMPDIR": str(directory)}
    with (directory / "chromedriver.log").open("wb") as log:
        process = subprocess.Popen(
            [driver, f"--port={port}"], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=START_SECONDS, trust_env=False) as http:
            _wait_until_ready(http)
            options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={directory / 'profile'}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert answer.status_code == 200, answer.text
            session = answer.json()["value"]["sessionId"]
            try:
                yield Browser(http, session)
            finally:
                http.delete(f"/session/{session}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(http: httpx.Client) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if http.get("/status").json()["value"]["ready"]:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError("chromedriver did not start")
