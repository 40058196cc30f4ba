"""Child processes of the test: what they said, and signals to them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.environment import AT_START

T = TypeVar("T")

PATIENCE_S = 60.0
"""For a single event. These processes step back behind other tests (Makefile): with 20 s, on two
cores, a request alone on an engine was once still at work."""

news = threading.Condition()
"""Some child said something."""


def wait_for(
    condition: Callable[[], T],
    what: str,
    timeout_s: float = PATIENCE_S,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """The first truthy value of `condition`. Fails by name when `progress` has not changed for
    `timeout_s`: how long a whole answer takes is a matter of who else uses the machine."""
    last, deadline_s = progress(), time.monotonic() + timeout_s
    with news:
        while not (value := condition()):
            if (now := progress()) != last:
                last, deadline_s = now, time.monotonic() + timeout_s
            if time.monotonic() >= deadline_s:
                raise AssertionError(f"waited {timeout_s:.0f} s for: {what} (progress {last})")
            news.wait(0.05)  # the state of a process is no news of anybody's
        return value


class Child:
    """Its standard error goes to `log`, appended."""

    def __init__(self, role: str, member_id: str, log: Path, **options: Any) -> None:
        self.member_id = member_id
        self.log = log
        self.num_said = 0
        self._said: dict[tuple[str, str | None], list[tuple[int, dict[str, Any]]]] = {}
        """By kind and request, and by kind alone; each with its position among all."""
        with log.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                bufsize=0,
                env=AT_START | {"OMP_NUM_THREADS": "1"},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._write({"role": role, "member_id": member_id, **options})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    @property
    def stopped(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def tell(self, do: str, **arguments: Any) -> None:
        self._write({"do": do, **arguments})

    def heard(self, what: str, since: int = 0, **fields: Any) -> list[dict[str, Any]]:
        """All that it said of this kind, with these fields, after it had said so much."""
        return [
            said
            for position, said in self._said.get((what, fields.get("request_id")), ())
            if position >= since and all(said[name] == value for name, value in fields.items())
        ]

    def wait_heard(
        self, what: str, since: int = 0, timeout_s: float = PATIENCE_S, **fields: Any
    ) -> dict[str, Any]:
        def last() -> dict[str, Any] | None:
            found = self.heard(what, since, **fields)
            if not found and self.dead and not self._reader.is_alive():
                raise AssertionError(f"{self.member_id} died: {self.log.read_text()[-2000:]}")
            return found[-1] if found else None

        found = wait_for(last, f"{self.member_id} to say {what} {fields}", timeout_s)
        assert found is not None
        return found

    def signal(self, name: str) -> None:
        """Returns when it has come to pass."""
        os.kill(self.pid, signal.Signals[name])
        self.wait_signalled(name)

    def wait_signalled(self, name: str) -> None:
        if name == "SIGKILL":
            wait_for(lambda: self.dead, f"{self.member_id} to die")
        elif name == "SIGSTOP":
            wait_for(lambda: self.stopped, f"{self.member_id} to stop")

    def end(self) -> None:
        """Whatever it does."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _write(self, message: dict[str, Any]) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            """It is dead; who waits for its answer will hear."""

    def _keep(self, said: dict[str, Any]) -> None:
        position, self.num_said = self.num_said, self.num_said + 1
        for request_id in {None, said.get("request_id")}:
            self._said.setdefault((said["said"], request_id), []).append((position, said))

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        for line in pipe:
            with news:
                self._keep(json.loads(line))
                news.notify_all()
