"""Finds an instance for each new request: carries out what `core/admission/asking.py` decides."""

import asyncio

from controller.core.admission.asking import (
    Aborted,
    Answered,
    AskController,
    Asked,
    Asking,
    BypassAt,
    BypassDue,
    ControllerHeard,
    Event,
    Instruction,
    OwnRequests,
    RankChanged,
    Refuse,
    Resume,
    Resumed,
    TellKeysAgain,
    TellUnused,
    Unused,
    Use,
    WakeAt,
    Withdraw,
    Woken,
)
from controller.core.scheduler_events import Dispatch, DispatchRequested, Reject, RejectCode
from controller.ports.mailbox import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.frontend.frontend_keys import FrontendKeys
from controller.runtime.frontend.known_instances import KnownInstances
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import Directory, InstanceEntry
from controller.runtime.messages.requests import (
    DispatchAsked,
    DispatchUnused,
    DispatchWithdrawn,
)


class NotDispatchedError(Exception):
    """The cluster does not take this request. `retry_after_s`: when it may be tried again."""

    def __init__(self, code: RejectCode, retry_after_s: int = 1) -> None:
        super().__init__(code)
        self.code, self.retry_after_s = code, retry_after_s


class Dispatcher:
    def __init__(
        self,
        member: ControllerLink,
        mailbox: Mailbox,
        known: KnownInstances,
        own: OwnRequests,
        keys: FrontendKeys,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._known = known
        self._keys = keys
        self.asked = Asking(known, own, keys.refusal_alone)
        """The requests without a decision yet."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """By request id, in `find`."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The last one of each of these requests."""
        self._bypass: asyncio.TimerHandle | None = None

    def close(self) -> None:
        for timer in (*self._timers.values(), self._bypass):
            if timer is not None:
                timer.cancel()

    async def find(self, request: DispatchRequested) -> tuple[Dispatch, InstanceEntry] | None:
        """The decision and its instance; None if the request was aborted meanwhile. Raises
        NotDispatchedError."""
        request_id = request.request_id
        waiting = self._wait(request_id)
        self._take(Asked(request))
        try:
            while await self._is_answered(request_id, waiting):
                for instruction in self.asked.handle(Resumed(request_id), self._now_s()):
                    match instruction:
                        case Use(dispatch):
                            entry = self._known.find(dispatch.instance_id, dispatch.incarnation)
                            assert entry is not None
                            return dispatch, entry
                        case Refuse(code, retry_after_s):
                            raise NotDispatchedError(code, retry_after_s)
                    self._do(instruction)
                waiting = self._wait(request_id)
            return None
        finally:
            if self._waiting.get(request_id) is waiting:
                del self._waiting[request_id]
                if timer := self._timers.pop(request_id, None):
                    timer.cancel()

    def _wait(self, request_id: str) -> "asyncio.Future[None]":
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        return waiting

    async def _is_answered(self, request_id: str, waiting: "asyncio.Future[None]") -> bool:
        """False if the request was aborted meanwhile."""
        try:
            await waiting
        except asyncio.CancelledError:
            if self._is_mine(request_id, waiting):  # the client left, not `abort`
                self._take(Aborted(request_id))
                raise
        return self._is_mine(request_id, waiting)

    def _is_mine(self, request_id: str, waiting: "asyncio.Future[None]") -> bool:
        return request_id in self.asked and self._waiting.get(request_id) is waiting

    # -- events --------------------------------------------------------------------------

    def heard_controller(self, directory: Directory) -> None:
        """Call it once the controller's directory is known."""
        self._take(
            ControllerHeard(
                directory.controller,
                directory.num_frontends,
                directory.room_to_grow_tokens,
                directory.takes_requests,
                directory.hold_timeout_s,
            )
        )

    def why_not_ready(self) -> str:
        return self.asked.why_not_ready(self._now_s())

    def abort(self, request_id: str) -> None:
        """Does nothing for a request that does not wait for a decision."""
        self._take(Aborted(request_id))

    def change_rank(self, request_id: str, rank: int) -> None:
        """Does nothing for a request that does not wait for a decision."""
        self._take(RankChanged(request_id, rank))

    def answered(self, answer: Dispatch | Reject) -> None:
        self._take(Answered(answer))

    def decline(self, dispatch: Dispatch) -> None:
        """Gives a dispatch back that was found, and is not used."""
        self._take(Unused(dispatch))

    def _take(self, event: Event) -> None:
        for instruction in self.asked.handle(event, self._now_s()):
            self._do(instruction)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # -- instructions --------------------------------------------------------------------

    def _do(self, instruction: Instruction) -> None:
        loop = asyncio.get_running_loop()
        match instruction:
            case AskController(request):
                self._send(DispatchAsked(request))
            case WakeAt(request_id, time_s):
                if timer := self._timers.pop(request_id, None):
                    timer.cancel()
                woken = Woken(request_id, time_s)
                self._timers[request_id] = loop.call_at(time_s, self._take, woken)
            case Resume(request_id):
                waiting = self._waiting.get(request_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
            case Withdraw(cancelled):
                self._send(DispatchWithdrawn(cancelled))
            case TellUnused(instance, dispatch):
                unused = DispatchUnused(dispatch.incarnation, dispatch.seq)
                self._mailbox.send(instance.address, encode(unused))
            case TellKeysAgain():
                self._keys.use.tell_all_again()
            case BypassAt(time_s):
                self._bypass = loop.call_at(time_s, self._take, BypassDue())

    def _send(self, message: DispatchAsked | DispatchWithdrawn) -> None:
        self._mailbox.send(self._member.controller_address, encode(message), droppable=True)
