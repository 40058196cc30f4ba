"""From a key to an order: the one way by which the dashboard changes the cluster."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from textual.screen import Screen

from controller.api.wire.models import ClusterStatus
from tui.actions import log
from tui.actions.choice import Choices
from tui.actions.drains import Drain, Undrain
from tui.actions.lock import why_locked
from tui.actions.order import Order, Planned
from tui.actions.outbox import Phase
from tui.actions.registry import Danger, action_of
from tui.actions.requests import destinations, levels
from tui.actions.scaling import Scale
from tui.actions.session_orders import SessionOrders
from tui.actions.target import Target
from tui.console import Console
from tui.drawing.format import Tone
from tui.feed.caller import Caller
from tui.screens.choose import ChooseScreen
from tui.screens.confirm import ConfirmScreen

Make = Callable[[Target, ClusterStatus], Order | Choices]

ORDERS: Mapping[str, Make] = {
    "drain": lambda target, _: Drain(target.instance_id),
    "undrain": lambda target, _: Undrain(target.instance_id),
    "priority": lambda target, status: levels(target.request_id, status),
    "migrate": lambda target, status: destinations(target.request_id, target.instance_id, status),
}
"""By the action's id: the order for a row, or what it is chosen from."""

Push = Callable[[Screen[Any], Callable[[Any], None]], object]


class Acting:
    """`push` shows a screen and calls back with what it ends with. `caller` None: a replay."""

    def __init__(self, console: Console, caller: Caller | None, push: Push) -> None:
        self.orders = SessionOrders(caller)
        self.is_read_only = console.options.readonly or console.options.limits.readonly
        self._console = console
        self._push = push
        self._replays = caller is None

    def pump(self) -> None:
        """Hears what came, sends what is due, and says what became of it."""
        for call in self.orders.pump(self._console.source.now_s(), self.locked()):
            back = f"  ({self._key('undo')} takes it back)" if call.undo is not None else ""
            tone = log.TONES.get(call.phase, Tone.PLAIN)
            self._console.say(f"{log.told(call)}{back * (not call.undoes)}", tone)

    def locked(self) -> str:
        console = self._console
        return why_locked(
            console.present,
            console.source.now_s(),
            console.source.status_every_s,
            read_only=self._read_only(),
            frozen=f"the screen is frozen: {self._key('freeze')}" if console.is_frozen else "",
            replays=self._replays,
        )

    def act(self, action_id: str, target: Target) -> None:
        """Begins what the action does to the row's instance or request, as it was when the key was
        pressed."""
        change, status = action_of(action_id).change, self._console.present.status
        assert change is not None
        if locked := self.locked():
            self._console.say(f"no {action_id} now: {locked}", Tone.BAD)
        elif not target.of(change.target):
            self._console.say(f"this row is about no {change.target}")
        elif status is not None:
            self._begin(ORDERS[action_id](target, status))

    def scale(self, number: str) -> None:
        """`number`: of instances, as `llumctl scale` takes it."""
        if locked := self.locked():
            self._console.say(f"no scale now: {locked}", Tone.BAD)
            return
        try:
            self._begin(Scale.to(number))
        except ValueError:
            self._console.say(f"scale N, +N or -N: {number[:20]!r} is no number", Tone.BAD)

    def undo(self) -> None:
        """Takes back the last thing that was done here."""
        last = self.orders.outbox.last_undoable()
        if locked := self.locked():
            self._console.say(f"no undo now: {locked}", Tone.BAD)
        elif last is None:
            self._console.say("nothing was done here that could be taken back")
        elif last.undo is None:
            self._console.say(f"{last.order.title} cannot be taken back")
        else:
            self._begin(last.undo, undoes=last.call_id)

    def toggle_read_only(self) -> None:
        if self._console.options.readonly:
            self._console.say("read-only: it was started with --readonly")
            return
        self.is_read_only = not self.is_read_only
        what = "not allowed" if self.is_read_only else "allowed"
        self._console.say(f"changes are {what} now")

    def unsettled(self) -> list[str]:
        """What to tell an operator who leaves before the outcome of an order is known."""
        return [
            f"{log.told(call)}: {call.order.command}"
            for call in self.orders.outbox
            if call.phase in (Phase.SENT, Phase.UNKNOWN)
        ]

    def _begin(self, order: Order | Choices, undoes: int = 0) -> None:
        if isinstance(order, Choices):
            self._push(ChooseScreen(order), lambda chosen: self._give(chosen, undoes))
            return
        change = action_of(order.action_id).change
        status = self._console.present.status
        assert change is not None
        if change.danger is Danger.CONFIRM:
            screen = ConfirmScreen(cast(Planned, order))
            self._push(screen, lambda agreed: self._give(agreed, undoes))
        elif status is not None:
            self._give(order.at(status.revision), undoes)

    def _give(self, order: Order | None, undoes: int) -> None:
        if order is None:
            return
        now_s = self._console.source.now_s()
        time_s = self._console.present.controller_time_s(now_s) or 0.0
        self.orders.order(order, now_s, time_s, undoes)
        self.pump()

    def _read_only(self) -> str:
        if self._console.options.readonly:
            return "this dashboard was started with --readonly"
        return f"read-only: {self._key('read_only')} allows changes" if self.is_read_only else ""

    def _key(self, action_id: str) -> str:
        return self._console.key_of(action_id)
