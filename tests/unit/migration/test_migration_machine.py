"""The simulated cluster in the hands of Hypothesis, which chooses each message's fate and shrinks
what goes wrong to a few steps.

Here nothing happens by itself: messages, bytes and deaths wait until a rule lets them happen, in
whatever order, twice, or never. What goes between an instance and the frontend is a stream.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controller.core.instance_ref import InstanceRef
from tests.unit.migration.simulated_engine import Asked, SimulatedEngine
from tests.unit.migration.simulated_frontend import Frontend
from tests.unit.migration.simulated_instance import Instance
from tests.unit.migration.simulated_messages import FRONTEND, TIMING, Copy, Expected, MoveEnvelope
from tests.unit.migration.simulation import leftovers

IDS = ("a", "b", "c")
INSTANCES = st.sampled_from(IDS)
NUM_BLOCKS = 24
MAX_REQUESTS, MAX_DISTURBED, MAX_DEATHS, MAX_MOVES = 5, 4, 2, 3
Delivery = tuple[InstanceRef, InstanceRef, Any]


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
        self.expected: dict[str, tuple[InstanceRef, Expected]] = {}
        self.cancelled: list[tuple[InstanceRef, str]] = []
        self.choose: Callable[[], InstanceRef | None] = lambda: None

    def send(self, sender: InstanceRef, receiver: InstanceRef, body: Any) -> None:
        if isinstance(body, MoveEnvelope):
            self.message.append((sender, receiver, body))
        else:
            stream = self.streams.setdefault((sender.key, receiver.key), deque())
            stream.append((sender, receiver, body))

    def copy(self, copy: Copy) -> None:
        self.bytes[copy.stage_id] = Bytes(copy, self.now_s)

    def expect(self, owner: InstanceRef, expected: Expected) -> None:
        self.expected[expected.stage_id] = (owner, expected)

    def stalled_s(self, stage_id: str) -> float:
        each = self.bytes.get(stage_id)
        if each is None or each.contents is not None or self.trickles:
            return 0.0
        return self.now_s - each.began_s

    def cancel(self, owner: InstanceRef, stage_id: str) -> None:
        self.cancelled.append((owner, stage_id))

    def note(self, *what: Any) -> None:
        pass


class MigrationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wires = Wires()
        self.wires.choose = self._choose
        self.frontend = Frontend(self.wires, max_replays=1)
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
        for _ in range(num_requests):
            self._submit(data)
        self.all_goes_well(2, 0.0)
        for where, request_id in self._movable():
            self._move(where, request_id, data.draw(INSTANCES))

    def _start(self, instance_id: str, incarnation: int) -> None:
        self.num_engines += 1
        ref = InstanceRef(instance_id, incarnation, f"{instance_id}/{incarnation}")
        engine = SimulatedEngine(self.num_engines, NUM_BLOCKS)
        self.instances[instance_id] = Instance(ref, engine, self.wires, MAX_MOVES)

    # -- requests and moves ----------------------------------------------------------------

    @precondition(lambda self: self.num_requests < MAX_REQUESTS)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self._submit(data)

    def _submit(self, data: st.DataObject) -> None:
        to = self.instances[data.draw(INSTANCES)].ref
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
        self.frontend.submit(asked, to)

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
                self._there(owner, lambda: instance.change_rank(request_id, rank))
            case "evict":
                instance.evict_one()
            case "cancel":
                self._there(owner, lambda: instance.cancel_moves(list(instance.outgoing)))

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
        self.unheard += [(each, dead) for each in (*IDS, FRONTEND.instance_id) if each != where]
        if unsent:
            self.wires.message = [each for each in self.wires.message if each[0] != dead]
            for way in [way for way in self.wires.streams if way[0] == dead.key]:
                del self.wires.streams[way]
        self._start(where, dead.incarnation + 1)

    @precondition(lambda self: self.unheard)
    @rule(data=st.data())
    def hear_of_death(self, data: st.DataObject) -> None:
        self._hear_of_death(data.draw(st.integers(0, len(self.unheard) - 1)))

    def _hear_of_death(self, index: int) -> None:
        where, dead = self.unheard.pop(index)
        if where == FRONTEND.instance_id:
            self.frontend.instance_died(dead.key)
            return
        here = self.instances[where]
        self._there(here.ref, lambda: self._lose_peer(here, dead))

    def _lose_peer(self, here: Instance, dead: InstanceRef) -> None:
        here.peer_died(dead.key)
        for stage_id, each in list(self.wires.bytes.items()):
            if each.copy.source == here.ref and each.copy.destination == dead:
                self._fail_bytes(stage_id)
        for stage_id, (owner, _) in list(self.wires.expected.items()):
            source = here.incoming[stage_id.split("/")[0]].source if owner == here.ref else None
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

    def _deliver(self, delivery: Delivery) -> None:
        sender, receiver, body = delivery
        if receiver == FRONTEND:
            self.frontend.receive(sender, body)
        else:
            self._there(receiver, lambda: self.instances[receiver.instance_id].receive(body))

    def _deliver_stream(self, way: tuple[Any, Any], number: int) -> None:
        stream = self.wires.streams[way]
        for _ in range(min(number, len(stream))):
            self._deliver(stream.popleft())

    def _copy(self, stage_id: str, fails: bool) -> None:
        """Sent, the first time; received, the second time."""
        each = self.wires.bytes[stage_id]
        source, destination = each.copy.source, each.copy.destination
        if self._is_dead(source) or self._is_dead(destination):
            del self.wires.bytes[stage_id]
        elif each.contents is None:
            if fails or stage_id not in self.wires.expected:
                self._fail_bytes(stage_id)
                return
            each.contents = each.copy.read()
            self._there(source, lambda: each.copy.sent(each.copy.num_blocks))
        elif fails:
            del self.wires.bytes[stage_id]
            self._there(destination, lambda: self._fail_expected(stage_id))
        else:
            del self.wires.bytes[stage_id]
            self._there(destination, lambda: self._take(stage_id, each.contents or []))

    def _take(self, stage_id: str, contents: list[Any]) -> None:
        known = self.wires.expected.pop(stage_id, None)
        if known is not None:
            known[1].write(contents)
            known[1].received(len(contents))

    def _fail_bytes(self, stage_id: str) -> None:
        each = self.wires.bytes.pop(stage_id)
        if each.contents is None:
            self._there(each.copy.source, lambda: each.copy.sent(None))
        self._there(each.copy.destination, lambda: self._fail_expected(stage_id))

    def _fail_expected(self, stage_id: str) -> None:
        known = self.wires.expected.pop(stage_id, None)
        if known is not None:
            known[1].received(None)

    def _let_go(self, index: int) -> None:
        owner, stage_id = self.wires.cancelled.pop(index)
        each = self.wires.bytes.get(stage_id)
        if each is not None and each.copy.source == owner and each.contents is None:
            del self.wires.bytes[stage_id]
            self._there(owner, lambda: each.copy.sent(None))
        elif stage_id in self.wires.expected and self.wires.expected[stage_id][0] == owner:
            self._there(owner, lambda: self._fail_expected(stage_id))

    def _choose(self) -> InstanceRef | None:
        """For a replay: the last instance that the frontend takes for living."""
        refs = [instance.ref for instance in self.instances.values()]
        return next((ref for ref in reversed(refs) if ref.key not in self.frontend.dead), None)

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
        for request_id, outcomes in self.frontend.outcomes.items():
            assert len(outcomes) == 1, f"{request_id} ended so: {outcomes}"
            assert outcomes != ["error"] or self.num_deaths, f"{request_id} failed"

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

    def _there(self, ref: InstanceRef, do: Callable[[], None]) -> None:
        """Unless that incarnation is dead; when it goes on, if it is paused."""
        if self._is_dead(ref):
            return
        if ref.instance_id in self.inboxes:
            self.inboxes[ref.instance_id].append(do)
        else:
            do()

    def _is_dead(self, ref: InstanceRef) -> bool:
        return self.instances[ref.instance_id].ref != ref


MigrationMachine.TestCase.settings = settings(stateful_step_count=60)
TestMigration = MigrationMachine.TestCase
