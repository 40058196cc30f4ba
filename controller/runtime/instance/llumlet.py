"""The llumlet: an instance's process around its engine, from its first hello to its death.

`serving` handles requests while the engine serves. A dead engine thread ends the process: see
`run`.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence

from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import Engine, EngineFactory
from controller.ports.kv_transfer import KvTransfer
from controller.ports.processes import Mailbox
from controller.runtime.controller_link import ControllerLink
from controller.runtime.instance.engine_thread import EngineListener, EngineThread
from controller.runtime.instance.serving import Serving
from controller.runtime.messages.codec import Inbox, encode
from controller.runtime.messages.members import (
    EngineInfo,
    InstanceLost,
    Message,
    StatusPull,
    StatusPushSet,
    Welcome,
)
from controller.runtime.messages.move_messages import MoveAnswered, MoveAsked
from controller.runtime.messages.requests import (
    AbortRequests,
    AddRequest,
    DispatchUnused,
    OutputsReceived,
    OutputsUnread,
    RequestRefused,
)

log = logging.getLogger(__name__)

# Other threads, which work for moves, wait at most so long while the engine thread holds the GIL.
# The default of 5 ms is a whole step of a small model.
SWITCH_INTERVAL_S = 0.0005
# A process that must go leaves its end to the controller for so long beyond its time.
END_MARGIN_S = 2.0


class Llumlet:
    """If the engine cannot start, the llumlet reports that and stays, so that Ray does not restart
    it for ever."""

    def __init__(
        self,
        member: ControllerLink,
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
            on_died=self._end,
            on_long_turn=lambda: member.say_hello(asks=True),
        )
        self._thread = EngineThread(member, build_engine, status_interval_s, listener)
        self._inbox = Inbox(
            {
                DispatchUnused: self._on_unused,
                StatusPull: lambda _: self._thread.answer_pull(),
                StatusPushSet: self._on_status_push,
                Welcome: self._on_welcome,
                MoveAsked: self._refuse_early_move,
                AbortRequests: _ignore,
                OutputsReceived: _ignore,
                OutputsUnread: _ignore,
                InstanceLost: _ignore,
            },
            {AddRequest: self._refuse_early},
        )
        """Messages that come before the engine is built are for an earlier incarnation. The
        handlers of `serving` replace those for early messages."""
        self._stopped: asyncio.Future[None]

    @property
    def num_live_reqs(self) -> int:
        return 0 if self.serving is None else len(self.serving.requests)

    def must_go(self, within_s: float) -> None:
        """This process will be ended: the controller is to empty it within `within_s`. It ends by
        itself a little later, if nobody ends it before."""
        log.warning("told to end within %.0f s: its requests are to move", within_s)
        self._member.must_go(within_s)
        ended = RuntimeError(f"it was told to end {within_s:.0f} s ago")
        asyncio.get_running_loop().call_later(within_s + END_MARGIN_S, self._end, ended)

    def _end(self, error: BaseException) -> None:
        if not self._stopped.done():
            self._stopped.set_exception(error)

    async def run(self) -> None:
        """Serves until the engine thread dies; raises the error that it died of."""
        self._stopped = asyncio.get_running_loop().create_future()
        self._mailbox.start(self._inbox.take, self._on_lost)
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

    def _on_unused(self, unused: DispatchUnused) -> None:
        if unused.incarnation == self._member.incarnation:
            self._thread.account(unused.dispatch_seq)

    def _on_status_push(self, told: StatusPushSet) -> None:
        self._thread.status_interval_s = told.status_interval_s
        self._thread.status_phases = told.phases

    def _on_welcome(self, welcome: Welcome) -> None:
        if self._member.welcomed(welcome) and self.serving is not None:
            self.serving.fenced()
        self._thread.cleared()

    def _refuse_early(self, add: AddRequest, _payload: Sequence[memoryview]) -> None:
        why = "its instance has restarted; send it again"
        refused = RequestRefused(add.request_id, why, retryable=True, attempt=add.attempt)
        self._send(add.reply_to, refused)

    def _refuse_early_move(self, asked: MoveAsked) -> None:
        unknown = MoveAnswered(asked.query_id, MoveRefusal.UNKNOWN)
        self._send(self._member.controller_address, unknown)

    def _on_lost(self, address: str) -> None:
        if self.serving is not None:
            self.serving.address_lost(address)

    def _serve(self, engine: Engine) -> Serving | None:
        try:
            self.serving = serving = Serving(
                self._member, self._mailbox, engine, self._thread, self._transfer
            )
        except Exception as error:  # no socket or no memory for a buffer
            log.exception("the engine was built but cannot serve")
            self._member.report("failed", f"{type(error).__name__}: {error}")
            return None
        self._inbox.handlers |= serving.handlers
        self._inbox.with_payload |= serving.payload_handlers
        gc.freeze()  # so that no collection walks the engine's objects again
        info = EngineInfo(
            engine.max_model_len, engine.num_gpu_blocks, engine.block_size, engine.supported_tasks
        )
        self._member.fingerprint = engine.moves.fingerprint
        self._member.report("active", info=info)
        return serving

    def _send(self, address: str, message: Message) -> None:
        self._mailbox.send(address, encode(message))


def _ignore(_message: Message) -> None:
    pass
