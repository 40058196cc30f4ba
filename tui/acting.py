"""From a key to an order: the one way by which the dashboard changes the cluster."""

from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from controller.api.operations.on_cluster import Autoscale, Scale, Setting
from controller.api.operations.on_instances import Undrain
from controller.api.operations.order import Danger
from controller.api.operations.table import ORDERS
from controller.api.text.quantities import duration
from tui.actions import Target, action_of
from tui.asking import CHOICES, AnyOrder, Choices, Several, TakeBack, Together, modes
from tui.console import Console
from tui.drawing import Tone
from tui.live import Caller
from tui.outbox import TONES, Call, Phase, SessionOrders, told
from tui.screens.choose import ChooseScreen
from tui.screens.confirm import ConfirmScreen
from tui.screens.edit import EditScreen
from tui.state import DashboardState

Push = Callable[[Screen[Any], Callable[[Any], None]], object]


class Acting:
    """`push` shows a screen and calls back with what it ends with. `caller` None: a replay."""

    def __init__(self, console: Console, caller: Caller | None, push: Push) -> None:
        self.orders = SessionOrders(caller, console.options.of_cluster)
        self.is_read_only = console.options.readonly or console.options.limits.readonly
        self._console = console
        self._push = push
        self._replays = caller is None

    def pump(self) -> None:
        """Hears what came, sends what is due, and says what became of it."""
        status = self._console.present.status
        for call in self.orders.pump(self._console.source.now_s(), self.locked(), status):
            if self._is_told_by_another(call):
                continue
            back = f"  ({self._key('undo')} takes it back)" if call.can_undo else ""
            tone = TONES.get(call.phase, Tone.PLAIN)
            self._console.say(f"{told(call)}{back}", tone, stays=True)

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

    def act(self, action_id: str, *targets: Target, marked: bool = False) -> None:
        """Begins what the action does to the rows' instances or requests, as they were when the key
        was pressed. What is done to marked rows is asked first in any case: the cursor may be
        elsewhere."""
        change, status = action_of(action_id).change, self._console.present.status
        assert change is not None
        found = {each.of(change.target): each for each in targets if each.of(change.target)}
        if locked := self.locked():
            self._console.say(f"no {action_id} now: {locked}", Tone.BAD)
        elif action_id == "undrain" and len(targets) == 1 and targets[0].operation_id:
            self.undo(targets[0].operation_id)
        elif not found:
            rows = "the marked rows are" if marked else "this row is"
            self._console.say(f"{rows} about no {change.target}")
        elif len(found) > 1 and not change.several:
            off = self._key("back")
            self._console.say(f"{action_id} one at a time: {off} takes the marks off")
        elif status is not None:
            if choose := CHOICES.get(action_id):
                self._begin(choose(list(found.values()), status))
                return
            orders = ORDERS[action_id].of_each(list(found))
            if marked or len(orders) > 1:
                asked = Several(orders, f"{change.target}s")
                self._push(ConfirmScreen(asked), self._give)
            else:
                self._begin(orders[0])

    def order(self, order: AnyOrder) -> None:
        """Begins what was typed with all that it wants."""
        if locked := self.locked():
            self._console.say(f"no {order.kind} now: {locked}", Tone.BAD)
        else:
            self._begin(order)

    def scale(self, number: str) -> None:
        """`number`: of instances, as `llumctl scale` takes it."""
        if locked := self.locked():
            self._console.say(f"no scale now: {locked}", Tone.BAD)
            return
        try:
            self._begin(Scale.to(number))
        except ValueError:
            self._console.say(f"scale N, +N or -N: {number[:20]!r} is no number", Tone.BAD)

    def autoscale(self, mode: str = "") -> None:
        """Sets the mode of auto-scaling, or has it chosen."""
        status = self._console.present.status
        if locked := self.locked():
            self._console.say(f"no autoscale now: {locked}", Tone.BAD)
        elif mode:
            self._begin(Autoscale.to_mode(mode))
        elif status is not None:
            self._begin(modes(status.autoscale, status.revision))

    def edit_setting(self, setting: Setting) -> None:
        if locked := self.locked():
            self._console.say(f"no set now: {locked}", Tone.BAD)
        else:
            self._push(EditScreen(setting), self._begin_if)

    def undo(self, operation_id: str = "") -> None:
        """Takes back an operation of the audit log: that one, or the last of anybody's."""
        if locked := self.locked():
            self._console.say(f"no undo now: {locked}", Tone.BAD)
        else:
            asked = TakeBack(operation_id, self._console.options.zone)
            self._push(ConfirmScreen(asked), self._give)

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
            f"{told(call)}: {call.command}"
            for call in self.orders.outbox
            if call.phase in (Phase.SENT, Phase.UNKNOWN)
        ]

    def _is_told_by_another(self, call: Call) -> bool:
        """What ended a drain of this session is an undrain of this session, which says so."""
        drained = {each.instance_id for each in call.awaits}
        return call.phase is Phase.FAILED and any(
            isinstance(other.order, Undrain)
            and other.order.instance_id in drained
            and other.call_id > call.call_id
            for other in self.orders.outbox
        )

    def _begin_if(self, order: AnyOrder | None) -> None:
        if order is not None:
            self._begin(order)

    def _begin(self, order: AnyOrder | Choices) -> None:
        if isinstance(order, Choices):
            self._push(ChooseScreen(order), self._give)
            return
        change = action_of(order.kind).change
        status = self._console.present.status
        assert change is not None
        if change.danger is Danger.CONFIRM:
            self._push(ConfirmScreen(order), self._give)
        elif status is not None:
            self._give(order.at(status.revision))

    def _give(self, agreed: AnyOrder | Together | None) -> None:
        if agreed is None:
            return
        now_s = self._console.source.now_s()
        time_s = self._console.present.controller_time_s(now_s) or 0.0
        for order in agreed.orders if isinstance(agreed, Together) else (agreed,):
            self.orders.order(order, now_s, time_s)
        self.pump()

    def _read_only(self) -> str:
        if self._console.options.readonly:
            return "this dashboard was started with --readonly"
        return f"read-only: {self._key('read_only')} allows changes" if self.is_read_only else ""

    def _key(self, action_id: str) -> str:
        return self._console.key_of(action_id)


def why_locked(
    state: DashboardState,
    now_s: float,
    status_every_s: float,
    *,
    read_only: str = "",
    frozen: str = "",
    replays: bool = False,
) -> str:
    """Why nothing can be changed now: the one place that decides it. Empty if actions are allowed.
    `read_only` and `frozen` say why the operator, or who started the dashboard, wants no changes
    now."""
    if replays:
        return "this is a replay: there is no cluster to change"
    if read_only:
        return read_only
    if frozen:
        return frozen
    if state.stopped is not None:
        return "the cluster has stopped"
    age_s = state.age_s(now_s)
    if age_s is None:
        return "nothing is known of the cluster yet"
    if state.is_stale(now_s, status_every_s):
        return f"what the screen shows is {duration(age_s)} old"
    return ""
