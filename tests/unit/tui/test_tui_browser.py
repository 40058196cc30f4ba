"""`llumctl top --web` in a real browser: what only a browser can show. Attacks on its server are in
`tests/unit/test_web_attacks.py`, without a browser."""

import io
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.unit import fake_controller
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController
from tests.unit.tui import chromium
from tests.unit.web_server import served
from tools import synthetic_cluster as synthetic

pytestmark = [
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.skipif(
        chromium.binary() is None,
        reason=f"no Chromium here, by none of the names {', '.join(chromium.NAMES)}",
    ),
]

TOKEN = "control-token-5b1f0c"

LEFT_OVER = """(() => {
  const screen = document.querySelector(".xterm-screen").getBoundingClientRect();
  const helper = document.querySelector(".xterm-viewport");
  return {
    right: innerWidth - screen.right,
    column: 10,
    scrolls: helper.offsetWidth !== helper.clientWidth,
  };
})()"""
"""How much of the window is left at the right of the terminal, in pixels; and a column's width."""
TRY_SOCKET = """new Promise(done => {
  const socket = new WebSocket("%s");
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""
TRY_FETCH = """fetch("%s", {credentials: "include"}).then(a => a.text(), () => "refused")"""
TRY_FRAME = """new Promise(done => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { done(frame.contentDocument ? "empty" : "refused"); } catch { done("refused"); }
  };
  frame.src = "%s";
  document.body.append(frame);
})"""


@contextmanager
def foreign_page() -> Iterator[tuple[int, list[str]]]:
    """Another program's server on this machine: its port, and the cookies that were sent to it."""
    cookies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("Cookie", ""))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!DOCTYPE html><title>elsewhere</title><body>hello</body>")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1], cookies
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def opened(page: chromium.Page, url: str, text: str) -> None:
    page.open(url)
    page.until(
        lambda: text in str(page.evaluate("document.body ? document.body.innerText : ''")),
        f"{text!r} on {url}",
    )


def test_a_browser_watches_and_pages_of_others_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_controller, "TOKEN", TOKEN)
    status = synthetic.cluster((synthetic.instance("i-0"), synthetic.instance("i-1")))
    with (
        FakeController(status=status) as fake,
        foreign_page() as (port, cookies),
        closing(chromium.Browser(tmp_path / "profile")) as browser,
    ):
        remember(fake.url, token=TOKEN)
        with served() as server:
            address = f"http://{server.host}/?code={server.code()}"
            page = browser.page()
            page.open(address)
            page.until_drawn("i-0", "[READ]", "● live")
            page.press("?")
            page.until_drawn("Help on the main screen", "(Esc closes)")
            page.until(lambda: _num_colours(page.picture()) > 8, "the terminal is drawn")

            left_over = page.evaluate(LEFT_OVER)
            assert 0 <= left_over["right"] < left_over["column"], "the whole width is used"
            assert not left_over["scrolls"]

            room = str(page.evaluate("location.href"))
            asked = [each["request"]["url"] for each in page.told("Network.requestWillBeSent")]
            asked += [each["url"] for each in page.told("Network.webSocketCreated")]
            assert room + "textual.js" in asked
            assert room.replace("http", "ws", 1) + "socket?" in " ".join(asked)
            assert {url.split("/")[2] for url in asked} == {server.host}
            assert page.told("Runtime.exceptionThrown") == []
            assert page.told("Log.entryAdded") == []  # the policy forbids nothing needed
            (cookie,) = page.call("Network.getCookies")["cookies"]
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert page.evaluate("document.cookie") == ""
            seen = str(page.evaluate("document.documentElement.outerHTML")) + page.drawn
            assert TOKEN not in seen + " ".join(asked)
            assert cookie["value"] not in seen + " ".join(asked)

            again = browser.page()
            opened(again, address, "This address was used already")

            server.until_children(1)
            for host in ("127.0.0.1", "localhost"):  # of the same site, and of another one
                foreign = browser.page()
                opened(foreign, f"http://{host}:{port}/", "hello")
                socket = room.replace("http", "ws", 1) + "socket"
                assert foreign.evaluate(TRY_SOCKET % socket) == "refused"
                assert foreign.evaluate(TRY_FETCH % room) == "refused"
                assert foreign.evaluate(TRY_FRAME % room) == "refused"
            assert cookies
            assert not any(cookies)
            assert len(server.children) == 1

            page.press("q")  # closes the help's screen or the dashboard, by the keys' own rules
            page.until(
                lambda: page.evaluate("document.body.classList.contains('-closed')"),
                "the end of the session is shown",
            )
            server.until_children(0)
            page.evaluate("document.querySelector('#again').click()")
            server.until_children(1)
            browser.kill()
            server.until_children(0)


def _num_colours(png: bytes) -> int:
    from matplotlib import image  # takes 0.2 s, which each worker of the tests would pay

    pixels = image.imread(io.BytesIO(png))
    return len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0))
