"""Whole clusters under random faults, in virtual time: one seed, one history.

Three instances and a frontend exchange messages through a network that loses, doubles, delays
and reorders what two instances say to each other (that between an instance and the frontend is
a stream: in order and whole, but slow at times, and cut by a death). Instances crash and come
back as a new incarnation, or stop for a while, or the frontend takes one for dead that lives; what
was lost with one begins anew at another, as often as the frontend of this history allows;
blocks run short; clients leave, priorities change, moves are called off. Then all is healed, and
soon nothing may be left of any move. An instance that hears and is heard never decodes for long
what the frontend does not read.
"""

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controller.core.instance_ref import InstanceRef
from controller.core.migration.protocol import Verb
from controller.core.migration.refusals import MoveRefusal
from tests.unit.migration.simulated_engine import Asked, SimulatedEngine, blocks_for
from tests.unit.migration.simulated_frontend import Frontend
from tests.unit.migration.simulated_instance import Instance, Violation
from tests.unit.migration.simulated_messages import FRONTEND, TIMING, Copy, Expected, MoveEnvelope

TURN_S = 0.25
"""Between two steps of an engine."""
FAULTS_S = 16.0
QUIET_S = 4 * TIMING.lease_s + TIMING.memory_s
UNREAD_S = 4.0
"""For so long an instance may decode what the frontend does not read: a few turns and messages."""
SERVED_S = 120.0
"""An engine that is short of blocks serves one request after the other: 7 of 50 tokens at most."""
INSTANCE_IDS = ("a", "b", "c")


@dataclass(slots=True)
class Host:
    """A place where one incarnation after the other runs."""

    instance: Instance | None
    incarnation: int = 1
    paused: bool = False
    inbox: list[Callable[[], None]] = field(default_factory=list)
    """What came while it was paused."""


