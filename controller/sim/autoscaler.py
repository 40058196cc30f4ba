"""Auto-scaling in virtual time: `core.fleet` decides, the cluster launches and drains.

An instance costs from its launch until it is gone: while it starts, and while it drains.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from controller.core.fleet.autoscale_config import AutoscaleConfig
from controller.core.fleet.autoscaler import ScaleState, decide
from controller.core.fleet.outlook import ClusterLoad
from controller.sim.event_queue import EventQueue
from controller.sim.instance import SimInstance

COLD_START_S = 30.0
"""From the launch of an instance until it serves. Nobody has published it for the paper's cluster,
whose instances read their weights anew: 13.5 GB in fp16, 27 s at 0.5 GB/s."""
LOOK_AGAIN_S = 0.1


class Scalable(Protocol):
    """What auto-scaling asks of a cluster."""

    def launch(self) -> None:
        """One more instance serves from now on."""

    def drain(self, instance: SimInstance) -> None:
        """It gets no more requests; those that it has leave or end."""

    def keep(self, instance: SimInstance) -> None:
        """It drains no more."""

    def remove(self, instance: SimInstance) -> None:
        """It is empty, and gone from now on."""

    def is_empty(self, instance: SimInstance) -> bool:
        """Neither a request nor a move of one is there."""

    def held_demands(self) -> Sequence[int]:
        """Of the requests that wait at the controller, in blocks."""


class SimAutoscaler:
    """`num_starting` are launched and do not serve yet. `leaving` drains in order to go."""

    def __init__(
        self,
        config: AutoscaleConfig,
        cluster: Scalable,
        instances: Mapping[str, SimInstance],
        events: EventQueue,
        new_capacity_blocks: int,
        block_size: int,
    ) -> None:
        self.num_starting = 0
        self.num_launched = 0
        self.num_removed = 0
        self.leaving: SimInstance | None = None
        self._config = config
        self._cluster = cluster
        self._instances = instances
        self._events = events
        self._new_capacity_blocks = new_capacity_blocks
        self._block_size = block_size
        self._looks_again = False
        self._state = ScaleState.first(config, events.now_s)
        events.at(self._state.next_check_s, self._check)

    def load(self) -> ClusterLoad:
        """What a check sees now."""
        leaving = self.leaving
        alive = [each for each in self._instances.values() if each.alive and each is not leaving]
        schedulable = [each.status() for each in alive if not each.draining]
        held = self._cluster.held_demands()
        return ClusterLoad(
            schedulable,
            self._block_size,
            self._new_capacity_blocks,
            num_held=len(held),
            held_demand_blocks=sum(held),
            num_starting=self.num_starting,
            num_unavailable=len(alive) - len(schedulable),
            action_pending=self.num_starting > 0,
            leaving_id=None if leaving is None else leaving.instance_id,
        )

    def on_changed(self, instance: SimInstance) -> None:
        """The instance is between two steps."""
        if instance is self.leaving:
            self._let_go()

    def on_died(self, instance: SimInstance) -> None:
        if instance is self.leaving:
            self.leaving = None

    def _check(self) -> None:
        decision, self._state = decide(self._config, self._state, self.load(), self._events.now_s)
        self._events.at(self._state.next_check_s, self._check)
        assert decision is not None, "a check came too early"
        for _ in range(decision.num_added):
            self.num_starting += 1
            self.num_launched += 1
            cold_start_s = self._config.cold_start_s
            self._events.after(COLD_START_S if cold_start_s is None else cold_start_s, self._serve)
        if decision.removed_id is not None:
            self.leaving = self._instances[decision.removed_id]
            self._cluster.drain(self.leaving)
        elif decision.kept_id is not None and self.leaving is not None:
            kept, self.leaving = self.leaving, None
            self._cluster.keep(kept)

    def _serve(self) -> None:
        self.num_starting -= 1
        self._cluster.launch()

    def _let_go(self) -> None:
        leaving = self.leaving
        if leaving is None or leaving.runs:
            return
        if self._cluster.is_empty(leaving):
            self.leaving = None
            self.num_removed += 1
            self._cluster.remove(leaving)
        elif not self._looks_again:
            # A move holds something there. Not all ways in which one ends reach its other end.
            self._looks_again = True
            self._events.after(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self._let_go()
