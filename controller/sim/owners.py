"""The frontend in virtual time, as far as moves need one: who owns each request that moves.

What instances tell it changes nothing as long as all of them live. So it is noted with the time at
which it is heard, and read when an instance has died or a source asks for its request back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.core.instance_ref import InstanceRef
from controller.core.migration import destination
from controller.core.migration.ownership import Loss, Ownership
from controller.core.token_order import Epoch
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance
from controller.sim.request_run import RequestRun


@dataclass(slots=True)
class _Known:
    """`source`: where the request was first. `notes`: (when it is heard, who owns the request now
    or soon, in which hop, whether it does now), in the order of the times."""

    run: RequestRun
    source: InstanceRef
    notes: list[tuple[float, InstanceRef, int, bool]]
    made: Ownership[None] | None = None
    """None until it is needed."""

    @property
    def ownership(self) -> Ownership[None]:
        if self.made is None:
            self.made = Ownership(self.source)
        return self.made


class Owners:
    """`on_lost` is told a request that no instance has any more."""

    def __init__(
        self, events: EventQueue, message_s: float, on_lost: Callable[[RequestRun], None]
    ) -> None:
        self._events = events
        self._message_s = message_s
        self._on_lost = on_lost
        self._known: dict[str, _Known] = {}
        """Those that moved or may have moved, by request id, until they end."""

    # -- what instances tell ---------------------------------------------------------------

    def announce(self, run: RequestRun, source: InstanceRef, to: InstanceRef, hop: int) -> None:
        """`to` may own the request soon, in `hop`."""
        known = self._known.get(run.request.request_id)
        if known is None:
            known = self._known[run.request.request_id] = _Known(run, source, [])
        known.notes.append((self._events.now_s + self._message_s, to, hop, False))

    def runs_at(self, run: RequestRun, owner: InstanceRef, hop: int) -> None:
        """The request is at `owner`, in `hop`; its next token there says the same. Nothing is done
        for a request that was never announced."""
        if known := self._known.get(run.request.request_id):
            known.notes.append((self._events.now_s + self._message_s, owner, hop, True))

    def confirm(self, run: RequestRun, owner: SimInstance, hop: int) -> None:
        """As `runs_at`, and the owner hears whether its request is read from there."""
        self.runs_at(run, owner.ref, hop)
        self._after_a_message(lambda: self._confirm(run, owner, Epoch(0, hop)))

    def not_moved(self, run: RequestRun, hop: int) -> None:
        """A destination that was asked does not have the request in `hop`, and never will."""
        self._after_a_message(lambda: self._disowned(run, Epoch(0, hop)))

    def fence(
        self, run: RequestRun, source: InstanceRef, hop: int, then: Callable[[bool], None]
    ) -> None:
        """The source wants the request back in `hop`; `then` gets whether it has it, two messages
        later. A source that was taken for dead gets no answer."""

        def ask() -> None:
            known = self._read(run.request.request_id)
            fenced = known.ownership.fence(source, Epoch(0, hop)) if known is not None else None
            if fenced is not None:
                self._after_a_message(lambda: then(fenced))

        self._after_a_message(ask)

    def ended(self, request_id: str) -> None:
        self._known.pop(request_id, None)

    # -- dead instances --------------------------------------------------------------------

    def died(
        self, dead: SimInstance, had: Iterable[RequestRun], instances: Iterable[SimInstance]
    ) -> list[RequestRun]:
        """Which requests are lost with it, of those that it had and of those that may have been
        there. `instances`: those that live."""
        lost = [run for run in had if run.request.request_id not in self._known]
        living = {each.ref: each for each in instances}
        for request_id in list(self._known):
            known = self._read(request_id)
            assert known is not None
            match known.ownership.lost(*dead.ref.key):
                case Loss.REQUEST:
                    lost.append(known.run)
                case Loss.ASK:
                    assert known.ownership.to_ask is not None
                    ref, epoch = known.ownership.to_ask
                    self._ask(known.run, living[ref], epoch)
        return lost

    def _ask(self, run: RequestRun, asked: SimInstance, epoch: Epoch) -> None:
        def ask() -> None:
            if not asked.alive:
                return
            request_id = run.request.request_id
            if arriving := asked.moves.asked_about(request_id, epoch):
                arriving.handle(destination.OwnerAsked())
            elif asked.runs.get(request_id) is run and run.hop >= epoch.hop:
                self.confirm(run, asked, run.hop)
            else:
                self.not_moved(run, epoch.hop)

        self._after_a_message(ask)

    # --------------------------------------------------------------------------------------

    def _confirm(self, run: RequestRun, owner: SimInstance, epoch: Epoch) -> None:
        known = self._read(run.request.request_id)
        if known is not None and not known.ownership.is_read_from(owner.ref, epoch):
            return

        def confirmed() -> None:
            arriving = owner.moves.asked_about(run.request.request_id, epoch)
            if owner.alive and arriving is not None and arriving.machine.over:
                arriving.handle(destination.OwnerConfirmed())

        self._after_a_message(confirmed)

    def _disowned(self, run: RequestRun, epoch: Epoch) -> None:
        known = self._read(run.request.request_id)
        if known is not None and known.ownership.disowned(epoch):
            self._on_lost(run)

    def _read(self, request_id: str) -> _Known | None:
        """What is known of the request, with all that was heard until now."""
        known = self._known.get(request_id)
        if known is None:
            return None
        notes, ownership = known.notes, known.ownership
        while notes and notes[0][0] <= self._events.now_s:
            _, owner, hop, is_there = notes.pop(0)
            if is_there:
                ownership.moved(owner, Epoch(0, hop), 0)
            else:
                ownership.announce(owner, Epoch(0, hop))
        ownership.check()
        return known

    def _after_a_message(self, action: Callable[[], None]) -> None:
        self._events.after(self._message_s, action)
