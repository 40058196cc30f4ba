"""The llumlet: an instance's process around its engine, from its first hello to its death.

What it does with requests while the engine serves is `serving`'s. A dead engine thread ends the
process: see `run`.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence

from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import Engine, EngineFactory
from controller.ports.kv_transfer import KvTransfer
from controller.ports.mailbox import Mailbox
from controller.runtime.instance.engine_thread import EngineListener, EngineThread
from controller.runtime.instance.serving import Serving
from controller.runtime.member import Membership
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import (
    EngineInfo,
    InstanceLost,
    StatusPull,
    StatusPushed,
    Welcome,
)
from controller.runtime.messages.message import Message
from controller.runtime.messages.moves import MoveAnswered, MoveAsked
from controller.runtime.messages.operations import StatusIntervalSet
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    OutputsReceived,
    RequestRefused,
)

log = logging.getLogger(__name__)

# The engine thread holds the GIL in Python code; what else this process does for a move waits so
# long for it at most. The default of 5 ms is a whole step of a small model.
SWITCH_INTERVAL_S = 0.0005


class Llumlet:
    """An engine that cannot start is reported as failed and held, not restarted for ever."""

    def __init__(
        self,
        member: Membership,
        mailbox: Mailbox,
        build_engine: EngineFactory,
        status_interval_s: float,
        transfer: KvTransfer,
    ) -> None:
        self._member = member
        self._mailbox = mailbox
        self._transfer = transfer
        self.serving: Serving | None = None
        """None until the engine is built."""
        listener = EngineListener(
            on_loading=lambda detail: member.report("starting", detail),
            on_built=self._serve,
            on_failed=lambda error: member.report("failed", error),
            on_events=lambda events, num_steps: self._engine_side.happened(events, num_steps),
            on_outputs=lambda outputs, time_s: self._engine_side.stepped(outputs, time_s),
            on_status=self._push_status,
            on_refused=lambda add, why: self._engine_side.refuse(add, why),
            on_died=lambda error: self._stopped.set_exception(error),
        )
        self._thread = EngineThread(member, build_engine, status_interval_s, listener)
        self._stopped: asyncio.Future[None]

    @property
    def num_live_reqs(self) -> int:
        return 0 if self.serving is None else len(self.serving.requests)

    async def run(self) -> None:
        """Serve until the engine thread dies; raises what it died of."""
        self._stopped = asyncio.get_running_loop().create_future()
        self._mailbox.start(self._on_message, self._on_lost)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        hellos = asyncio.create_task(self._member.keep_saying_hello())
        self._thread.start()
        try:
            await self._stopped
        finally:
            hellos.cancel()
            if self.serving is not None:
                self.serving.close()
            await self._transfer.close()
            await self._mailbox.close()

    def _on_message(self, head: bytes | memoryview, payload: Sequence[memoryview]) -> None:
        match decode(head):
            case DispatchUnused(incarnation=incarnation, dispatch_seq=seq):
                if incarnation == self._member.incarnation:
                    self._thread.account(seq)
            case StatusPull():
                self._thread.push_status()
            case StatusIntervalSet(status_interval_s=status_interval_s):
                self._thread.status_interval_s = status_interval_s
            case Welcome() as welcome:
                if self._member.welcomed(welcome) and self.serving is not None:
                    self.serving.fenced()
            case other if self.serving is None:
                self._on_early_message(other)
            case other:
                if not self.serving.on_message(other, payload):
                    log.warning("unexpected message %s", type(other).__name__)

    def _on_early_message(self, message: Message) -> None:
        """There is no engine yet; an incarnation before this one may have had one."""
        match message:
            case AddRequest(request_id=request_id, reply_to=reply_to):
                why = "its instance has restarted; send it again"
                self._send(reply_to, RequestRefused(request_id, why, retryable=True))
            case MoveAsked(query_id=query_id):
                unknown = MoveAnswered(query_id, MoveRefusal.UNKNOWN)
                self._send(self._member.controller_address, unknown)
            case AbortRequests() | OutputsReceived() | InstanceLost():
                pass
            case other:
                log.warning("unexpected message %s", type(other).__name__)

    def _on_lost(self, address: str) -> None:
        if self.serving is not None:
            self.serving.address_lost(address)

    def _serve(self, engine: Engine) -> None:
        try:
            self.serving = Serving(
                self._member, self._mailbox, engine, self._thread, self._transfer
            )
        except Exception as error:  # a socket or a buffer that cannot be had
            log.exception("the engine was built but cannot serve")
            self._member.report("failed", f"{type(error).__name__}: {error}")
            return
        gc.freeze()  # the engine's objects, which no collection needs to walk again
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.report("active", info=info)

    @property
    def _engine_side(self) -> Serving:
        """For what the engine says: it is built then."""
        assert self.serving is not None
        return self.serving

    def _push_status(self, status: StatusPushed) -> None:
        if self.serving is not None:  # else it failed to
            whole = encode(self.serving.completed(status))
            self._mailbox.send(self._member.controller_address, whole, droppable=True)

    def _send(self, address: str, message: Message) -> None:
        self._mailbox.send(address, encode(message))
