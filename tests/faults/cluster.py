"""A cluster of real processes without Ray, and requests on it as their clients see them."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controller.adapters.zmq.zmq_mailbox import new_secret_key
from tests.faults import engines
from tests.faults.children import Child, wait_for
from tools.cluster import free_ports

INSTANCES = ("i-0", "i-1")
FRONTENDS = ("f-0", "f-1")
"""The first one's request is moved; the second one's are others, which nothing may touch."""


READY_S = 300.0
"""vLLM's engines take a while to start."""


@dataclass(frozen=True)
class Reading:
    """What a client got of one request."""

    tokens: list[int]
    places: list[str]
    """Who sent each token."""
    num_ends: int
    errors: list[str]
    num_continued: int
    """As the frontend's record has it when the request ends."""

    @property
    def over(self) -> bool:
        return self.num_ends + len(self.errors) > 0


@dataclass(frozen=True)
class Client:
    """One request, sent by the frontend process `frontend`, whichever runs under its name now."""

    frontend: Child
    request_id: str
    num_prompt_tokens: int
    max_tokens: int

    def read(self) -> Reading:
        told = self.frontend.heard("tokens", request_id=self.request_id)
        return Reading(
            [token for each in told for token in each["tokens"]],
            [each["instance_id"] for each in told for _ in each["tokens"]],
            sum(each["finished"] for each in told),
            [each["why"] for each in self.frontend.heard("error", request_id=self.request_id)],
            told[-1]["num_continued"] if told else 0,
        )

    def events(self, kind: str) -> list[str]:
        """Their reasons."""
        told = self.frontend.heard("event", kind=kind, request_id=self.request_id)
        return [each["reason"] for each in told]

    def continued_at(self) -> list[int]:
        """How many tokens the request had, each time that its state was computed again."""
        told = self.frontend.heard("event", kind="admitted", request_id=self.request_id)
        return [
            each["num_tokens"] - self.num_prompt_tokens
            for each in told
            if each["exact"] == "continued"
        ]

    def wait_tokens(self, num: int) -> None:
        wait_for(
            lambda: len(self.read().tokens) >= num or self.read().over,
            f"{num} tokens of {self.request_id}",
            progress=lambda: len(self.read().tokens),
        )

    def wait_over(self) -> Reading:
        wait_for(
            lambda: self.read().over,
            f"an end of {self.request_id}",
            progress=lambda: len(self.read().tokens),
        )
        return self.read()


class FaultCluster:
    """`timing`: of moves. Children that a test leaves dead are started again by `mend`."""

    def __init__(self, folder: Path, engine: str, timing: dict[str, float]) -> None:
        self.engine = engine
        self._folder = folder
        (port,) = free_ports(1)
        self._options: dict[str, Any] = {
            "key": new_secret_key(),
            "port": port,
            "controller_address": f"tcp://127.0.0.1:{port}",
            "num_instances": len(INSTANCES),
            "num_frontends": len(FRONTENDS),
            "engine": engine,
            "model": engines.model_of(engine, folder),
            "timing": timing,
        }
        self._all: list[Child] = []
        self._numbers = itertools.count()
        self._num_read: Counter[Path] = Counter()
        """Bytes of each log."""
        self._began: dict[str, int] = {}
        """How much each child had said when the controller of now was started."""
        self.children: dict[str, Child] = {}

    @property
    def controller(self) -> Child:
        return self.children["controller"]

    def mend(self) -> None:
        """Every process is there and knows of the others."""
        for member_id in ("controller", *FRONTENDS, *INSTANCES):
            known = self.children.get(member_id)
            if known is None or known.dead:
                self.start(member_id)
        for child in self.children.values():
            child.wait_heard("serving", timeout_s=READY_S)
        wanted = {self.children[i].heard("serving")[0]["address"] for i in INSTANCES}
        for frontend_id in FRONTENDS:
            wait_for(
                partial(self._knows, frontend_id, wanted),
                f"{frontend_id} to know all instances",
                READY_S,
            )
        for instance_id in INSTANCES:
            self.wait_report(instance_id, "to have an incarnation", welcome=True)

    def start(self, member_id: str) -> Child:
        """In place of a process that is dead, or was not there."""
        role = {"c": "controller", "f": "frontend", "i": "instance"}[member_id[0]]
        child = Child(role, member_id, self._folder / f"{member_id}.log", **self._options)
        self._all.append(child)
        self.children[member_id] = child
        self._began.pop(member_id, None)
        if member_id == "controller":  # what was heard of the one before is old
            self._began = {i: each.num_said for i, each in self.children.items()}
        return child

    def end(self) -> None:
        for child in self._all:
            with contextlib.suppress(ProcessLookupError):
                child.end()

    def submit(
        self,
        frontend: str,
        request_id: str,
        instance_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        prompt_of: str | None = None,
        and_tokens: Sequence[int] = (),
        fetch: dict[str, Any] | None = None,
    ) -> Client:
        """`prompt_of`: another request that has the same prompt. `and_tokens`: what is added to
        the prompt. `fetch`: the source, num_tokens and limit_s of what is fetched before."""
        child = self.children[frontend]
        child.tell(
            "submit",
            request_id=request_id,
            instance_id=instance_id,
            prompt_of=prompt_of or request_id,
            num_prompt_tokens=num_prompt_tokens,
            and_tokens=and_tokens,
            max_tokens=max_tokens,
            fetch=fetch,
        )
        return Client(child, request_id, num_prompt_tokens + len(and_tokens), max_tokens)

    def move(self, request_id: str, source_id: str, destination_id: str) -> None:
        self.controller.tell(
            "move",
            migration_id=f"m-{next(self._numbers)}",
            request_id=request_id,
            source_id=source_id,
            destination_id=destination_id,
        )

    def report(self, instance_id: str) -> dict[str, Any]:
        """What an instance holds now."""
        child, number = self.children[instance_id], next(self._numbers)
        child.tell("report", number=number)
        return child.wait_heard("report", number=number)

    def wait_report(self, instance_id: str, what: str, **wanted: Any) -> None:
        """Until it reports these figures."""
        found: dict[str, Any] = {}

        def as_wanted() -> bool:
            found.update(self.report(instance_id))
            return all(found[name] == value for name, value in wanted.items())

        try:
            wait_for(as_wanted, f"{instance_id}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from error

    def wait_quiet(self, *instance_ids: str) -> None:
        """Everything is given back, and no move or fetch is remembered."""
        nothing = dict.fromkeys(("running", "queued", "held", "moves", "copies", "remembered"), 0)
        for instance_id in instance_ids:
            total = self.report(instance_id)["total"]
            self.wait_report(instance_id, "to be empty", free=total, requests=[], **nothing)

    def new_errors(self, but_of: str = "") -> str:
        """What the processes, but for one, logged of errors since the last call."""
        found = []
        for log in sorted(self._folder.glob("*.log")):
            with log.open("rb") as file:
                file.seek(self._num_read[log])
                new = file.read().decode(errors="replace")
                self._num_read[log] = file.tell()
            if (" ERROR " in new or "Traceback" in new) and log.stem != but_of:
                found.append(f"{log.name}: {new[-3000:]}")
        return "\n".join(found)

    def _knows(self, frontend_id: str, addresses: set[str]) -> bool:
        assert not (errors := self.new_errors()), errors
        child = self.children[frontend_id]
        told = child.heard("directory", self._began.get(frontend_id, 0))
        return bool(told) and set(told[-1]["addresses"]) == addresses
