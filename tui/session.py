"""The session of a dashboard: what it knows about the cluster, which orders were given, and the
options.

Every screen draws from the session. The session knows no screen and no widget; the application,
which owns the session, opens them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from controller.api.errors import LlumctlError
from controller.api.operations.on_instances import Undrain
from controller.api.settings.settings import ConsoleTable
from controller.api.text import hints
from controller.api.text.quantities import duration, printable
from controller.api.text.verdict_words import order_command
from controller.api.wire.status import VerdictOrder
from tui.actions import Action, Place, action_of, first_of, of_places
from tui.asking import AnyOrder, Together
from tui.drawing import UNICODE, Glyphs, Line, Span, Tone, fitted, key_line, width_of
from tui.live import Caller, Source, Work
from tui.outbox import TONES, Call, Phase, SessionOrders, Then, told, under_way
from tui.own_commands import OwnCommand, own_actions
from tui.panes.graphs import SPANS_S
from tui.panes.header import Liveness, recording_badge
from tui.panes.requests import Names
from tui.replay import Replaying, ReplaySource
from tui.startup import DEFAULT_THEME
from tui.state import DashboardState, reduce

if TYPE_CHECKING:
    from textual.timer import Timer

MESSAGE_S = 6.0
PAST_EVERY_S = 2.0
"""How often graphs are told what is new."""
_KEYS_ON_ROWS = {"restart": "restart", "drain": "drain", "look": "row_open"}
"""The actions, on the row of an instance, that carry out deeds of the verdict."""
PAST_AGAIN_S = 30.0
"""After this time a controller that did not tell its history is asked again."""


@dataclass(frozen=True)
class Options:
    """How the dashboard is to look and behave, as the options of `llumctl top` say."""

    glyphs: Glyphs = UNICODE
    theme: str = DEFAULT_THEME
    zone: tzinfo | None = None
    """The time zone of all times of day; None: the machine's."""
    keymap: Mapping[str, str] = field(default_factory=dict)
    """Rebound keys, as `tui.actions.checked_keymap` returns them."""
    limits: ConsoleTable = field(default_factory=ConsoleTable)
    """At which figures there is an alarm, and whether the session begins read-only."""
    readonly: bool = False
    """Whether this session is read-only: nothing can be changed in it."""
    in_browser: bool = False
    """Whether the dashboard is shown in a browser. The browser's user has no shell on this machine
    and gets none: no command runs, no file is written, and the dashboard cannot be suspended."""
    own: tuple[OwnCommand, ...] = ()
    """The operator's own commands, as `tui.own_commands.checked_commands` returns them."""
    cluster: str = ""
    """The value of `--cluster` that means this cluster: a name, or a URL. A remote cluster may have
    the same name as a local one."""
    of_cluster: str = ""
    """The flags to add to a command so that it acts on this cluster, such as ` --cluster prod`;
    empty if it does so without them."""
    model: str = ""
    """The model that is shown alone, of a cluster that serves several; empty: all are shown."""
    models: tuple[str, ...] = ()
    """The models that were seen before, while all were shown."""
    clusters: Callable[[], Sequence[str]] = lambda: ()
    """The clusters that run on this machine, and those that were shown before."""
    recording: bool = False
    captions: tuple[tuple[float, str], ...] = ()
    """In a replay: what the bottom line says from a second of the recording on. A replay with
    captions leaves the dashboard at its end."""
    when_drawn: Callable[[], None] = lambda: None
    """Called once, after the first screen."""
    tick_s: float | None = None
    """Seconds between two drawings; None: only a call of `pump` draws."""

    def aimed(self, text: str) -> str:
        """The text, in which each command is made to mean this cluster, and the model that is shown
        alone."""
        return hints.aimed(text, self.of_cluster, model=self.model)


