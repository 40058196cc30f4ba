"""Requests that come again, in a later attempt: carries out what `core/replay/reentry_machine.py`
decides."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from controller.core.replay.reentry_machine import (
    Aborted,
    Account,
    Begin,
    CallOff,
    Came,
    Drop,
    EndEarlier,
    Entered,
    Event,
    NotPrepared,
    Prepare,
    Prepared,
    PutIn,
    ReentryMachine,
    Refuse,
    WakeAt,
    Woken,
)
from controller.ports.engine import Engine, EngineMoves
from controller.runtime.instance.instance_moves import InstanceMoves
from controller.runtime.instance.live_requests import LiveRequest, MoveHost
from controller.runtime.messages.codec import decode_tokens
from controller.runtime.messages.requests import AddRequest

log = logging.getLogger(__name__)

# As the engine's own guard, which sees only requests that the engine has. The grammar was admitted
# once: an instance that is too busy to compile it leaves the request to another one.
GRAMMAR_TIMEOUT_S = 60.0
NO_GRAMMAR = "its grammar does not compile there"
NOT_YET = "its instance was too busy to compile its grammar; send it again"
NOT_MADE = "its state cannot be made again there"


class ReentryHost(MoveHost, Protocol):
    instance_moves: InstanceMoves

    def abort_here(self, request_ids: Sequence[str]) -> None: ...

    def refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None: ...


@dataclass(slots=True)
class _Entering:
    add: AddRequest
    frames: list[bytes]
    outputs: Sequence[int] = ()
    prepared: Any = None
    generator: Any = None
    compiling: Future[Any] | None = None
    """Of its grammar."""


class Reentries:
    """Used on the event loop's thread. `account` lets the next status count a dispatch."""

    def __init__(
        self, host: ReentryHost, moves: EngineMoves, account: Callable[[int], None]
    ) -> None:
        self._host = host
        self._moves = moves
        self._account = account
        self.machine = ReentryMachine()
        self._num_entries = 0
        self._entering: dict[int, _Entering] = {}
        """By the numbers of the machine's entries."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # -- events --------------------------------------------------------------------------

    def take(self, add: AddRequest, payload: Sequence[Any]) -> None:
        """Takes a request in its second attempt or a later one."""
        self._num_entries += 1
        number = self._num_entries
        self._entering[number] = _Entering(add, [bytes(frame) for frame in payload])
        came = Came(number, add.request_id, add.attempt, add.reply_to, add.dispatch_seq)
        self._tell(came)

    def forget(self, request_ids: Sequence[str]) -> None:
        """These are aborted, wherever they are."""
        self._tell(Aborted(request_ids))

    def _is_arriving(self, number: int) -> bool:
        return self._host.instance_moves.is_arriving(self._entering[number].add.request_id)

    def _tell(self, event: Event) -> None:
        for instruction in self.machine.handle(event, self._host.now_s()):
            match instruction:
                case Drop(request_id):
                    self._host.abort_here((request_id,))
                case Prepare(number):
                    self._begin(self._prepare(number, self._entering[number]))
                case WakeAt(number, time_s):
                    self._begin(self._wake(number, time_s))
                case EndEarlier(request_id, epoch):
                    self._host.end(request_id, epoch)
                case PutIn(number):
                    self._put_in(number, self._entering[number])
                case Begin(number):
                    self._run(self._entering.pop(number))
                case Refuse(number, why, retryable):
                    add = self._entering.pop(number).add
                    self._host.refuse(add, why, retryable=retryable)
                case CallOff(number):
                    compiling = self._entering.pop(number).compiling
                    if compiling is not None:
                        compiling.cancel()  # if it has not begun
                case Account(dispatch_seq):
                    self._account(dispatch_seq)

    # -- instructions --------------------------------------------------------------------

    def _begin(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepare(self, number: int, entering: _Entering) -> None:
        if number not in self._entering:
            return  # called off before it began
        try:
            await self._make(entering)
        except ValueError as error:
            self._tell(NotPrepared(number, str(error)))
        except TimeoutError:
            self._tell(NotPrepared(number, NOT_YET, retryable=True))
        except Exception:
            log.exception("request %s cannot come in again", entering.add.request_id)
            self._tell(NotPrepared(number, NOT_MADE))
        else:
            if number in self._entering:
                self._tell(Prepared(number, self._is_arriving(number)))

    async def _make(self, entering: _Entering) -> None:
        """Raises ValueError, and TimeoutError if another instance may have the time."""
        add = entering.add
        if add.num_output_tokens:
            entering.outputs = decode_tokens(entering.frames.pop())
        entering.prepared = self._host.prepare(entering.frames, add.reply_to)
        entering.compiling = self._moves.compiling(entering.prepared)
        if not entering.outputs:
            return
        if entering.compiling is not None:
            await _compiled(entering.compiling)
        drawn = self._moves.drawn_generator
        num_outputs = len(entering.outputs)
        entering.generator = await asyncio.to_thread(drawn, entering.prepared, num_outputs)

    async def _wake(self, number: int, time_s: float) -> None:
        await asyncio.sleep(time_s - self._host.now_s())
        if number in self._entering:
            self._tell(Woken(number, self._is_arriving(number)))

    def _put_in(self, number: int, entering: _Entering) -> None:
        self._host.between_steps(
            partial(_enter, entering.prepared, entering.outputs, entering.generator),
            lambda why_not: self._tell(Entered(number, why_not)),
        )

    def _run(self, entering: _Entering) -> None:
        add = entering.add
        self._host.requests[add.request_id] = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            entering.frames,
            add.num_output_tokens,
            rank=add.rank,
            evicted_at_s=time.time() if add.num_output_tokens else None,
        )


def _enter(prepared: Any, outputs: Sequence[int], generator: Any, engine: Engine) -> str | None:
    """Runs on the engine's thread. Returns why the engine does not take it, or None."""
    try:
        if outputs:
            engine.moves.reenter(prepared, outputs, generator)
        else:
            engine.add(prepared)
    except ValueError as error:
        return str(error)
    return None


async def _compiled(compiling: "Future[Any]") -> None:
    try:
        await asyncio.wait_for(asyncio.wrap_future(compiling), GRAMMAR_TIMEOUT_S)
    except TimeoutError:
        raise
    except asyncio.CancelledError:
        if not compiling.cancelled():
            raise
        raise TimeoutError from None  # nobody compiles it here any more
    except Exception:  # its text may quote the grammar
        raise ValueError(NO_GRAMMAR) from None
