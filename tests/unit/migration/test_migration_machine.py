"""The simulated cluster driven by Hypothesis, which chooses each message's fate and shrinks
failures to a few steps.

Nothing happens here by itself: messages, bytes and deaths wait until a rule lets them happen, in
any order, twice, or never. Messages between an instance and the frontend are a stream.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.core.load.snapshot import InstanceRef
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.core.settings import ReplayConfig
from controller.runtime.messages.members import (
    Directory,
    EngineInfo,
    FrontendLimits,
    InstanceEntry,
    InstanceLost,
)
from controller.runtime.messages.requests import DispatchAsked, Dispatched
from tools.fault_histories.simulated_controller import ME
from tools.fault_histories.simulated_engine import Asked, SimulatedEngine
from tools.fault_histories.simulated_frontend import Frontend
from tools.fault_histories.simulated_instance import Instance
from tools.fault_histories.simulated_messages import (
    CONTROLLER,
    TIMING,
    Copy,
    Expected,
    MoveEnvelope,
)
from tools.fault_histories.simulation import leftovers

IDS = ("a", "b", "c")
INSTANCES = st.sampled_from(IDS)
NUM_BLOCKS = 24
MAX_REQUESTS, MAX_DISTURBED, MAX_DEATHS, MAX_MOVES = 5, 4, 2, 3
Delivery = tuple[InstanceRef, str, Any]
"""Sender, the receiver's address, and what is said."""
FRONTEND = "f"


@dataclass
class Bytes:
    """A stage under way: first the source has sent it, then the destination has it."""

    copy: Copy
    began_s: float
    contents: list[Any] | None = None


