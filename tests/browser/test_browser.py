"""The example page and its module, in a real browser, against the real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from server_process import ServerProcess
from webdriver import Browser

README = Path(__file__).parents[2] / "README.md"
OPEN = "return document.getElementById('state').dataset.state === 'open'"
SHOWN = "return document.querySelector(arguments[0]).innerText.includes(arguments[1])"
ORDERS = "return document.querySelectorAll('#orders li').length === arguments[0]"
SHIPPED = "return document.querySelectorAll('#orders .done').length === arguments[0]"


class Outside:
    """Somebody else, over HTTP."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def order(self, what: str, partition: str = "customer-9") -> None:
        self.post("push", items=[{"queue": "orders", "partition": partition, "payload": {"what": what}}])

    def kv(self, **op: Any) -> Any:
        return self.post("kv", operations=[op])["results"][0]

    def lock(self, **op: Any) -> Any:
        return self.post("locks", operations=[{"name": "example-desk", **op}])["results"][0]


@pytest.fixture
def outside(server: ServerProcess) -> Iterator[Outside]:
    transport = httpx.HTTPTransport(retries=3)
    with httpx.Client(base_url=server.url, transport=transport, timeout=60) as http:
        yield Outside(http)


@pytest.fixture
def page(browser: Browser, server: ServerProcess) -> Browser:
    """The example page, connected."""
    browser.go(f"{server.url}/static/example.html")
    browser.console()
    browser.until("the page is connected", OPEN)
    browser.until("its streams are there", "return /[0-9]/.test(document.querySelector('#counter').innerText)")
    browser.run("window.loadedOnce = true")
    return browser


def not_reloaded(page: Browser) -> bool:
    return page.run("return window.loadedOnce === true") is True


def test_orders_of_the_page_and_of_others_appear_and_are_acknowledged(page: Browser, outside: Outside) -> None:
    """A push from the page and one from elsewhere are shown, and shipped: nothing is left to consume."""
    page.click("#order")
    page.until("the page's own order", ORDERS, 1)
    outside.order("A samovar")
    page.until("the other order", SHOWN, "#orders", "A samovar")
    page.until("both are shipped", SHIPPED, 2)
    popped = outside.http.get("/api/v1/pop/queue/orders", params={"consumerGroup": "example-shipping"})
    assert popped.status_code == 204
    assert page.console() == []


def test_what_a_stranger_calls_an_order_is_text(page: Browser, outside: Outside) -> None:
    """Nothing of a message is taken for HTML."""
    outside.order("<img src=x onerror=alert(1)>")
    page.until("the order", SHOWN, "#orders", "<img src=x")
    assert page.run("return document.querySelector('#orders img') === null")


def test_a_reminder_fires_while_one_looks(page: Browser) -> None:
    """The timer's message is pushed to the page."""
    page.type("#what", "Water the plants")
    page.type("#delay", "0.3")
    page.click("#remind button")
    page.until("the reminder", SHOWN, "#reminders", "Water the plants")
    page.until("it fires", SHOWN, "#reminders", "fired at")
    assert page.texts("#reminders li span") == ["Water the plants"]


def test_the_counter(page: Browser, outside: Outside) -> None:
    """Each click adds one, durably; a reset is the end of the key; what others write appears."""
    page.click("#reset")
    page.until("none", SHOWN, "#counter", "0")
    assert not outside.kv(op="get", ns="example", key="counter")["found"]
    for _ in range(3):
        page.click("#up")
    page.until("three", SHOWN, "#counter", "3")
    assert outside.kv(op="get", ns="example", key="counter")["value"] == 3
    outside.kv(op="put", ns="example", key="counter", value=41, forever=True)
    page.until("somebody else's value", SHOWN, "#counter", "41")
    outside.kv(op="put", ns="example", key="counter", value=42, ttlSeconds=3)
    page.until("its value", SHOWN, "#counter", "42")
    page.until("its end", SHOWN, "#counter", "0")


def test_the_lock_is_taken_and_given_back(page: Browser, outside: Outside) -> None:
    """Others see who holds it, and that nobody does; the page sees others."""
    page.until("nobody has it", SHOWN, "#holder", "nobody")
    page.click("#take")
    page.until("the page has it", SHOWN, "#holder", "(this page)")
    assert outside.lock(op="get")["holders"][0]["owner"] in page.text("#state")
    page.click("#release")
    page.until("nobody has it", SHOWN, "#holder", "nobody")
    assert not outside.lock(op="get")["held"]
    permit = outside.lock(op="acquire", ttlSeconds=30, owner="somebody")
    page.until("the other has it", SHOWN, "#holder", "somebody")
    page.click("#take")
    page.until("the page waits", SHOWN, "#take", "Waiting in line")
    outside.lock(op="release", token=permit["token"])
    page.until("its turn", SHOWN, "#holder", "(this page)")
    page.click("#release")
    page.until("nobody has it", SHOWN, "#holder", "nobody")


