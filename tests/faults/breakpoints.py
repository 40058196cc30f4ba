"""Faults at an exact place: where a move's machine enters a state, before it does anything there.

In a child process only. The two classes of moves are replaced by subclasses that stop at the door
of a state that the test named: the process sends itself a signal, or that one move is held and
what happens to it waits, until the test lets it go on. Nothing else of the process stops. And it
says which requests came to their own end.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from controller.adapters.tcp import transfer
from controller.adapters.tcp.block_loads import BlockLoads
from controller.core.migration.protocol import IllegalMoveError
from controller.core.migration.source import SourceState
from controller.runtime.instance import instance_moves, llumlet
from controller.runtime.instance.move_ends import IncomingMove, OutgoingMove
from tests.faults.lines import say

log = logging.getLogger(__name__)

HOLD = "hold"

_armed: dict[tuple[str, str], str] = {}
"""What to do at the next entrance: by side and state."""
_held: list["_Breaking"] = []
_loads_go_on = threading.Event()
_loads_go_on.set()


def install() -> None:
    vars(llumlet)["InstanceMoves"] = _TellingDesk
    vars(instance_moves)["OutgoingMove"] = _BreakingOutgoing
    vars(instance_moves)["IncomingMove"] = _BreakingIncoming
    vars(transfer)["BlockLoads"] = _HeldLoads


def arm(side: str, state: str, action: str) -> None:
    """`action`: a signal's name, or HOLD."""
    _armed[side, state] = action
    say("armed", side=side, state=state)


def hold_loads() -> None:
    """What is loaded from the host cache from now on, before its first block is copied."""
    _loads_go_on.clear()
    say("holds_loads")


def num_arrived(of: Any) -> int:
    """The blocks of the copies under way that are done at this side."""
    return sum(job.num_done for job in getattr(of, "_jobs", {}).values())


def go_on() -> None:
    _loads_go_on.set()
    held = _held[:]
    _held.clear()
    for move in held:
        move.go_on()


class _Breaking:
    """Mixed into a move's class, which it stands before: mypy does not see that `super()`
    is one (ignore[misc])."""

    side = ""
    machine: Any

    def __init__(self, *args: Any) -> None:
        self._entered: Any = None
        self._waiting: deque[Callable[[], object]] | None = None
        super().__init__(*args)

    def handle(self, event: object) -> None:
        if self._waiting is not None:
            self._waiting.append(partial(self.handle, event))
        else:
            super().handle(event)  # type: ignore[misc]

    def tick(self) -> None:
        if self._waiting is None:
            super().tick()  # type: ignore[misc]

    def go_on(self) -> None:
        waiting, self._waiting = self._waiting, None
        while waiting:
            work = waiting.popleft()
            try:
                work()
            except IllegalMoveError as error:
                log.error("held too long: %s", error)
            if self._waiting is not None:  # at another state's door
                self._waiting.extend(waiting)
                return

    def _carry_out(self, instructions: Sequence[Any]) -> None:
        state = self.machine.state
        is_new, self._entered = state is not self._entered, state
        action = _armed.pop((self.side, str(state)), None) if is_new else None
        if action is not None:
            self._waiting = deque([partial(super()._carry_out, instructions)])  # type: ignore[misc]
            _held.append(self)
            say("reached", side=self.side, state=str(state))
            if action != HOLD:
                _signal_myself(action)
                go_on()
            return
        super()._carry_out(instructions)  # type: ignore[misc]


def _signal_myself(name: str) -> None:
    """By this very thread, which does not get one step further."""
    signal.pthread_kill(threading.get_ident(), signal.Signals[name])
    if name == "SIGKILL":
        time.sleep(60)


class _TellingDesk(instance_moves.InstanceMoves):
    def request_finished(self, request_id: str) -> None:
        say("finished", request_id=request_id)
        super().request_finished(request_id)


class _HeldLoads(BlockLoads):
    def _copy(self, *args: Any) -> Any:
        if not _loads_go_on.is_set():
            say("loading")
            _loads_go_on.wait()
        return super()._copy(*args)


class _BreakingOutgoing(_Breaking, OutgoingMove):
    side = "source"

    def _close(self, outcome: SourceState, code: str) -> None:
        say("closed", request_id=self.order.request_id, outcome=str(outcome), code=code)
        super()._close(outcome, code)


class _BreakingIncoming(_Breaking, IncomingMove):
    side = "destination"
