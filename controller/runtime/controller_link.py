"""A process's link to the controller: the process says Hello once a second, before and after its
Welcome.

Llumlets and frontends share this module. A restarted controller rebuilds its roster from the
repeated Hellos. They also show that a process is alive while its engine still loads.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future

from controller.core.fleet.cluster_spec import EngineChange
from controller.core.fleet.incarnations import has_to_drop
from controller.core.record.event_log import LoggedEvent
from controller.core.record.windows import ServedLately
from controller.ports.processes import Mailbox
from controller.runtime.messages.codec import encode, wire_version
from controller.runtime.messages.members import (
    EngineInfo,
    EventsReported,
    Hello,
    MemberKind,
    Phase,
    Welcome,
)
from controller.runtime.repeating import repeat

HELLO_INTERVAL_S = 1.0


class ControllerLink:
    def __init__(
        self,
        kind: MemberKind,
        member_id: str,
        mailbox: Mailbox,
        controller_address: str,
        node: str,
        num_live_reqs: Callable[[], int],
        served_lately: Callable[[], ServedLately] = ServedLately,
        on_active: Callable[[], None] = lambda: None,
        python: str = "",
        machine: str = "",
    ) -> None:
        self.kind = kind
        self.member_id = member_id
        self.controller_address = controller_address
        self.incarnation = 0
        self.engine_change: Future[EngineChange] = Future()
        """The engine arguments that the controller named first; any thread may wait for them."""
        self.fingerprint = ""
        """The engine's fingerprint, once the engine is built."""
        self._mailbox = mailbox
        self._node = node
        self._num_live_reqs = num_live_reqs
        self._served_lately = served_lately
        self._on_active = on_active
        self._python = python
        self._machine = machine
        self._began_s = time.monotonic()
        self._nonce = secrets.token_hex(8)
        self._phase: Phase = "starting"
        self._detail = ""
        self._info: EngineInfo | None = None
        self._leaves_at_s: float | None = None
        self._machine_leaves: tuple[float, str] | None = None
        """When the machine is taken away, and why."""
        self._untold: list[LoggedEvent] = []
        self._num_told = 0

    def tell(self, event: LoggedEvent) -> None:
        """Reports an event for the controller's log. All events of one turn of the event loop go in
        one message."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_controller)
        self._untold.append(event)

    def _tell_controller(self) -> None:
        events, self._untold = tuple(self._untold), []
        told = EventsReported(self.member_id, self.incarnation, self._num_told, events)
        self._num_told += len(events)
        self._mailbox.send(self.controller_address, encode(told), droppable=True)

    def report(self, phase: Phase, detail: str = "", info: EngineInfo | None = None) -> None:
        """Tells the controller at once how far this process has come."""
        self._phase, self._detail = phase, detail
        self._info = info or self._info
        self.say_hello()
        if phase == "active":
            self._on_active()

    def must_go(self, within_s: float) -> None:
        """Tells the controller, now and with each Hello from now on, that this process will be
        ended."""
        self._leaves_at_s = time.monotonic() + within_s
        self.say_hello()

    def machine_leaves(self, within_s: float | None, why: str) -> None:
        """Tells the controller, now and with each Hello from now on, that the machine will be taken
        away; None: that no notice says so, or not any more."""
        told = None if within_s is None else (time.monotonic() + within_s, why)
        is_news = (told is None) != (self._machine_leaves is None)
        self._machine_leaves = told
        if is_news:
            self.say_hello()

    def say_hello(self, *, asks: bool = False) -> None:
        """Says Hello. `asks`: the Hello asks for a Welcome even if nothing has changed."""
        served, now_s = self._served_lately(), time.monotonic()
        leaves_at_s, machine = self._leaves_at_s, self._machine_leaves
        hello = Hello(
            wire=wire_version(),
            kind=self.kind,
            member_id=self.member_id,
            nonce=self._nonce,
            incarnation=self.incarnation,
            address=self._mailbox.address,
            node=self._node,
            pid=os.getpid(),
            phase=self._phase,
            detail=self._detail,
            info=self._info,
            num_live_reqs=self._num_live_reqs(),
            up_s=time.monotonic() - self._began_s,
            ttft_p99_s=served.ttft_p99.all_s,
            ttft_p99_by_level_s=served.ttft_p99.by_kind_s,
            tpot_p99_s=served.tpot_p99_s,
            num_first_tokens=served.num_first_tokens,
            kept_targets=served.kept_targets,
            served=served.in_all,
            traffic=served.traffic,
            asks=asks,
            leaves_in_s=None if leaves_at_s is None else leaves_at_s - now_s,
            machine=self._machine,
            machine_leaves_in_s=None if machine is None else machine[0] - now_s,
            machine_leaves_why="" if machine is None else machine[1],
            generation=self._generation(),
            fingerprint=self.fingerprint,
            python=self._python,
        )
        self._mailbox.send(self.controller_address, encode(hello), droppable=True)

    def welcomed(self, welcome: Welcome) -> bool:
        """Takes a Welcome. Returns True if the process must drop what it ran as an earlier
        incarnation."""
        if welcome.nonce != self._nonce:
            return False
        known, self.incarnation = self.incarnation, welcome.incarnation
        if not self.engine_change.done():
            self.engine_change.set_result(welcome.engine)
        return has_to_drop(known, welcome.incarnation, drops=welcome.fenced)

    def _generation(self) -> int | None:
        return self.engine_change.result().generation if self.engine_change.done() else None

    async def stay_failed(self, why: str) -> None:
        """Reports, until the process is ended, that it will not serve."""
        self._mailbox.start(lambda _head, _payload: None, lambda _address: None)
        self.report("failed", why)
        await self.keep_saying_hello()

    async def keep_saying_hello(self) -> None:
        self.say_hello()
        await repeat(HELLO_INTERVAL_S, "the Hello to the controller", self.say_hello)