class Session:
    """What one dashboard knows and may do, from its start to its end."""

    def __init__(
        self,
        source: Source,
        options: Options,
        caller: Caller | None,
        *,
        set_timer: "Callable[[float, Callable[[], None]], Timer]",
        redraw: Callable[[], None],
        pump: Callable[[], None],
    ) -> None:
        """`caller`: None for a replay. `redraw` draws the screens again; `pump` does so too, after
        taking what the source has."""
        self.source = source
        self.options = options
        self.glyphs = options.glyphs
        self.names = Names(options.glyphs.ellipsis)
        """The names of all requests that were on a screen."""
        self.state = DashboardState(limits=options.limits)
        """The present state, whatever the screen shows."""
        self.frozen: DashboardState | None = None
        """The state at which the operator froze the screen; None if it is not frozen."""
        self._frozen_at_s = 0.0
        self.orders = SessionOrders(caller, options.aimed)
        self.is_read_only = options.readonly or options.limits.readonly
        self.message = Message(set_timer, redraw)
        self._past_asked_s = float("-inf")
        self.graph_span_s = 300.0
        """How much of the past the graphs show."""
        self._pump = pump
        self._has_cluster = caller is not None
        self.own = own_actions(options.own)
        self.replay: Replaying | None = None
        """The keys of a replay; None for a live controller."""
        if isinstance(source, ReplaySource):
            self.replay = Replaying(source, options.keymap, options.zone, self.say, pump)

    def take(self) -> None:
        """Takes what the source has heard, and takes the orders a step further."""
        self.state = reduce(self.state, self.source.take())
        self._follow_orders()

    def ask_past(self, *, shown: bool) -> None:
        """Asks the controller for its history, once it is heard, and then for what is new. `shown`:
        whether graphs are on the screen; if not, it is enough to ask once."""
        state, now_s = self.state, self.source.now_s()
        status, past = state.status, state.past
        if status is None or state.lost or state.stopped is not None:
            return
        due_s = PAST_EVERY_S if past.is_told else PAST_AGAIN_S
        if now_s - self._past_asked_s < due_s or (past.is_told and not shown):
            return
        self._past_asked_s = now_s
        # The controller's clock may have been set back.
        is_known = past.is_told and past.points and past.last_s <= status.time_s + due_s
        self.source.ask_history(past.last_s if is_known else None)

    def next_graph_span(self) -> None:
        """Makes the graphs show the next longer time; after the longest comes the shortest."""
        longer = [each for each in SPANS_S if each > self.graph_span_s]
        self.graph_span_s = longer[0] if longer else SPANS_S[0]
        self.say(f"graphs show {self.graph_span_s / 60:.0f} min", Tone.PLAIN)

    @property
    def shown(self) -> DashboardState:
        """What the screen shows: the present state, or the one at which it was frozen."""
        return self.frozen or self.state

    @property
    def calls(self) -> Iterable[Call]:
        """The orders of this session."""
        return self.orders.outbox

    @property
    def is_stale(self) -> bool:
        return self.liveness().is_stale

    @property
    def is_barred(self) -> bool:
        """Whether the header is a bar, because the screen does not show the present."""
        return self.replay is not None or self.frozen is not None or self.is_stale

    def liveness(self) -> Liveness:
        now_s = self.source.now_s()
        badges = ["READ" if self.replay is not None or self.is_read_only else "WRITE"]
        if self.frozen is not None:
            badges.append(f"FROZEN {duration(now_s - self._frozen_at_s)}")
        unknown = sum(call.phase is Phase.UNKNOWN for call in self.calls)
        if unknown:
            badges.append(f"{unknown} UNKNOWN")
        if self.options.recording:
            badges.append(recording_badge(self.state))
        status = self.state.status
        return Liveness(
            self.state,
            now_s,
            self.source.status_every_s,
            (status.cluster if status else self.source.cluster)
            + (f"/{self.options.model}" if self.options.model else ""),
            tuple(badges),
            self.options.zone,
            self.replay.progress() if self.replay is not None else None,
            self.options.aimed,
        )

    def toggle_freeze(self) -> None:
        """Freezes or unfreezes the screen. In a replay, time itself stands still."""
        if self.replay is not None:
            self.replay.toggle_pause()
        elif self.frozen is None:
            self.frozen, self._frozen_at_s = self.state, self.source.now_s()
        else:
            self.frozen = None
        self._pump()

    # Keys and words

    def actions(self, places: Collection[Place]) -> list[Action]:
        """The actions that work on a screen of these places, with the operator's own commands."""
        options = self.options
        may_run = self.replay is None and not (options.readonly or options.in_browser)
        found = of_places(
            places,
            replay=self.replay is not None,
            changes=not options.readonly,
            in_browser=options.in_browser,
        )
        return [*found, *(self.own if may_run and Place.ROWS in places else ())]

    def key_of(self, action_id: str) -> str:
        """The key of an action as people call it, after rebinding."""
        return first_of(action_id, self.options.keymap)

    def way_of(self, order: VerdictOrder) -> str:
        """How an operator carries out what the verdict recommends: the key here, or the command
        where nothing can be changed. Empty if the order is not known here."""
        command = order_command(order)
        if self.replay is not None or not command:
            return command
        target = printable(order.target)
        if order.deed in _KEYS_ON_ROWS:
            action_id = _KEYS_ON_ROWS[order.deed]
            is_locked = self.is_read_only and action_of(action_id).change is not None
            return command if is_locked else f"{self.key_of(action_id)} on {target}"
        if order.deed == "move" and not self.is_read_only:
            return f"{self.key_of('migrate')} on the queue head"
        if order.deed == "logs":
            return f":logs {target}"
        if self.is_read_only:
            return command
        if order.deed == "add" and not order.model:
            return self.key_of("scale_out")
        if order.deed == "add":
            return f":scale {printable(order.model)}=+1"
        if order.model:
            return f"{self.key_of('tune')} on an instance of {printable(order.model)}"
        return command.replace("llumctl ", ":")

    def say(self, text: str, tone: Tone = Tone.WARN, *, stays: bool = False) -> None:
        """Shows a message on the bottom line for a while. A message about something bad answers the
        previous key, so it goes away with the next key, unless it `stays` as long as other
        messages."""
        self.message.show(self.options.aimed(text), tone, stays=stays)

    def bottom_line(self, keys: Sequence[tuple[str, str]], width: int) -> Line:
        """The text of the bottom line: the message, if there is one; otherwise the caption of a
        replay; otherwise what is wrong with the stream; otherwise the orders under way and the
        keys. `keys`: pairs of key and word; the final two pairs are always shown."""
        if self.message.line:
            return self.message.line
        if caption := self._caption():
            leave = key_line(keys[-2:], 0)
            words = fitted(f" {caption}", max(1, width - width_of(leave) - 1), self.glyphs)
            return (Span(words, Tone.STRONG), Span(" "), *leave)
        state = self.state
        stopped = state.stopped.reason if state.stopped else ""
        trouble = state.recording_failed or stopped or state.lost
        if not trouble:
            going = under_way(self.calls, width, self.glyphs)
            return (*going, *key_line(keys, width - width_of(going)))
        leave = key_line(keys[-2:], 0)
        room = max(1, width - width_of(leave) - 5)
        words = printable(trouble)
        words = fitted(words, min(room, cell_len(words)), self.glyphs)
        return (Span(f" ! {words}  ", Tone.BAD), *leave)

    def _caption(self) -> str:
        if self.replay is None:
            return ""
        position_s = self.replay.source.position_s()
        return next(
            (text for at_s, text in reversed(self.options.captions) if at_s <= position_s), ""
        )

    @property
    def is_over(self) -> bool:
        """Whether a replay with captions has ended."""
        return bool(self.options.captions) and self.replay is not None and self.replay.source.ended

    # Orders

    def ask(self, question: Work, then: Then) -> None:
        """Asks the controller. `then` is called with the answer or the error, on the screen's own
        thread."""

        def answered(answer: Any, error: Exception | None) -> None:
            if isinstance(error, LlumctlError):
                error.message = self.options.aimed(error.message)
            then(answer, error)

        self.orders.ask(question, answered)

    def give(self, agreed: AnyOrder | Together) -> None:
        now_s = self.source.now_s()
        time_s = self.state.controller_time_s(now_s) or 0.0
        for order in agreed.orders if isinstance(agreed, Together) else (agreed,):
            self.orders.order(order, now_s, time_s)
        self._follow_orders()

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the cluster that are known, if it serves several."""
        status = self.state.status
        return (
            tuple(each.name for each in status.models)
            if status and status.models
            else (self.options.models)
        )

    def locked(self) -> str:
        """Why nothing can be changed now; empty if orders may be given. Nothing else decides
        this."""
        state, now_s = self.state, self.source.now_s()
        if not self._has_cluster:
            return "this is a replay: there is no cluster to change"
        if self.options.readonly:
            return "this dashboard was started with --readonly"
        if self.is_read_only:
            return f"read-only: {self.key_of('read_only')} allows changes"
        if self.frozen is not None:
            return f"the screen is frozen: {self.key_of('freeze')}"
        if state.stopped is not None:
            return "the cluster has stopped"
        age_s = state.age_s(now_s)
        if age_s is None:
            return "nothing is known of the cluster yet"
        if state.is_stale(now_s, self.source.status_every_s):
            return f"what the screen shows is {duration(age_s)} old"
        return ""

    def toggle_read_only(self) -> None:
        if self.options.readonly:
            self.say("read-only: it was started with --readonly")
            return
        self.is_read_only = not self.is_read_only
        what = "not allowed" if self.is_read_only else "allowed"
        self.say(f"changes are {what} now")

    def unsettled(self) -> list[str]:
        """What to tell an operator who leaves before the outcome of an order is known."""
        return [
            f"{told(call)}: {call.command}"
            for call in self.calls
            if call.phase in (Phase.SENT, Phase.UNKNOWN)
        ]

    def _follow_orders(self) -> None:
        """Takes the controller's answers, sends the orders that are due, and says how orders
        ended."""
        for call in self.orders.pump(self.source.now_s(), self.locked(), self.state.status):
            if self._is_told_by_another(call):
                continue
            back = f"  ({self.key_of('undo')} takes it back)" if call.can_undo else ""
            tone = TONES.get(call.phase, Tone.PLAIN)
            self.say(f"{told(call)}{back}", tone, stays=True)

    def _is_told_by_another(self, call: Call) -> bool:
        """Whether a later undrain of this session ended the drain, and says so itself."""
        drained = {each.instance_id for each in call.awaits}
        return call.phase is Phase.FAILED and any(
            isinstance(other.order, Undrain)
            and other.order.instance_id in drained
            and other.call_id > call.call_id
            for other in self.calls
        )


class Message:
    """The last message on the bottom line, which stays there for MESSAGE_S."""

    def __init__(
        self,
        set_timer: "Callable[[float, Callable[[], None]], Timer]",
        redraw: Callable[[], None],
    ) -> None:
        """`set_timer` calls back after a number of seconds; `redraw` is called when the line
        changes."""
        self._set_timer = set_timer
        self._redraw = redraw
        self._timer: Timer | None = None
        self.line: Line = ()
        self.goes_with_a_key = False
        """Whether the message answers the last key, and goes away with the next one."""

    def show(self, text: str, tone: Tone, *, stays: bool) -> None:
        self.line = (Span(f" {text}", tone),)
        self.goes_with_a_key = tone is Tone.BAD and not stays
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._set_timer(MESSAGE_S, self.clear)
        self._redraw()

    def clear(self) -> None:
        self.line, self.goes_with_a_key = (), False
        self._redraw()