class Simulation:
    """`run` raises Violation, or what a machine or an engine raises. `trace` is the history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.trace: list[tuple[Any, ...]] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_events = 0
        self._num_engines = 0
        self._num_moves = 0
        self._last_arrival: dict[tuple[Any, Any], float] = {}
        self._stalled_until: dict[tuple[str, str], float] = {}
        self._lost: set[tuple[tuple[str, int], str]] = set()
        """(dead incarnation, receiver): what it had sent there did not get out."""
        self._copies: dict[str, Copy] = {}
        self._stuck_since_s: dict[str, float] = {}
        """Those of which nothing is taken; what else is slow trickles."""
        self._expected: dict[str, tuple[InstanceRef, Expected]] = {}
        self._cut: dict[tuple[str, str], float] = {}
        self._unread_since_s: dict[tuple[tuple[str, int], str], float] = {}
        """By incarnation and request."""
        self._gone: list[InstanceRef] = []
        """Incarnations that died."""
        self._fenced: set[InstanceRef] = set()
        self._healed = False
        self.num_lost = 0
        """Instances that died, or seemed to."""
        rng = self.rng
        self.in_order = rng.random() < 0.3
        """Between instances too: a good network, though a slow one."""
        self.loss = 0.0 if self.in_order else rng.choice([0.0, 0.05, 0.3])
        self.doubling = 0.0 if self.in_order else rng.choice([0.0, 0.05, 0.3])
        self.slowness_s = rng.choice([0.05, 0.2, 0.6])
        self.frontend = Frontend(self, max_replays=rng.choice([0, 1, 3]))
        self.hosts: dict[str, Host] = {}
        for instance_id in INSTANCE_IDS:
            self.hosts[instance_id] = Host(self._new_instance(instance_id, 1))

    # -- the network, as instances and the frontend see it ---------------------------------

    def send(self, sender: InstanceRef, receiver: InstanceRef, body: Any) -> None:
        rng, between = self.rng, isinstance(body, MoveEnvelope)
        if between and not self._healed:
            if self._is_cut(sender, receiver) or rng.random() < self.loss:
                self.note("lost", _words(body))
                return
            if rng.random() < self.doubling:
                self._put(sender, receiver, body, in_order=False)
            if body.message.verb in (Verb.COMMIT, Verb.COMMITTED) and rng.random() < 0.15:
                self._bad_luck(sender.instance_id, receiver.instance_id, body)
        self._put(sender, receiver, body, in_order=self.in_order or not between)

    def copy(self, copy: Copy) -> None:
        self._copies[copy.stage_id] = copy
        if self.rng.random() < 0.5:
            self._stuck_since_s[copy.stage_id] = self.now_s
        slow_s = self.rng.uniform(0.01, 0.1) * (1 + copy.num_blocks)
        if not self._healed and self.rng.random() < 0.03:
            slow_s = TIMING.stage_timeout_s * 3
        arrival_s = self._arrival_s(copy.source, copy.destination) + slow_s
        fails = not self._healed and self.rng.random() < 0.04
        self.at(arrival_s, self._copied, copy.stage_id, fails)

    def expect(self, owner: InstanceRef, expected: Expected) -> None:
        self._expected[expected.stage_id] = (owner, expected)

    def stalled_s(self, stage_id: str) -> float:
        if stage_id not in self._copies:
            return 0.0
        return self.now_s - self._stuck_since_s.get(stage_id, self.now_s)

    def cancel(self, owner: InstanceRef, stage_id: str) -> None:
        self.after(self.rng.uniform(0, 0.3), self._cancelled, owner, stage_id)

    def choose(self) -> InstanceRef | None:
        alive = self._alive()
        return self.rng.choice(alive) if alive else None

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.now_s, 6), *what))

    # -- time ----------------------------------------------------------------------------

    def at(self, time_s: float, do: Callable[..., None], *args: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, do, args))

    def after(self, delay_s: float, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + delay_s, do, *args)

    def run(self) -> None:
        self._plan()
        self._run_until(FAULTS_S)
        self._heal()
        self._run_until(FAULTS_S + QUIET_S)
        while self.frontend.routes and self.now_s < FAULTS_S + SERVED_S:
            self._run_until(self.now_s + TIMING.memory_s)
        self.check_quiet()

    def _run_until(self, end_s: float) -> None:
        events = self._events
        while events and events[0][0] <= end_s:
            self.now_s, _, do, args = heapq.heappop(events)
            do(*args)
        self.now_s = end_s

    # -- what happens --------------------------------------------------------------------

    def _plan(self) -> None:
        rng = self.rng
        for number in range(rng.randint(3, 7)):
            self.at(rng.uniform(0, FAULTS_S / 2), self._submit, f"r{number}", number)
        for _ in range(rng.randint(4, 14)):
            self.at(rng.uniform(0.5, FAULTS_S), self._order_move)
        for _ in range(_how_many(rng, 4.0)):
            self.at(rng.uniform(0.5, FAULTS_S), self._make_room_somewhere)
        faults = (
            (self._crash_one, 0.5),
            (self._pause_one, 1.0),
            (self._cut_link, 1.0),
            (self._stall_link, 1.5),
            (self._client_leaves, 1.0),
            (self._evict, 1.0),
            (self._change_rank, 1.0),
            (self._cancel_moves, 0.5),
            (self._false_alarm, 0.5),
            (self._fence_one, 0.3),
            (self._break_connection_of_two, 0.5),
        )
        for fault, mean in faults:
            for _ in range(_how_many(rng, mean)):
                self.at(rng.uniform(1.0, FAULTS_S), fault)
        for instance_id in INSTANCE_IDS:
            self.at(rng.uniform(0, TURN_S), self._turn, instance_id)
        self.at(TURN_S, self._frontend_turn)

    def _submit(self, request_id: str, arrival: int) -> None:
        rng = self.rng
        to = rng.choice(self._alive()) if self._alive() else None
        if to is None:
            return
        asked = Asked(
            request_id,
            rng.randint(1, 20),
            rng.randint(4, 50),
            seeded=rng.random() < 0.3,
            rank=rng.choice([0, 0, 1]),
            arrival=arrival,
        )
        self.note("submit", request_id, to.key)
        self.frontend.submit(asked, to)

    def _order_move(self) -> None:
        """By hand, or for relief: one request of any instance."""
        movable = [
            (host.instance, request_id)
            for host in self.hosts.values()
            if host.instance is not None and not host.paused
            for request_id in sorted(host.instance.live)
        ]
        if movable:
            instance, request_id = self.rng.choice(movable)
            self._begin_move(instance, request_id)

    def _make_room_somewhere(self) -> None:
        self._make_room(self.rng.choice(INSTANCE_IDS))

    def _make_room(self, instance_id: str, first: str = "", from_there: str = "") -> None:
        """Some requests leave together, or none: the plan of a room order. `first` is among them,
        but does not go back `from_there`."""
        host = self.hosts[instance_id]
        if host.instance is None or host.paused:
            return
        here, plan = host.instance, list[str]()
        live = sorted(here.live)
        leaving = self.rng.sample(live, min(len(live), self.rng.randint(1, 3)))
        if first in live:
            leaving = [first, *(each for each in leaving if each != first)]
        for request_id in leaving:
            not_to = from_there if request_id == first else ""
            if (migration_id := self._begin_move(here, request_id, not_to)) is None:
                here.cancel_moves(plan)
                return
            plan.append(migration_id)

    def _begin_move(self, here: Instance, request_id: str, not_to: str = "") -> str | None:
        """Whatever wants a move goes this way, without a look of its own at what may move. Now
        and then the source has not heard yet that the destination is gone."""
        to = [instance.ref for instance in self._instances() if instance is not here]
        if self._gone and self.rng.random() < 0.05:
            to = [ref for ref in self._gone if ref.instance_id != here.ref.instance_id]
        to = [ref for ref in to if ref.instance_id != not_to]
        if not to:
            return None
        destination = self.rng.choice(to)
        self._num_moves += 1
        migration_id = f"m{self._num_moves}"
        begun = here.begin_move(migration_id, request_id, destination)
        refusal = begun if isinstance(begun, MoveRefusal) else ""
        self.note("move", request_id, here.ref.key, destination.key, str(refusal))
        self._check(here)
        return None if refusal else migration_id

    def _bad_luck(self, a: str, b: str, move: MoveEnvelope) -> None:
        """Something goes wrong just when who owns a request is in doubt."""
        rng = self.rng
        seconds = rng.choice([1.0, 3.0, 8.0])
        match rng.randrange(9):
            case 0:
                self.after(rng.uniform(0, 1), self._crash, rng.choice((a, b)))
            case 1:
                self.after(rng.uniform(0, 1), self._pause, rng.choice((a, b)))
            case 2:
                self._cut[a, b] = self._cut[b, a] = self.now_s + seconds
            case 3:
                self._stalled_until[a, b] = self.now_s + seconds
            case 6 | 7 | 8:  # it has arrived, hardly anybody knows, and it is in another one's way
                source, there = move.source.instance_id, move.destination.instance_id
                self._stalled_until[there, source] = self.now_s + 8.0
                if rng.random() < 0.7:
                    self._stalled_until[there, FRONTEND.instance_id] = self.now_s + 8.0
                match rng.randrange(3):
                    case 0:
                        self.after(rng.uniform(0.1, 2.0), self._fence, source)
                    case _:
                        self.after(rng.uniform(0.1, 2.0), self._break_connection, source, there)
                for _ in range(3):
                    delay_s = rng.uniform(0.1, 3.0)
                    self.after(delay_s, self._make_room, there, move.request_id, source)
            case doubt:
                slow = rng.choice((a, b))
                self._stalled_until[slow, FRONTEND.instance_id] = self.now_s + seconds
                self._cut[a, b] = self._cut[b, a] = self.now_s + seconds
                if doubt == 5:  # one gets the request back, and dies before the other hears of it
                    other = a if slow == b else b
                    self.after(TIMING.answer_timeout_s + rng.uniform(0, 2), self._crash, other)

    def _crash_one(self) -> None:
        self._crash(self.rng.choice(INSTANCE_IDS))

    def _crash(self, instance_id: str, healed_too: bool = False) -> None:
        host = self.hosts[instance_id]
        if host.instance is None or (self._healed and not healed_too):
            return
        dead, host.instance = host.instance, None
        self._gone.append(dead.ref)
        self.num_lost += 1
        self.note("crash", dead.ref.key)
        host.inbox.clear()
        host.paused = False
        if self.rng.random() < 0.5:
            self._lost |= {(dead.ref.key, to) for to in (*INSTANCE_IDS, FRONTEND.instance_id)}
        self._tell_dead(dead.ref)
        self.after(self.rng.uniform(0.5, 5.0), self._start_again, dead.ref.instance_id)

    def _tell_dead(self, dead: InstanceRef) -> None:
        for instance_id in INSTANCE_IDS:
            self.after(self.rng.uniform(0.05, 3.0), self._peer_died, instance_id, dead)
        self.after(self.rng.uniform(0.05, 3.0), self.frontend.instance_died, dead.key)

    def _start_again(self, instance_id: str) -> None:
        host = self.hosts[instance_id]
        host.incarnation += 1
        host.instance = self._new_instance(instance_id, host.incarnation)

    def _peer_died(self, instance_id: str, dead: InstanceRef) -> None:
        """Its transfers fail with it."""
        host = self.hosts[instance_id]
        if host.instance is None or dead.instance_id == instance_id:
            return
        here = host.instance

        def hear() -> None:
            here.peer_died(dead.key)
            self._fail_copies_with(here.ref, dead)

        self._do_there(here.ref, hear)

    def _false_alarm(self) -> None:
        """The frontend's connection to an instance breaks; both live."""
        host = self.hosts[self.rng.choice(INSTANCE_IDS)]
        if host.instance is not None:
            self.num_lost += 1
            self.note("false alarm", host.instance.ref.key)
            self.frontend.connection_lost(host.instance.ref.key)

    def _fence_one(self) -> None:
        self._fence(self.rng.choice(INSTANCE_IDS))

    def _fence(self, instance_id: str) -> None:
        """The cluster counts an instance as dead that goes on for a while, until its process is
        ended too."""
        host = self.hosts[instance_id]
        if host.instance is None or self._healed:
            return
        fenced = host.instance.ref
        self.num_lost += 1
        self.note("fenced", fenced.key)
        self._fenced.add(fenced)
        self._tell_dead(fenced)
        self.after(self.rng.uniform(0.05, 4.0), self._end_fenced, fenced)

    def _end_fenced(self, fenced: InstanceRef) -> None:
        if not self._is_dead(fenced):
            self._crash(fenced.instance_id, healed_too=True)

    def _break_connection_of_two(self) -> None:
        self._break_connection(*self.rng.sample(INSTANCE_IDS, 2))

    def _break_connection(self, a: str, b: str) -> None:
        """Between two that live: each takes the other for dead, one of them perhaps late or
        never."""
        refs = [host.instance.ref for i in (a, b) if (host := self.hosts[i]).instance is not None]
        if len(refs) < 2 or self._healed:
            return
        self.num_lost += 1
        self.note("connection broken", *(ref.key for ref in refs))
        for here, there in (refs, reversed(refs)):
            if self.rng.random() < 0.8:
                self.after(self.rng.uniform(0.01, 2.0), self._peer_died, here.instance_id, there)

    def _pause_one(self) -> None:
        self._pause(self.rng.choice(INSTANCE_IDS))

    def _pause(self, instance_id: str) -> None:
        host = self.hosts[instance_id]
        if host.instance is not None and not host.paused and not self._healed:
            host.paused = True
            self.note("pause", host.instance.ref.key)
            seconds = self.rng.choice([1.0, 3.0, 8.0])
            self.after(seconds, self._go_on, host.instance.ref)

    def _go_on(self, ref: InstanceRef) -> None:
        host = self.hosts[ref.instance_id]
        if host.instance is None or host.instance.ref != ref or not host.paused:
            return
        host.paused = False
        came, host.inbox = host.inbox, []
        for do in came:
            do()
            self._check(host.instance)

    def _cut_link(self) -> None:
        """Nothing gets through, one way or both ways; it is lost."""
        a, b = self.rng.sample(INSTANCE_IDS, 2)
        until_s = self.now_s + self.rng.choice([1.0, 3.0, 8.0])
        self._cut[a, b] = until_s
        if self.rng.random() < 0.6:
            self._cut[b, a] = until_s

    def _stall_link(self) -> None:
        """What is sent waits, and comes in the end."""
        a, b = self.rng.sample([*INSTANCE_IDS, FRONTEND.instance_id], 2)
        self._stalled_until[a, b] = self.now_s + self.rng.choice([1.0, 3.0, 8.0])

    def _client_leaves(self) -> None:
        if self.frontend.routes:
            request_id = self.rng.choice(sorted(self.frontend.routes))
            self.frontend.client_leaves(request_id)

    def _evict(self) -> None:
        if (instance := self.hosts[self.rng.choice(INSTANCE_IDS)].instance) is not None:
            instance.evict_one()

    def _change_rank(self) -> None:
        if not self.frontend.routes:
            return
        request_id = self.rng.choice(sorted(self.frontend.routes))
        owner = self.frontend.routes[request_id].ownership.owner
        rank = self.rng.choice([0, 1, 2])
        self._do_there(owner, lambda: self._instance(owner).change_rank(request_id, rank))

    def _cancel_moves(self) -> None:
        host = self.hosts[self.rng.choice(INSTANCE_IDS)]
        if host.instance is not None and not host.paused:
            host.instance.cancel_moves(list(host.instance.outgoing))

    def _heal(self) -> None:
        self._healed = True
        self._cut.clear()
        self._stalled_until.clear()
        for host in self.hosts.values():
            if host.instance is not None and host.paused:
                self._go_on(host.instance.ref)

    # -- turns ---------------------------------------------------------------------------

    def _turn(self, instance_id: str) -> None:
        """A step of the engine, and of the loop, which may be late."""
        self.after(TURN_S, self._turn, instance_id)
        host = self.hosts[instance_id]
        if host.instance is None or host.paused:
            return
        if self.rng.random() < 0.8:
            host.instance.engine_turn()
            self._check(host.instance)
        if self.rng.random() < 0.8:
            host.instance.loop_turn()
            self._check(host.instance)

    def _frontend_turn(self) -> None:
        self.after(TURN_S, self._frontend_turn)
        self.frontend.tick()
        self.check_owners()
        self.check_read()

    # -- deliveries ----------------------------------------------------------------------

    def _put(self, sender: InstanceRef, receiver: InstanceRef, body: Any, in_order: bool) -> None:
        arrival_s = self._arrival_s(sender, receiver)
        if in_order:
            way = (sender.key, receiver.key)
            arrival_s = max(arrival_s, self._last_arrival.get(way, 0.0) + 1e-6)
            self._last_arrival[way] = arrival_s
        self.at(arrival_s, self._deliver, sender, receiver, body)

    def _arrival_s(self, sender: InstanceRef, receiver: InstanceRef) -> float:
        stalled_s = self._stalled_until.get((sender.instance_id, receiver.instance_id), 0.0)
        return max(self.now_s, stalled_s) + self.rng.uniform(0.001, self.slowness_s)

    def _is_cut(self, sender: InstanceRef, receiver: InstanceRef) -> bool:
        return self._cut.get((sender.instance_id, receiver.instance_id), 0.0) > self.now_s

    def _deliver(self, sender: InstanceRef, receiver: InstanceRef, body: Any) -> None:
        if (sender.key, receiver.instance_id) in self._lost:
            return
        if receiver == FRONTEND:
            self.frontend.receive(sender, body)
            return
        self._do_there(receiver, lambda: self._hear(receiver, body))

    def _hear(self, receiver: InstanceRef, body: Any) -> None:
        self.note("said", receiver.key, _words(body))
        self._instance(receiver).receive(body)

    def _do_there(self, ref: InstanceRef, do: Callable[[], None]) -> None:
        """Unless that incarnation is dead; when it goes on, if it is paused."""
        host = self.hosts[ref.instance_id]
        if host.instance is None or host.instance.ref != ref:
            return
        if host.paused:
            host.inbox.append(do)
            return
        do()
        self._check(host.instance)

    def _copied(self, stage_id: str, fails: bool) -> None:
        copy = self._copies.get(stage_id)
        if copy is None:
            return
        if self._is_dead(copy.source):
            return
        if stage_id not in self._expected and not fails:  # called off there: nobody takes it
            fails = True
        contents = copy.read()
        if fails:
            self._fail_copy(stage_id)
            return
        _, expected = self._expected[stage_id]
        del self._copies[stage_id]
        self._do_there(copy.source, lambda: copy.sent(copy.num_blocks))
        self.after(
            self.rng.uniform(0, self.slowness_s), self._received, stage_id, expected, contents
        )

    def _received(self, stage_id: str, expected: Expected, contents: list[Any]) -> None:
        known = self._expected.get(stage_id)
        if known is None:
            return

        def take() -> None:
            if self._expected.pop(stage_id, None) is not None:
                expected.write(contents)
                expected.received(len(contents))

        self._do_there(known[0], take)

    def _fail_copy(self, stage_id: str) -> None:
        copy = self._copies.pop(stage_id, None)
        if copy is not None:
            self._do_there(copy.source, lambda: copy.sent(None))
        if stage_id in self._expected:
            owner, _ = self._expected[stage_id]
            self._do_there(owner, lambda: self._fail_expected(stage_id))

    def _fail_expected(self, stage_id: str) -> None:
        known = self._expected.pop(stage_id, None)
        if known is not None:
            known[1].received(None)

    def _cancelled(self, owner: InstanceRef, stage_id: str) -> None:
        copy = self._copies.get(stage_id)
        if copy is not None and copy.source == owner:
            del self._copies[stage_id]
            self._do_there(owner, lambda: copy.sent(None))
        elif stage_id in self._expected and self._expected[stage_id][0] == owner:
            self._do_there(owner, lambda: self._fail_expected(stage_id))

    def _fail_copies_with(self, here: InstanceRef, dead: InstanceRef) -> None:
        for stage_id, copy in list(self._copies.items()):
            if copy.source == here and copy.destination == dead:
                del self._copies[stage_id]
                copy.sent(None)
        instance = self._instance(here)
        for stage_id, (owner, _) in list(self._expected.items()):
            migration_id = stage_id.split("/")[0]
            if owner == here and instance.incoming[migration_id].source == dead:
                self._fail_expected(stage_id)

    # -- what must hold --------------------------------------------------------------------

    def _check(self, instance: Instance) -> None:
        instance.check()

    def check_owners(self) -> None:
        """At most one instance decodes in the epoch that the frontend reads, but for those that
        the cluster has fenced, whose processes are about to be ended."""
        for request_id, route in self.frontend.routes.items():
            epoch = route.ownership.order.epoch
            owners = [
                instance.ref.key
                for instance in self._instances()
                if request_id in instance.live
                and instance.ref not in self._fenced
                and instance.live[request_id].epoch == epoch
                and request_id in instance.engine.requests
                and instance.engine.requests[request_id].place != "suspended"
            ]
            if len(owners) > 1:
                raise Violation(f"{request_id} has two owners in {epoch}: {owners}")

    def check_read(self) -> None:
        """What an instance decodes the frontend reads, or it will, or it says that it does not."""
        since_s, self._unread_since_s = self._unread_since_s, {}
        for instance in self._instances():
            for request_id, live in instance.live.items():
                request = instance.engine.requests.get(request_id)
                if request is None or request.place != "running" or self._is_held_up(instance.ref):
                    continue
                if self.frontend.reads(instance.ref, request_id, live.epoch):
                    continue
                orphan = instance.ref.key, request_id
                self._unread_since_s[orphan] = since_s.get(orphan, self.now_s)
                if self.now_s - self._unread_since_s[orphan] > UNREAD_S:
                    raise Violation(f"{request_id} runs at {orphan[0]} and nobody reads it")

    def _is_held_up(self, ref: InstanceRef) -> bool:
        """It stands still, or what it and the frontend said to each other takes its time."""
        ways = (ref.key, FRONTEND.key), (FRONTEND.key, ref.key)
        arrival_s = max(self._last_arrival.get(way, 0.0) for way in ways)
        is_late = arrival_s > self.now_s + self.slowness_s
        return self.hosts[ref.instance_id].paused or is_late

    def check_quiet(self) -> None:
        for request_id, outcomes in self.frontend.outcomes.items():
            if len(outcomes) != 1:
                raise Violation(f"{request_id} ended {len(outcomes)} times: {outcomes}")
            if outcomes == ["error"] and not self.num_lost:
                raise Violation(f"{request_id} failed, though no instance was lost")
        for instance in self._instances():
            if not instance.is_empty:
                raise Violation(f"something is left on {instance.ref.key}: {leftovers(instance)}")
            if instance.engine.num_free != instance.engine.num_blocks:
                raise Violation(f"blocks leaked on {instance.ref.key}")
        if len(self._instances()) != len(INSTANCE_IDS):
            raise Violation("an instance did not come back")

    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    # ------------------------------------------------------------------------------------

    def _new_instance(self, instance_id: str, incarnation: int) -> Instance:
        self._num_engines += 1
        num_blocks = self.rng.choice([blocks_for(72), 24, 40])
        ref = InstanceRef(instance_id, incarnation, f"{instance_id}/{incarnation}")
        max_moves = self.rng.choice([1, 2, 4, 8])
        return Instance(ref, SimulatedEngine(self._num_engines, num_blocks), self, max_moves)

    def _instances(self) -> list[Instance]:
        return [host.instance for host in self.hosts.values() if host.instance is not None]

    def _alive(self) -> list[InstanceRef]:
        """As far as the frontend knows."""
        refs = [instance.ref for instance in self._instances()]
        return [ref for ref in refs if ref.key not in self.frontend.dead]

    def _instance(self, ref: InstanceRef) -> Instance:
        instance = self.hosts[ref.instance_id].instance
        assert instance is not None
        return instance

    def _is_dead(self, ref: InstanceRef) -> bool:
        instance = self.hosts[ref.instance_id].instance
        return instance is None or instance.ref != ref


def leftovers(instance: Instance) -> str:
    moves = {
        migration_id: str(move.machine.state)
        for moves in (instance.outgoing, instance.incoming)
        for migration_id, move in moves.items()
    }
    engine = instance.engine
    return (
        f"moves {moves}, requests {sorted(engine.requests)}, pins {sorted(engine.pins)}, "
        f"reserved {sorted(engine.reserved)}, live {sorted(instance.live)}"
    )


def _words(body: Any) -> str:
    if isinstance(body, MoveEnvelope):
        return f"{body.migration_id} {body.message.verb} {body.message.stage}"
    return f"{type(body).__name__} {getattr(body, 'request_id', '')}"


def _how_many(rng: random.Random, mean: float) -> int:
    """0, 1, 2, ...: half as likely each time, so that quiet histories come too."""
    number = 0
    while rng.random() < mean / (1 + mean):
        number += 1
    return number


class HistoryError(AssertionError):
    """A history that went wrong, by its seed."""


def run_seed(seed: int) -> Simulation:
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        tail = "\n".join(str(line) for line in simulation.trace[-30:])
        raise HistoryError(f"seed {seed}: {error!r} at {simulation.now_s:.2f} s\n{tail}") from error
    return simulation
