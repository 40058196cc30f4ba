"""The fleet in virtual time: launches, drains and removes as the core's auto-scaler orders.

An instance costs from its launch until it is gone, including the time in which it starts or drains.
No instance fails to start, and a killed instance does not come back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from controller.core.fleet.autoscaler import (
    ACTOR,
    WARM_S,
    Autoscaler,
    Drain,
    Event,
    Instruction,
    Keep,
    Launch,
    LeavingInstance,
    LoadSeen,
    LookAtLoad,
    ScaleDone,
    ScaleRefused,
    SettingsChanged,
    Tell,
    Ticked,
)
from controller.core.migration.handover import HandoverView
from controller.core.settings import AutoscaleConfig
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance

COLD_START_S = 30.0
"""The time from the launch of an instance until it serves. It was not published for the paper's
cluster, whose instances read their weights anew: 13.5 GB in fp16, 27 s at 0.5 GB/s."""
LOOK_AGAIN_S = 0.1


class Scalable(Protocol):
    """What the fleet needs of a cluster."""

    def new_id(self) -> str:
        """Returns the id for one more instance."""

    def launch(self, instance_id: str) -> None:
        """Adds the instance, which serves from now on."""

    def drain(self, instance: SimInstance) -> None:
        """Begins to drain the instance: it gets no more requests, and the requests that it has
        leave or end."""

    def keep(self, instance: SimInstance) -> None:
        """Ends the instance's drain."""

    def hand_over(
        self, instance: SimInstance, limit_s: float, then: Callable[[HandoverView], None]
    ) -> None:
        """Lets the instance hand what it has cached over to the others."""

    def remove(self, instance: SimInstance) -> None:
        """Removes the instance, which must be empty."""

    def is_empty(self, instance: SimInstance) -> bool:
        """Whether the instance has neither a request nor a move."""

    def waiting_demands(self) -> Sequence[int]:
        """The demands, in blocks, of the requests that wait at the controller."""

    @property
    def waiting_work_s(self) -> float:
        """How long one instance would compute the prompts of those requests."""


class SimFleet:
    """The instances of a cluster with auto-scaling. `leaving`: the instance that drains in order to
    be removed."""

    def __init__(
        self,
        config: AutoscaleConfig,
        cluster: Scalable,
        instances: Mapping[str, SimInstance],
        events: EventQueue,
        new_capacity_blocks: int,
        block_size: int,
    ) -> None:
        self.num_launched = 0
        self.num_removed = 0
        self.leaving: SimInstance | None = None
        self._cold_start_s = COLD_START_S if config.cold_start_s is None else config.cold_start_s
        self._cluster = cluster
        self._instances = instances
        self._events = events
        self._new_capacity_blocks = new_capacity_blocks
        self._block_size = block_size
        self._starting: list[str] = []
        """The instances that are launched and do not serve yet."""
        self._looks_again = False
        self._handing_over: SimInstance | None = None
        """The instance that drains, once it is empty and hands over what it has cached."""
        self.machine = Autoscaler("sim", SettingsChanged(replace(config, mode="on"), float("inf")))
        self._due_s: float | None = None
        """When the next check is, as it is scheduled in the queue of events."""

    def begin(self) -> None:
        self._tick()

    @property
    def num_starting(self) -> int:
        return len(self._starting)

    def on_changed(self, instance: SimInstance) -> None:
        """Called when the instance is between two steps and has changed."""
        if instance is self.leaving:
            self._let_go()

    def on_died(self, instance: SimInstance) -> None:
        if instance is self.leaving:
            self.leaving = self._handing_over = None

    # -- what it sees --------------------------------------------------------------------

    def _tick(self) -> None:
        """Ticks the machine only when a check is due, as all starts take a known time here and none
        fails."""
        staying = self._staying()
        serving = {each.instance_id: 0.0 for each in staying}
        num_schedulable = sum(not each.draining for each in staying)
        self._tell(Ticked([*serving, *self._starting], serving, (), num_schedulable))

    def _look(self) -> LoadSeen:
        waiting, leaving = self._cluster.waiting_demands(), self.leaving
        return LoadSeen(
            self._events.now_s,
            [each.status() for each in self._staying() if not each.draining],
            self._block_size,
            self._new_capacity_blocks,
            num_waiting=len(waiting),
            waiting_demand_blocks=sum(waiting),
            waiting_work_s=self._cluster.waiting_work_s,
            leaving=() if leaving is None else (LeavingInstance(leaving.instance_id, ACTOR),),
        )

    def _staying(self) -> list[SimInstance]:
        leaving = self.leaving
        return [each for each in self._instances.values() if each.alive and each is not leaving]

    # -- what is done --------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        instructions = self.machine.handle(event, self._events.now_s)
        due_s = self.machine.next_check_s
        if due_s is not None and due_s != self._due_s:
            self._due_s = due_s
            self._events.at(due_s, self._tick)
        for instruction in instructions:
            answer = self._carry_out(instruction)
            if answer is not None:
                self._tell(answer)

    def _carry_out(self, instruction: Instruction) -> Event | None:
        match instruction:
            case LookAtLoad():
                return self._look()
            case Launch(number=number):
                for _ in range(number):
                    self._launch()
            case Drain(instance_ids=ids):
                (instance_id,) = ids
                self.leaving = self._instances[instance_id]
                self._cluster.drain(self.leaving)
            case Keep():
                if self.leaving is None:
                    return ScaleRefused("it is gone already")
                kept, self.leaving, self._handing_over = self.leaving, None, None
                self._cluster.keep(kept)
            case Tell():
                return None
        return ScaleDone()

    def _launch(self) -> None:
        self.num_launched += 1
        instance_id = self._cluster.new_id()
        self._starting.append(instance_id)

        def serve() -> None:
            self._starting.remove(instance_id)
            self._cluster.launch(instance_id)

        self._events.after(self._cold_start_s, serve)

    def _let_go(self) -> None:
        leaving = self.leaving
        if leaving is None or leaving.runs:
            return
        if self._handing_over is leaving:
            return
        if self._cluster.is_empty(leaving):
            self._handing_over = leaving
            self._cluster.hand_over(leaving, WARM_S, partial(self._handed_over, leaving))
        elif not self._looks_again:
            # A move still holds something on the instance. Not every end of a move reaches both
            # instances.
            self._looks_again = True
            self._events.after(LOOK_AGAIN_S, self._look_again)

    def _handed_over(self, instance: SimInstance, _view: HandoverView) -> None:
        if self._handing_over is instance:
            self.leaving = self._handing_over = None
            self.num_removed += 1
            self._cluster.remove(instance)

    def _look_again(self) -> None:
        self._looks_again = False
        self._let_go()
