"""`llumctl top --web` as a process of its own, on a terminal, and a client that is no browser."""

import http.client
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.unit.fake_controller import until
from tools.pty_process import Terminal, terminal

_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?code=(\S+)")


@dataclass
class Served:
    """`screen`: the terminal of the server."""

    screen: Terminal
    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def code(self) -> str:
        """The newest one that was shown."""
        return _ADDRESS.findall(self.screen.text)[-1][1]  # type: ignore[no-any-return]

    def another_code(self) -> str:
        before = self.screen.text.count("?code=")
        self.screen.press("\r")
        until(lambda: self.screen.text.count("?code=") > before and self._is_whole())
        return self.code()

    def _is_whole(self) -> bool:
        return "Ctrl-C: end" in self.screen.text.rpartition("?code=")[2]

    def get(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and body; the Host is right unless it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"Host": self.host, **headers}.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            body = answer.read().decode("utf-8", "replace")
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body
        finally:
            connection.close()

    def enter(self) -> tuple[str, str]:
        """The path of the page, and the cookie for it, by a code of its own."""
        status, headers, _ = self.get(f"/?code={self.another_code()}")
        assert status == 303
        return headers["location"], headers["set-cookie"].partition(";")[0]

    @property
    def children(self) -> list[psutil.Process]:
        """The dashboards that run for sessions."""
        found = psutil.Process(self.screen.process.pid).children(recursive=True)
        return [each for each in found if _runs(each)]

    def until_children(self, number: int) -> None:
        until(lambda: len(self.children) == number)


def _runs(process: psutil.Process) -> bool:
    """Not if it ended since it was listed."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    with terminal("top", "--web", *arguments) as screen:
        screen.until("?code=", "Ctrl-C: end")
        found = _ADDRESS.search(screen.text)
        assert found is not None
        yield Served(screen, int(found[1]))


def secrets_of(process: psutil.Process) -> str:
    """What others could read of a process: its arguments and its environment."""
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    return " ".join(process.cmdline()) + os.fsdecode(environment)
