"""Requests that come again: lost with another instance, they begin a new attempt here.

A request with outputs enters as an evicted one: it waits in the engine's queue, and its prompt and
outputs are computed together once it is admitted. What that takes beforehand is done beside the
engine's thread: its grammar compiles, and a seeded request's generator is drawn forward. An earlier
attempt that this instance has is dropped first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from controller.core.token_order import Epoch
from controller.ports.engine import Engine
from controller.ports.moves import EngineMoves
from controller.runtime.instance.moves.host import MoveHost
from controller.runtime.instance.moves.instance_moves import InstanceMoves
from controller.runtime.instance.moves.live_request import LiveRequest
from controller.runtime.messages import output_tokens
from controller.runtime.messages.requests import AddRequest

log = logging.getLogger(__name__)

# As the engine's own guard, which sees only requests that the engine has. The grammar was admitted
# once: an instance that is too busy to compile it leaves the request to another one.
GRAMMAR_TIMEOUT_S = 60.0
# An earlier attempt may be moving to here: its blocks are free once its last stage has come in.
ARRIVING_S = 0.01
NO_GRAMMAR = "its grammar does not compile there"
NOT_YET = "its instance was too busy to compile its grammar; send it again"


class ReentryHost(MoveHost, Protocol):
    instance_moves: InstanceMoves

    def abort(self, request_ids: Sequence[str]) -> None: ...

    def refuse(self, add: AddRequest, message: str, *, retryable: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class _Entering:
    add: AddRequest
    frames: Sequence[bytes]
    prepared: Any
    outputs: Sequence[int]
    compiling: Future[Any] | None
    """Of its grammar."""


class Reentries:
    """Used on the event loop's thread. `account` lets the next status count a dispatch."""

    def __init__(
        self, host: ReentryHost, moves: EngineMoves, account: Callable[[int], None]
    ) -> None:
        self._host = host
        self._moves = moves
        self._account = account
        self._entering: dict[str, _Entering] = {}
        """By request id, until the engine has it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def take(self, add: AddRequest, payload: Sequence[Any]) -> None:
        """Takes a request in its second attempt or a later one."""
        host, request_id = self._host, add.request_id
        host.abort((request_id,))
        frames = [bytes(frame) for frame in payload]
        outputs: Sequence[int] = ()
        if add.num_output_tokens:
            outputs = output_tokens.decode(frames.pop())
        try:
            prepared = host.prepare(frames, add.reply_to)
        except ValueError as error:
            self._refuse(add, str(error))
            return
        compiling = self._moves.compiling(prepared)
        entering = _Entering(add, frames, prepared, outputs, compiling)
        self._entering[request_id] = entering
        task = asyncio.get_running_loop().create_task(self._enter(entering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, request_ids: Sequence[str]) -> None:
        """These are aborted, wherever they are."""
        for request_id in request_ids:
            if entering := self._entering.pop(request_id, None):
                if entering.compiling is not None:
                    entering.compiling.cancel()  # if it has not begun
                self._account(entering.add.dispatch_seq)

    def of_frontend(self, address: str) -> list[str]:
        return [r for r, each in self._entering.items() if each.add.reply_to == address]

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(self._entering)

    async def _enter(self, entering: _Entering) -> None:
        add, outputs = entering.add, entering.outputs
        try:
            generator = await self._made_ready(entering) if outputs else None
        except ValueError as error:
            self._give_back(entering, str(error))
            return
        except TimeoutError:
            self._give_back(entering, NOT_YET, retryable=True)
            return
        except Exception:
            log.exception("request %s cannot come in again", add.request_id)
            self._give_back(entering, "its state cannot be made again there")
            return
        while self._host.instance_moves.is_arriving(add.request_id):
            await asyncio.sleep(ARRIVING_S)
        if not self._take_out(entering):
            return  # aborted meanwhile, or replaced
        host = self._host
        host.end(add.request_id, Epoch(add.attempt - 1))  # what moved here of it since
        self._entering[add.request_id] = entering
        host.between_steps(
            partial(_put_in, entering.prepared, outputs, generator),
            partial(self._entered, entering),
        )
        self._account(add.dispatch_seq)

    async def _made_ready(self, entering: _Entering) -> Any:
        """Waits for the request's grammar; returns its generator. Raises ValueError, and
        TimeoutError if another instance may have the time."""
        if entering.compiling is not None:
            await _compiled(entering.compiling)
        drawn = self._moves.drawn_generator
        return await asyncio.to_thread(drawn, entering.prepared, len(entering.outputs))

    def _take_out(self, entering: _Entering) -> bool:
        """Returns whether it was still there."""
        is_there = self._entering.get(entering.add.request_id) is entering
        if is_there:
            del self._entering[entering.add.request_id]
        return is_there

    def _give_back(self, entering: _Entering, why: str, *, retryable: bool = False) -> None:
        if self._take_out(entering):
            self._refuse(entering.add, why, retryable=retryable)

    def _entered(self, entering: _Entering, why_not: str | None) -> None:
        add = entering.add
        if not self._take_out(entering):
            return  # aborted meanwhile, also in the engine
        if why_not is not None:
            self._host.refuse(add, why_not)
            return
        live = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            entering.frames,
            add.num_output_tokens,
            rank=add.rank,
            evicted_at_s=time.time() if add.num_output_tokens else None,
        )
        self._host.requests[add.request_id] = live

    def _refuse(self, add: AddRequest, why: str, *, retryable: bool = False) -> None:
        self._host.refuse(add, why, retryable=retryable)
        self._account(add.dispatch_seq)


def _put_in(prepared: Any, outputs: Sequence[int], generator: Any, engine: Engine) -> str | None:
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