def test_a_lost_lock_is_told(page: Browser, outside: Outside) -> None:
    """An operator takes it away: the page says so."""
    page.click("#take")
    page.until("the page has it", SHOWN, "#holder", "(this page)")
    released = False
    while not released:  # the page may renew it in between: then its token is another one
        (holder,) = outside.lock(op="get")["holders"]
        released = outside.lock(op="release", token=holder["token"])["released"]
    page.until("the page is told", SHOWN, "#log", "the lock was lost: ")
    page.until("nobody has it", SHOWN, "#holder", "nobody")


def test_a_restart_under_the_page(page: Browser, server: ServerProcess, outside: Outside) -> None:
    """The server is killed and started again: the page connects by itself, its tail has every order once, also those
    that were pushed while it was away, its worker ships them, and its watches know what changed."""
    outside.order("Before")
    page.until("the order before", SHIPPED, 1)
    page.click("#take")
    page.until("the page has the lock", SHOWN, "#holder", "(this page)")
    server.kill()
    page.until("the page notices", SHOWN, "#state", "away")
    server.start()
    for number in range(5):
        outside.order(f"Meanwhile {number}", partition=f"customer-{number % 2}")
    outside.kv(op="put", ns="example", key="counter", value=77, forever=True)
    page.until("it is connected again", OPEN)
    page.until("all orders are there", ORDERS, 6)
    page.until("all are shipped", SHIPPED, 6)
    page.click("#order")
    page.until("a new one", SHIPPED, 7)
    shown = [what for what in page.texts("#orders li span") if what.startswith("Meanwhile")]
    assert sorted(shown) == [f"Meanwhile {number}" for number in range(5)]
    page.until("the counter of meanwhile", SHOWN, "#counter", "77")
    page.until("the lock is known to be lost", SHOWN, "#log", "the lock was lost: disconnected")
    page.until("and free again", SHOWN, "#holder", "nobody")
    assert page.text("#orders-count") == "7 since you came"
    assert not_reloaded(page)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """The address of an empty page on another origin."""
    handler = partial(Silent, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()
        thread.join()


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Not into the tests' output."""


def test_the_readmes_program(browser: Browser, server: ServerProcess, outside: Outside, elsewhere: str) -> None:
    """It runs as it stands there, and tells what it is to tell."""
    (program,) = re.findall(r"^```js\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    program = program.replace("http://localhost:6632", server.url)
    browser.go(elsewhere)
    browser.console()
    browser.run(
        """
        window.told = [];
        console.log = (...words) => window.told.push(words);
        const module = Object.assign(document.createElement("script"), { type: "module", textContent: arguments[0] });
        document.head.append(module);
        """,
        program,
    )
    heard = "return window.told.some((words) => JSON.stringify(words) === arguments[0])"
    browser.until("the order", heard, '["customer-42",{"amount":120}]')
    outside.kv(op="put", ns="orders", key="order-1", value="billed", forever=True)
    browser.until("the key", heard, '["put","order-1","billed"]')
    assert [line for line in browser.console() if "favicon" not in line] == []


def test_the_module_runs_in_a_page_of_another_origin(browser: Browser, server: ServerProcess, elsewhere: str) -> None:
    """Imported by its address, it connects to where it came from; requests, verdicts and errors come back."""
    browser.go(elsewhere)
    told = browser.run(
        """
        const { connect } = await import(arguments[0]);
        const queen = connect();
        const pushed = await queen.push("other", [{ data: 1, transactionId: "a" }, "two", { three: 3 }]);
        const again = await queen.push("other", { data: 1, transactionId: "a" });
        const popped = await queen.pop({ queue: "other", batch: 10 });
        const verdict = await popped[2].ack();
        const stale = await queen.kv.put("n", "k", { ä: [1] }, { forever: true, expect: 7 });
        const got = await queen.kv.get("n", "k");
        const error = await queen.kv.get("Not a namespace", "k").catch((error) => error);
        const permit = await queen.locks.acquire("l", { ttlSeconds: 5, owner: "me" });
        const guarded = await queen.transaction({
          operations: [{ type: "push", items: [{ queue: "done", payload: "guarded" }] }],
          kv: [permit.guard],
        });
        await queen.locks.release("l", permit);
        queen.close();
        const late = await queen.push("other", 1).catch((error) => error.code);
        return {
          statuses: [...pushed, ...again].map((one) => one.status), data: popped.map((one) => one.data),
          verdict: verdict.success, stale: [stale.applied, stale.reason], found: got.found, guarded: guarded.success,
          error: [error.code, error.reason, error.status], late, state: queen.state,
        };
        """,
        f"{server.url}/static/queen.js",
    )
    assert told == {
        "statuses": ["queued", "queued", "queued", "duplicate"],
        "data": [1, "two", {"three": 3}],
        "verdict": True,
        "stale": [False, "absent"],
        "found": False,
        "guarded": True,
        "error": ["kv_bad_request", "kv_bad_namespace", 400],
        "late": "closed",
        "state": "closed",
    }
