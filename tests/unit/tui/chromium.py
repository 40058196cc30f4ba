"""A headless Chromium, driven by its DevTools protocol over a pair of pipes.

This needs no package and opens no port: messages are JSON, each with a zero byte behind it.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root has none
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--enable-unsafe-swiftshader",  # WebGL without a GPU
    "--window-size=1200,800",
)
Message = dict[str, Any]


def binary() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A tab of the browser."""

    def __init__(self, browser: "Browser", session_id: str) -> None:
        self._browser = browser
        self._session_id = session_id
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Message:
        return self._browser.call(method, self._session_id, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or of the promise that it returns."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Presses the key of a character."""
        self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self) -> bytes:
        """A PNG of the visible part."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def told(self, method: str) -> list[Message]:
        """The parameters of all events of a kind."""
        kind = (self._session_id, method)
        events = self._browser.events
        return [each["params"] for each in events if (each["sessionId"], each["method"]) == kind]

    @property
    def drawn(self) -> str:
        """All bytes that came over web sockets, as text."""
        frames = [each["response"] for each in self.told("Network.webSocketFrameReceived")]
        parts = [base64.b64decode(each["payloadData"]) for each in frames if each["opcode"] == 2]
        return b"".join(parts).decode("utf-8", "replace")

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what}: {self.told('Log.entryAdded')}"
            time.sleep(0.05)

    def until_drawn(self, *texts: str) -> None:
        self.until(lambda: all(text in self.drawn for text in texts), f"{texts} not drawn")


class Browser:
    def __init__(self, profile: Path) -> None:
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        found = binary()
        assert found is not None
        # The browser reads from descriptor 3 and writes to 4; a shell sets them.
        command = f'exec "$0" "$@" 3<&{theirs_read} 4>&{theirs_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, found, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_read, theirs_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._to = os.fdopen(ours_write, "wb", buffering=0)
        self._from = os.fdopen(ours_read, "rb", buffering=0)
        self.events: list[Message] = []
        self._answers: dict[int, Message] = {}
        self._last_id = 0
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def page(self) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, session["sessionId"])

    def call(self, method: str, session_id: str = "", **params: Any) -> Message:
        with self._heard:
            self._last_id += 1
            call_id = self._last_id
        message: Message = {"id": call_id, "method": method, "params": params}
        if session_id:
            message["sessionId"] = session_id
        self._to.write(json.dumps(message).encode() + b"\0")
        with self._heard:
            assert self._heard.wait_for(lambda: call_id in self._answers, LIMIT_S), method
            answer = self._answers.pop(call_id)
        assert "error" not in answer, (method, answer["error"])
        result: Message = answer["result"]
        return result

    def kill(self) -> None:
        """Kills all processes of the browser at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def close(self) -> None:
        self.kill()
        self._reader.join(LIMIT_S)
        self._to.close()
        self._from.close()

    def _read(self) -> None:
        rest = b""
        while data := self._from.read(1 << 16):
            *messages, rest = (rest + data).split(b"\0")
            for text in messages:
                self._take(json.loads(text))

    def _take(self, message: Message) -> None:
        with self._heard:
            if "id" in message:
                self._answers[message["id"]] = message
            elif "sessionId" in message:
                self.events.append(message)
            self._heard.notify_all()
