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

# As the engine's own guard, which sees only requests that the engine has.
GRAMMAR_TIMEOUT_S = 60.0
# An earlier attempt may be moving to here: its blocks are free once its last stage has come in.
ARRIVING_S = 0.01
NO_GRAMMAR = "its grammar does not compile there"


class ReentryHost(MoveHost, Protocol):
    instance_moves: InstanceMoves

    def abort(self, request_ids: Sequence[str]) -> None: ...

    def refuse(self, add: AddRequest, message: str) -> None: ...


class Reentries:
    """Used on the event loop's thread. `account` lets the next status count a dispatch."""

    def __init__(
        self, host: ReentryHost, moves: EngineMoves, account: Callable[[int], None]
    ) -> None:
        self._host = host
        self._moves = moves
        self._account = account
        self._entering: dict[str, AddRequest] = {}
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
        self._entering[request_id] = add
        entering = self._enter(add, frames, prepared, outputs)
        task = asyncio.get_running_loop().create_task(entering)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, request_ids: Sequence[str]) -> None:
        """These are aborted, wherever they are."""
        for request_id in request_ids:
            if add := self._entering.pop(request_id, None):
                self._account(add.dispatch_seq)

    def of_frontend(self, address: str) -> list[str]:
        return [r for r, add in self._entering.items() if add.reply_to == address]

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(self._entering)

    async def _enter(
        self, add: AddRequest, frames: Sequence[bytes], prepared: Any, outputs: Sequence[int]
    ) -> None:
        try:
            generator = await self._made_ready(prepared, outputs) if outputs else None
        except ValueError as error:
            if self._entering.get(add.request_id) is add:
                del self._entering[add.request_id]
                self._refuse(add, str(error))
            return
        except Exception:
            log.exception("request %s cannot come in again", add.request_id)
            if self._entering.get(add.request_id) is add:
                del self._entering[add.request_id]
                self._refuse(add, "its state cannot be made again there")
            return
        while self._host.instance_moves.is_arriving(add.request_id):
            await asyncio.sleep(ARRIVING_S)
        if self._entering.get(add.request_id) is not add:
            return  # aborted meanwhile, or replaced
        host = self._host
        host.end(add.request_id, Epoch(add.attempt - 1))  # what moved here of it since
        self._entering[add.request_id] = add
        host.between_steps(
            partial(_put_in, prepared, outputs, generator), partial(self._entered, add, frames)
        )
        self._account(add.dispatch_seq)

    async def _made_ready(self, prepared: Any, outputs: Sequence[int]) -> Any:
        """Waits for the request's grammar; returns its generator. Raises ValueError."""
        compiling = self._moves.compiling(prepared)
        if compiling is not None:
            await _compiled(compiling)
        return await asyncio.to_thread(self._moves.drawn_generator, prepared, len(outputs))

    def _entered(self, add: AddRequest, frames: Sequence[bytes], why_not: str | None) -> None:
        if self._entering.pop(add.request_id, None) is not add:
            return  # aborted meanwhile, also in the engine
        if why_not is not None:
            self._host.refuse(add, why_not)
            return
        live = LiveRequest(
            add.reply_to,
            add.attempt,
            add.hop,
            add.arrival_time_s,
            frames,
            add.num_output_tokens,
            rank=add.rank,
            evicted_at_s=time.time() if add.num_output_tokens else None,
        )
        self._host.requests[add.request_id] = live

    def _refuse(self, add: AddRequest, why: str) -> None:
        self._host.refuse(add, why)
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
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and not compiling.cancelled():
            raise
        # The error's text may quote the grammar.
        raise ValueError(NO_GRAMMAR) from None
