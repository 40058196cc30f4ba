"""Where a frontend's new requests go: carries out what `core/admission/asking.py` decides. The
frontend knows the instances (`KnownInstances`) and counts what API keys use (`FrontendKeys`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from controller.core.admission.api_keys import NO_KEYS, KeyUse, OwnLimits, Refusal, refusal
from controller.core.admission.asking import (
    Aborted,
    AskController,
    Asked,
    Asking,
    BypassAt,
    BypassDue,
    ControllerHeard,
    Event,
    Instruction,
    OwnRequests,
    Refuse,
    Resume,
    Resumed,
    TellKeysAgain,
    TellUnused,
    Use,
    WakeAt,
    Withdraw,
    Woken,
)
from controller.core.load.snapshot import InstanceRef, InstanceSnapshot
from controller.core.record.request_record import RequestRecord
from controller.core.scheduler_events import (
    Dispatch,
    DispatchRequested,
    KeysTold,
    RejectCode,
)
from controller.core.settings import KeyLimits
from controller.ports.processes import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import Directory, InstanceEntry
from controller.runtime.messages.requests import DispatchAsked, DispatchUnused, DispatchWithdrawn
from controller.runtime.repeating import repeat


class KnownInstances:
    """The instances of the controller's last directory, without the instances that died since."""

    def __init__(self) -> None:
        self._entries: dict[str, InstanceEntry] = {}

    def __iter__(self) -> Iterator[InstanceEntry]:
        return iter(list(self._entries.values()))

    def learn(self, entries: Sequence[InstanceEntry]) -> None:
        """Replaces all entries."""
        self._entries = {entry.instance_id: entry for entry in entries}

    def forget(self, entry: InstanceEntry) -> None:
        del self._entries[entry.instance_id]

    def incarnation(self, instance_id: str) -> int | None:
        entry = self._entries.get(instance_id)
        return None if entry is None else entry.incarnation

    def find(self, instance_id: str, incarnation: int) -> InstanceEntry | None:
        """The instance's entry; None if the instance is not listed, or is listed with a different
        incarnation."""
        entry = self._entries.get(instance_id)
        return entry if entry is not None and entry.incarnation == incarnation else None

    def ref(self, instance_id: str, incarnation: int) -> InstanceRef | None:
        entry = self.find(instance_id, incarnation)
        return None if entry is None else entry.ref

    def snapshots(self) -> Iterable[InstanceSnapshot]:
        return [entry.snapshot for entry in self if entry.snapshot is not None]

    def open_snapshots(self) -> Sequence[InstanceSnapshot]:
        return [
            entry.snapshot for entry in self if entry.snapshot is not None and entry.takes_requests
        ]


TELL_EVERY_S = 0.1


class FrontendKeys:
    """A frontend's part in the limits of API keys. It counts its own use and tells the controller,
    which decides; while the controller is away, it applies its share of the limits. `tell` sends to
    the controller."""

    def __init__(
        self,
        frontend_id: str,
        tell: Callable[[KeysTold], None],
        own: OwnLimits = NO_KEYS,
    ) -> None:
        self._frontend_id = frontend_id
        self._tell = tell
        self._own = own
        self.limits = KeyLimits()
        self.use = KeyUse()
        self._has_keys = asyncio.Event()

    def began(self, request: DispatchRequested) -> DispatchRequested:
        if request.api_key:
            self._has_keys.set()
        return self.use.began(request, asyncio.get_running_loop().time())

    def ended(self, record: RequestRecord) -> None:
        self.use.ended(record.request_id, ran=record.instance_id is not None)

    def refusal_alone(self, request: DispatchRequested, num_frontends: int) -> Refusal | None:
        """Why this frontend, one of `num_frontends`, refuses the request while there is no
        controller."""
        if not request.api_key:
            return None
        limits = self.limits.of(request.api_key, self._own)
        return refusal(request, limits.shared_by(num_frontends))

    async def keep_telling(self) -> None:
        what = "the count of what API keys use"
        await repeat(TELL_EVERY_S, what, self._tell_news, self._has_keys)

    def _tell_news(self) -> None:
        if news := self.use.news(asyncio.get_running_loop().time()):
            self._tell(KeysTold(self._frontend_id, news))


class NotDispatchedError(Exception):
    """Raised when the cluster does not take a request. `retry_after_s`: in how many seconds the
    client may try again."""

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
        """The requests about which there is no decision yet."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """By request id, the future for which the call of `find` waits."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """The latest timer of each of these requests."""
        self._bypass: asyncio.TimerHandle | None = None

    def close(self) -> None:
        for timer in (*self._timers.values(), self._bypass):
            if timer is not None:
                timer.cancel()

    async def find(self, request: DispatchRequested) -> tuple[Dispatch, InstanceEntry] | None:
        """Returns the decision and its instance; None if the request was aborted meanwhile. Raises
        NotDispatchedError."""
        request_id, loop = request.request_id, asyncio.get_running_loop()
        waiting = self._waiting[request_id] = loop.create_future()
        self.take(Asked(request))
        try:
            while True:
                await waiting
                if self._waiting.get(request_id) is not waiting:
                    return None  # the request was aborted, and is asked for again
                told = self.asked.handle(Resumed(request_id), loop.time())
                if not told:
                    return None
                for instruction in told:
                    match instruction:
                        case Use(dispatch):
                            entry = self._known.find(dispatch.instance_id, dispatch.incarnation)
                            assert entry is not None
                            return dispatch, entry
                        case Refuse(code, retry_after_s):
                            raise NotDispatchedError(code, retry_after_s)
                    self._do(instruction)
                waiting = self._waiting[request_id] = loop.create_future()
        except asyncio.CancelledError:
            if self._waiting.get(request_id) is waiting:  # the client left; this is not an `abort`
                self.take(Aborted(request_id))
            raise
        finally:
            if self._waiting.get(request_id) is waiting:
                del self._waiting[request_id]
                if timer := self._timers.pop(request_id, None):
                    timer.cancel()

    # -- events --------------------------------------------------------------------------

    def heard_controller(self, directory: Directory) -> None:
        """Tells the machine that the controller was heard. Call this after the controller's
        directory has been learned."""
        self.take(
            ControllerHeard(
                directory.controller,
                directory.num_frontends,
                directory.room_to_grow_tokens,
                directory.takes_requests,
                directory.hold_timeout_s,
            )
        )

    def why_not_ready(self) -> str:
        return self.asked.why_not_ready(asyncio.get_running_loop().time())

    def take(self, event: Event) -> None:
        for instruction in self.asked.handle(event, asyncio.get_running_loop().time()):
            self._do(instruction)

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
                self._timers[request_id] = loop.call_at(time_s, self.take, woken)
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
                self._bypass = loop.call_at(time_s, self.take, BypassDue())

    def _send(self, message: DispatchAsked | DispatchWithdrawn) -> None:
        self._mailbox.send(self._member.controller_address, encode(message), droppable=True)