class Wires:
    """The network, with everything still in it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.trickles = False
        """Stages that are slow, instead of stuck."""
        self.message: list[Delivery] = []
        self.streams: dict[tuple[Any, Any], deque[Delivery]] = {}
        self.bytes: dict[str, Bytes] = {}
        self.expected: dict[str, tuple[str, Expected]] = {}
        self.cancelled: list[tuple[str, str]] = []
        self.asked: list[DispatchRequested] = []
        """Of the controller, which does nothing else here."""
        self.timers: list[tuple[float, str, Callable[[], None]]] = []
        self.outcomes: dict[str, list[str]] = {}

    def send(
        self,
        sender: InstanceRef,
        address: str,
        body: Any,
        *,
        droppable: bool = False,  # noqa: ARG002  # of the Network
    ) -> None:
        if address == CONTROLLER:
            self.asked += [body.asked] if isinstance(body, DispatchAsked) else []
        elif isinstance(body, MoveEnvelope):
            self.message.append((sender, address, body))
        else:
            stream = self.streams.setdefault((sender.address, address), deque())
            stream.append((sender, address, body))

    def later(self, address: str, delay_s: float, do: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, address, do))

    def uniform(self, least: float, most: float) -> float:
        return min(least, most)

    def ended(self, request_id: str, outcome: str, _why: str = "") -> None:
        self.outcomes[request_id].append(outcome)

    def copy(self, copy: Copy) -> None:
        self.bytes[copy.stage_id] = Bytes(copy, self.now_s)

    def expect(self, owner: str, expected: Expected) -> None:
        self.expected[expected.stage_id] = (owner, expected)

    def stalled_s(self, stage_id: str) -> float:
        each = self.bytes.get(stage_id)
        if each is None or each.contents is not None or self.trickles:
            return 0.0
        return self.now_s - each.began_s

    def cancel(self, owner: str, stage_id: str) -> None:
        self.cancelled.append((owner, stage_id))

    def note(self, *what: Any) -> None:
        pass


class MigrationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wires = Wires()
        self.frontend = Frontend(FRONTEND, "1", self.wires)
        self.frontend.receive(ME, FrontendLimits(replay=ReplayConfig(1)))
        self.listed: dict[str, InstanceRef] = {}
        """The instances that the frontend takes for living."""
        self.instances: dict[str, Instance] = {}
        self.inboxes: dict[str, list[Callable[[], None]]] = {}
        """Of those that are paused: what came meanwhile."""
        self.unheard: list[tuple[str, InstanceRef]] = []
        """(who has not heard yet, who died)"""
        self.num_engines = 0
        self.num_moves = 0
        self.num_requests = 0
        self.num_disturbed = 0
        self.num_deaths = 0

    @initialize(data=st.data(), num_requests=st.integers(1, 3))
    def start(self, data: st.DataObject, num_requests: int) -> None:
        for instance_id in IDS:
            self._start(instance_id, 1)
        self._list_all()
        for _ in range(num_requests):
            self._submit(data)
        self.all_goes_well(2, 0.0)
        for where, request_id in self._movable():
            self._move(where, request_id, data.draw(INSTANCES))

    def _start(self, instance_id: str, incarnation: int) -> None:
        self.num_engines += 1
        engine = SimulatedEngine(self.num_engines, NUM_BLOCKS)
        instance = Instance(instance_id, str(incarnation), engine, self.wires, MAX_MOVES)
        instance.incarnation, instance.phase = incarnation, "active"
        self.instances[instance_id] = instance

    def _list_all(self) -> None:
        unheard = {dead.instance_id for who, dead in self.unheard if who == FRONTEND}
        for instance_id, instance in self.instances.items():
            if instance_id not in unheard:
                self.listed[instance_id] = instance.ref
        info = EngineInfo(128, NUM_BLOCKS + 1, 4, ("generate",))
        entries = tuple(
            InstanceEntry(*each.key, each.address, info, None) for each in self.listed.values()
        )
        self.frontend.receive(ME, Directory(entries, "c"))

    def _answer(self, to: InstanceRef) -> None:
        """What the frontend has asked: its requests go there."""
        asked, self.wires.asked = self.wires.asked, []
        for each in asked:
            dispatch = Dispatch(each.request_id, FRONTEND, *to.key, seq=1)
            self.frontend.receive(ME, Dispatched(dispatch))
        self._wake()

    def _wake(self) -> None:
        """What is due by now."""
        while due := [each for each in self.wires.timers if each[0] <= self.wires.now_s]:
            self.wires.timers.remove(due[0])
            _, address, do = due[0]
            if address == self.frontend.address:
                do()
            else:
                self._there(address, do)

    # -- requests and moves ----------------------------------------------------------------

    @precondition(lambda self: self.num_requests < MAX_REQUESTS)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self._submit(data)

    def _submit(self, data: st.DataObject) -> None:
        to = data.draw(INSTANCES)
        self.num_requests += 1
        number = self.num_requests
        asked = Asked(
            f"r{number}",
            num_prompt_tokens=data.draw(st.integers(1, 14)),
            max_output_tokens=data.draw(st.integers(8, 50)),
            seeded=data.draw(st.booleans()),
            rank=data.draw(st.integers(0, 1)),
            arrival=number,
        )
        self.wires.outcomes[asked.request_id] = []
        self.frontend.submit(asked)
        self._answer(self.listed[to])

    @precondition(lambda self: self._movable())
    @rule(data=st.data(), to=INSTANCES)
    def move(self, data: st.DataObject, to: str) -> None:
        where, request_id = data.draw(st.sampled_from(self._movable()))
        self._move(where, request_id, to)

    def _move(self, where: str, request_id: str, to: str) -> None:
        if to != where:
            self.num_moves += 1
            destination = self.instances[to].ref
            self.instances[where].begin_move(f"m{self.num_moves}", request_id, destination)

    def _movable(self) -> list[tuple[str, str]]:
        return [
            (where, request_id)
            for where, instance in self.instances.items()
            for request_id in sorted(instance.live)
            if where not in self.inboxes
        ]

    @precondition(lambda self: self.frontend.routes and self.num_disturbed < MAX_DISTURBED)
    @rule(data=st.data(), what=st.sampled_from(["leave", "rank", "evict", "cancel"]))
    def disturb(self, data: st.DataObject, what: str) -> None:
        """Its client leaves or wants it sooner, or its instance is short of blocks, or nobody
        wants the move any more."""
        self.num_disturbed += 1
        request_id = data.draw(st.sampled_from(sorted(self.frontend.routes)))
        owner = self.frontend.routes[request_id].ownership.owner
        instance = self.instances[owner.instance_id]
        match what:
            case "leave":
                self.frontend.client_leaves(request_id)
            case "rank":
                rank = data.draw(st.integers(0, 2))
                self._there(owner.address, lambda: instance.change_rank(request_id, rank))
            case "evict":
                instance.evict_one()
            case "cancel":
                self._there(owner.address, lambda: instance.cancel_moves(list(instance.outgoing)))

    # -- instances -----------------------------------------------------------------------

    @rule(where=INSTANCES, engine=st.booleans(), loop=st.booleans())
    def turn(self, where: str, engine: bool, loop: bool) -> None:
        """Its engine's thread, or its loop, or both in this order."""
        if where in self.inboxes:
            return
        if engine:
            self.instances[where].engine_turn()
        if loop:
            self.instances[where].loop_turn()

    @rule(where=INSTANCES)
    def pause_or_go_on(self, where: str) -> None:
        if where in self.inboxes:
            self._go_on(where)
        else:
            self.inboxes[where] = []

    def _go_on(self, where: str) -> None:
        for do in self.inboxes.pop(where):
            do()

    @precondition(lambda self: self.num_deaths < MAX_DEATHS)
    @rule(where=INSTANCES, unsent=st.booleans())
    def crash(self, where: str, unsent: bool) -> None:
        """`unsent`: what it said last did not get out."""
        self.num_deaths += 1
        dead = self.instances[where].ref
        self.inboxes.pop(where, None)
        self.unheard += [(each, dead) for each in (*IDS, FRONTEND) if each != where]
        if unsent:
            self.wires.message = [each for each in self.wires.message if each[0] != dead]
            for way in [way for way in self.wires.streams if way[0] == dead.address]:
                del self.wires.streams[way]
        self._start(where, dead.incarnation + 1)

    @precondition(lambda self: self.unheard)
    @rule(data=st.data())
    def hear_of_death(self, data: st.DataObject) -> None:
        self._hear_of_death(data.draw(st.integers(0, len(self.unheard) - 1)))

    def _hear_of_death(self, index: int) -> None:
        where, dead = self.unheard.pop(index)
        if where == FRONTEND:
            self.frontend.receive(ME, InstanceLost(*dead.key))
            self._list_all()
            return
        here = self.instances[where]
        self._there(here.address, lambda: self._lose_peer(here, dead))

    def _lose_peer(self, here: Instance, dead: InstanceRef) -> None:
        here.address_lost(dead.address)
        for stage_id, each in list(self.wires.bytes.items()):
            if each.copy.source.address == here.address and each.copy.destination == dead:
                self._fail_bytes(stage_id)
        for stage_id, (owner, _) in list(self.wires.expected.items()):
            source = here.incoming[stage_id.split("/")[0]].source if owner == here.address else None
            if source == dead:
                self._fail_expected(stage_id)

    # -- the network -----------------------------------------------------------------------

    @precondition(lambda self: self.wires.message)
    @rule(data=st.data(), fate=st.sampled_from(["come", "come", "come twice", "be lost"]))
    def one_message(self, data: st.DataObject, fate: str) -> None:
        """Any one."""
        message = self.wires.message
        index = data.draw(st.integers(0, len(message) - 1))
        if fate == "come twice":
            self._deliver(message[index])
        elif fate == "come":
            self._deliver(message.pop(index))
        else:
            del message[index]

    @precondition(lambda self: self.wires.message)
    @rule(number=st.integers(1, 4))
    def messages_in_order(self, number: int) -> None:
        for _ in range(min(number, len(self.wires.message))):
            self._deliver(self.wires.message.pop(0))

    @precondition(lambda self: any(self.wires.streams.values()))
    @rule(data=st.data(), number=st.integers(1, 8))
    def deliver_stream(self, data: st.DataObject, number: int) -> None:
        ways = [way for way, stream in self.wires.streams.items() if stream]
        self._deliver_stream(data.draw(st.sampled_from(ways)), number)

    @precondition(lambda self: self.wires.bytes)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def copy(self, data: st.DataObject, fails: bool) -> None:
        self._copy(data.draw(st.sampled_from(sorted(self.wires.bytes))), fails)

    @precondition(lambda self: self.wires.cancelled)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self._let_go(data.draw(st.integers(0, len(self.wires.cancelled) - 1)))

    @rule(rounds=st.integers(1, 4), seconds=st.sampled_from([0.0, 0.1]))
    def all_goes_well(self, rounds: int, seconds: float) -> None:
        """For a while: or few moves would come as far as COMMIT."""
        for _ in range(rounds):
            self._good_turn(seconds)

    @rule(seconds=st.sampled_from([0.3, 0.6, 1.0, 2.1, 5.1]), trickles=st.booleans())
    def pass_time(self, seconds: float, trickles: bool = False) -> None:
        self.wires.now_s += seconds
        self.wires.trickles = trickles
        self.frontend.tick()
        self._list_all()
        self._answer(list(self.listed.values())[-1])

    def _deliver(self, delivery: Delivery) -> None:
        sender, address, body = delivery
        if address == self.frontend.address:
            self.frontend.receive(sender, body)
        else:
            here = self.instances[address.split("#")[0]]
            self._there(address, lambda: here.receive(sender, body))
        self._wake()

    def _deliver_stream(self, way: tuple[Any, Any], number: int) -> None:
        stream = self.wires.streams[way]
        for _ in range(min(number, len(stream))):
            self._deliver(stream.popleft())

    def _copy(self, stage_id: str, fails: bool) -> None:
        """Sent, the first time; received, the second time."""
        each = self.wires.bytes[stage_id]
        source, destination = each.copy.source, each.copy.destination
        if self._is_dead(source.address) or self._is_dead(destination.address):
            del self.wires.bytes[stage_id]
        elif each.contents is None:
            if fails or stage_id not in self.wires.expected:
                self._fail_bytes(stage_id)
                return
            each.contents = each.copy.read()
            self._there(source.address, lambda: each.copy.sent(each.copy.num_blocks))
        elif fails:
            del self.wires.bytes[stage_id]
            self._there(destination.address, lambda: self._fail_expected(stage_id))
        else:
            del self.wires.bytes[stage_id]
            self._there(destination.address, lambda: self._take(stage_id, each.contents or []))

    def _take(self, stage_id: str, contents: list[Any]) -> None:
        known = self.wires.expected.pop(stage_id, None)
        if known is not None:
            known[1].write(contents)
            known[1].received(len(contents))

    def _fail_bytes(self, stage_id: str) -> None:
        each = self.wires.bytes.pop(stage_id)
        if each.contents is None:
            self._there(each.copy.source.address, lambda: each.copy.sent(None))
        self._there(each.copy.destination.address, lambda: self._fail_expected(stage_id))

    def _fail_expected(self, stage_id: str) -> None:
        known = self.wires.expected.pop(stage_id, None)
        if known is not None:
            known[1].received(None)

    def _let_go(self, index: int) -> None:
        owner, stage_id = self.wires.cancelled.pop(index)
        each = self.wires.bytes.get(stage_id)
        if each is not None and each.copy.source.address == owner and each.contents is None:
            del self.wires.bytes[stage_id]
            self._there(owner, lambda: each.copy.sent(None))
        elif stage_id in self.wires.expected and self.wires.expected[stage_id][0] == owner:
            self._there(owner, lambda: self._fail_expected(stage_id))

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def nothing_is_broken(self) -> None:
        for instance in self.instances.values():
            instance.check()

    @invariant()
    def one_owner_is_read(self) -> None:
        for request_id, route in self.frontend.routes.items():
            epoch = route.ownership.order.epoch
            owners = [
                instance.ref.key
                for instance in self.instances.values()
                if request_id in instance.live
                and instance.live[request_id].epoch == epoch
                and request_id in instance.engine.requests
                and instance.engine.requests[request_id].place != "suspended"
            ]
            assert len(owners) <= 1, f"{request_id} has two owners: {owners}"

    def teardown(self) -> None:
        """All is healed: soon nothing is left of any move, and each request has one end."""
        if not self.instances:
            return
        for where in sorted(self.inboxes):
            self._go_on(where)
        while self.unheard:
            self._hear_of_death(0)
        seconds_left = 4 * TIMING.lease_s + TIMING.memory_s
        while seconds_left > 0:
            seconds_left -= 0.3
            self._good_turn(0.3)
        for instance in self.instances.values():
            assert instance.quiet, f"left on {instance.ref.key}: {leftovers(instance)}"
            assert instance.engine.num_free == NUM_BLOCKS
        for request_id, outcomes in self.wires.outcomes.items():
            assert len(outcomes) == 1, f"{request_id} ended so: {outcomes}"
            assert outcomes in (["finished"], ["aborted"]) or self.num_deaths, (
                f"{request_id} failed"
            )

    def _good_turn(self, seconds: float) -> None:
        self.pass_time(seconds)
        for _ in range(len(self.wires.message)):
            self._deliver(self.wires.message.pop(0))
        for way in list(self.wires.streams):
            self._deliver_stream(way, len(self.wires.streams[way]))
        for stage_id in list(self.wires.bytes):
            self._copy(stage_id, fails=False)
        while self.wires.cancelled:
            self._let_go(0)
        for where in IDS:
            self.turn(where, engine=True, loop=True)
        self.nothing_is_broken()

    # ------------------------------------------------------------------------------------

    def _there(self, address: str, do: Callable[[], None]) -> None:
        """Unless that process is dead; when it goes on, if it is paused."""
        if self._is_dead(address):
            return
        instance_id = address.split("#")[0]
        if instance_id in self.inboxes:
            self.inboxes[instance_id].append(do)
        else:
            do()

    def _is_dead(self, address: str) -> bool:
        return self.instances[address.split("#")[0]].address != address


MigrationMachine.TestCase.settings = settings(stateful_step_count=60)
TestMigration = MigrationMachine.TestCase
