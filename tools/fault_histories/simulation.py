"""Whole clusters under random faults, in virtual time: one seed, one history.

Some instances, two frontends and the controller exchange messages through a network that loses,
doubles, delays and reorders what two instances say to each other (everything else is a stream: in
order and whole, but slow at times, and cut by a death). Each runs the machines that it runs live:

    controller   the real process (`simulated_controller`): dispatch and late binding, rounds,
                 moves by hand, drains, who lives, auto-scaling, rolling restarts
    frontends    where a new request goes, who owns it, replays (`simulated_frontend`)
    instances    moves, what leaves by whose order, what comes again (`simulated_instance`)

Processes crash and come back, or stop for a while; engines hang beside loops that live; somebody
takes another one for dead that lives; disks are full; a process is told that it will be ended;
blocks run short; clients leave, priorities change, moves are called off. Operators drain, restart,
evacuate, scale and move by hand. What was lost with an instance begins anew at another, as often as
this history allows.

Then all is healed, and soon everything must be over: each client has got each token once and in
order, or a reason that the rules know; every drain has ended; nothing is remembered of any move,
request or order. An instance that hears and is heard never decodes for long what nobody reads, and
two never decode one request in the epoch that its frontend reads.
"""

import hashlib
import heapq
import itertools
import logging
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

from controller.api.errors import LlumctlError
from controller.core.admission.policies import SchedulerConfig
from controller.core.emptying.by_hand import MoveByHand
from controller.core.emptying.claims import Claim, Drain, Evacuate, Remove, Restart
from controller.core.emptying.rounds import Opening, RoomOrder
from controller.core.fleet.cluster_spec import ClusterSpec, RollingOrder, emptying_refusal
from controller.core.load.snapshot import InstanceRef
from controller.core.migration.protocol import Verb
from controller.core.migration.refusals import MoveRefusal
from controller.core.replay.replay_machine import ReplayRefusal
from controller.core.settings import (
    AutoscaleConfig,
    AutoscaleMode,
    HoldingConfig,
    ReplayConfig,
    ReschedulingConfig,
)
from controller.ports.processes import LauncherLostError
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import OperationRefusedError
from controller.runtime.controller.roster import LiveAutoscale, LiveConfig
from controller.runtime.messages.members import FrontendLimits, InstanceLost, Message
from controller.runtime.messages.move_messages import RoomOrdered
from tools.fault_histories.simulated_controller import (
    ME,
    Disk,
    ErrorsAreViolations,
    SimulatedController,
    SimulatedLauncher,
)
from tools.fault_histories.simulated_engine import Asked, SimulatedEngine, blocks_for
from tools.fault_histories.simulated_frontend import Frontend
from tools.fault_histories.simulated_instance import Instance
from tools.fault_histories.simulated_messages import (
    CONTROLLER,
    TIMING,
    Copy,
    Expected,
    MoveEnvelope,
)
from tools.fault_histories.simulated_moves import Violation

TURN_S = 0.25
"""Between two steps of an engine."""
TICK_S = 0.5
"""Between two ticks of the controller."""
HELLO_S = 1.0
FAULTS_S = 14.0
SETTLED_S = 150.0
"""After the last fault everything must be over: an engine that is short of blocks serves one
request after the other, destinations cool for 30 s, a controller waits for 10 s for what it does
not hear."""
UNREAD_S = 6.0
"""For so long an instance may decode what no frontend reads: a few turns and messages."""
FRONTENDS = ("f-0", "f-1")
MAY_FAIL = frozenset({ReplayRefusal.OFF, ReplayRefusal.TOO_OFTEN, ReplayRefusal.NO_INSTANCE})
"""Why a request may be lost with its instance."""


@dataclass(slots=True)
class Host:
    """A place where one process of a member after the other runs."""

    member_id: str
    process: Instance | Frontend | None = None
    is_wanted: bool = True
    """Another process is started when this one has ended."""
    num_started: int = 0
    python: str = ""
    """The Python environment in which its processes start."""
    paused: bool = False
    inbox: list[Callable[[], None]] = field(default_factory=list)
    """What came while it was paused."""


class Simulation:
    """`run` raises Violation, or what a machine or an engine raises. `trace` is the history."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.machine_dice = random.Random(-seed - 1)
        """Of its own, so that a history without such a notice is what it was before there were
        any."""
        self.leaving: dict[str, tuple[float, bool]] = {}
        """The machines that will be taken away: when, and whether the launcher says so and not a
        file."""
        self.num_machines_gone = 0
        self.now_s = 0.0
        self.trace: list[tuple[Any, ...]] = []
        self.outcomes: dict[str, list[tuple[str, str]]] = {}
        """By request: how it ended for its client, and why."""
        self.num_lost = 0
        """Processes that died, or seemed to, or stood still."""
        self.was_shut = False
        """By order no instance got new requests for a while, so some may have waited too long."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_events = itertools.count()
        self._num_engines = itertools.count(1)
        self._num_rolls = itertools.count(1)
        self._num_moves = itertools.count(1)
        self._num_orders = itertools.count(1)
        self._last_arrival: dict[tuple[str, str], float] = {}
        self._stalled_until: dict[tuple[str, str], float] = {}
        """By the member ids of sender and receiver."""
        self._lost: set[tuple[str, str]] = set()
        """(address of a dead process, receiver's): what it had sent there did not get out."""
        self._copies: dict[str, Copy] = {}
        self._stuck_since_s: dict[str, float] = {}
        """Those of which nothing is taken; what else is slow trickles."""
        self._expected: dict[str, tuple[str, Expected]] = {}
        """With the address of the process that takes it."""
        self._cut: dict[tuple[str, str], float] = {}
        self._unread_since_s: dict[tuple[str, str], float] = {}
        """By the instance's address and request."""
        self._gone: list[InstanceRef] = []
        """Instances that died."""
        self._called_dead: set[tuple[str, int]] = set()
        """Incarnations of which the controller said so."""
        self._healed = False
        self._check_at_s = 0.0
        """When the controller's machines are checked next: that takes longer than its events."""
        self.in_order = rng.random() < 0.3
        """Between instances too: a good network, though a slow one."""
        self.loss = 0.0 if self.in_order else rng.choice([0.0, 0.05, 0.3])
        self.doubling = 0.0 if self.in_order else rng.choice([0.0, 0.05, 0.3])
        self.slowness_s = rng.choice([0.05, 0.2, 0.6])
        self.bad_luck = rng.choice([0.05, 0.2, 0.8])
        """How likely a fault is just when who owns a request is in doubt."""
        self.doubts = rng.choice([tuple(range(9)), tuple(range(9)), (6,)])
        """Which ones: in some histories always the same, as few others find what it shows."""
        self.max_replays = rng.choice([0, 1, 3])
        self.config = self._drawn_config()
        self.disk = Disk(ClusterSpec.first(rng.choice([2, 3, 3, 4])))
        self.launcher = SimulatedLauncher(self)
        self.controller: SimulatedController | None = None
        self.hosts: dict[str, Host] = {}
        self.errors = ErrorsAreViolations()

    def _drawn_config(self) -> LiveConfig:
        rng = self.rng
        policy = rng.choice(["llumnix+", "llumnix+", "llumnix"])
        holding = None
        if policy == "llumnix+":
            growth_tokens = rng.choice([0, 8])
            holding = HoldingConfig(
                room_to_grow_tokens=growth_tokens,
                evict_margin_steps=rng.choice([0.0, 6.0]),
                reserve_after_s=1.0,
            )
        below = rng.choice([8.0, 20.0])
        rescheduling = ReschedulingConfig(
            enabled=rng.random() < 0.8,
            interval_s=0.5,
            source_below_steps=below,
            destination_above_steps=below + rng.choice([0.0, 10.0]),
            guard=rng.random() < 0.3,
            max_moves=rng.choice([1, 2, 4, 8]),
        )
        modes: list[AutoscaleMode] = ["off", "off", "on", "dry-run"]
        autoscale = LiveAutoscale(
            AutoscaleConfig(
                mode=rng.choice(modes),
                up_below_steps=10.0,
                down_above_steps=rng.choice([20.0, 60.0]),
                max_instances=4,
                max_added=rng.choice([1, 2]),
                check_interval_s=2.0,
                first_check_after_s=3.0,
                up_persistence_s=2.0,
                down_persistence_s=2.0,
            ),
            start_timeout_s=8.0,
        )
        return LiveConfig(
            SchedulerConfig(
                policy=policy,
                hold_timeout_s=rng.choice([4.0, 30.0]),
                stall_timeout_s=2.0,
                fence_after_s=rng.choice([0.0, 4.0, 4.0]),
                slow_factor=rng.choice([0.0, 2.0]),
                slow_after_s=11.0,
                holding=holding,
            ),
            rescheduling,
            FrontendLimits(replay=ReplayConfig(self.max_replays, patience_s=20.0)),
            autoscale,
            max_events=100,
        )

    # -- the network, as processes see it --------------------------------------------------

    def send(
        self, sender: InstanceRef, address: str, body: Any, *, droppable: bool = False
    ) -> None:
        rng, between = self.rng, isinstance(body, MoveEnvelope)
        if isinstance(body, InstanceLost):
            self._called_dead.add((body.instance_id, body.incarnation))
        if address != CONTROLLER and self._process(address) is None:
            if not droppable:
                self.after(rng.uniform(0.01, 0.5), self._tell_lost, sender.address, address)
            return
        if between and not self._healed:
            if self._is_cut(sender.address, address) or rng.random() < self.loss:
                self.note("lost", _words(body))
                return
            if rng.random() < self.doubling:
                self._put(sender, address, body, in_order=False)
            if body.message.verb in (Verb.COMMIT, Verb.COMMITTED) and rng.random() < self.bad_luck:
                self._bad_luck(sender.instance_id, _member(address), body)
        elif droppable and not self._healed and rng.random() < 0.02:
            return
        self._put(sender, address, body, in_order=self.in_order or not between)

    def later(self, address: str, delay_s: float, do: Callable[[], None]) -> None:
        self.after(max(0.0, delay_s), self._do_there, address, do)

    def uniform(self, least: float, most: float) -> float:
        return self.rng.uniform(least, most)

    def copy(self, copy: Copy) -> None:
        self._copies[copy.stage_id] = copy
        if self.rng.random() < 0.5:
            self._stuck_since_s[copy.stage_id] = self.now_s
        slow_s = self.rng.uniform(0.01, 0.1) * (1 + copy.num_blocks)
        if not self._healed and self.rng.random() < 0.03:
            slow_s = TIMING.stage_timeout_s * 3
        arrival_s = self._arrival_s(copy.source.address, copy.destination.address) + slow_s
        fails = not self._healed and self.rng.random() < 0.04
        self.at(arrival_s, self._copied, copy.stage_id, fails)

    def expect(self, owner: str, expected: Expected) -> None:
        self._expected[expected.stage_id] = (owner, expected)

    def stalled_s(self, stage_id: str) -> float:
        if stage_id not in self._copies:
            return 0.0
        return self.now_s - self._stuck_since_s.get(stage_id, self.now_s)

    def cancel(self, owner: str, stage_id: str) -> None:
        self.after(self.rng.uniform(0, 0.3), self._cancelled, owner, stage_id)

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.now_s, 6), *what))

    def ended(self, request_id: str, outcome: str, why: str = "") -> None:
        self.note(outcome, request_id, why)
        self.outcomes[request_id].append((outcome, why))

    # -- time ----------------------------------------------------------------------------

    def at(self, time_s: float, do: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (time_s, next(self._num_events), do, args))

    def after(self, delay_s: float, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + delay_s, do, *args)

    def run(self) -> None:
        self._plan()
        self._run_until(FAULTS_S)
        self._heal()
        end_s = FAULTS_S + SETTLED_S
        self._run_until(FAULTS_S + TIMING.lease_s)
        while why := self.unsettled():
            if self.now_s >= end_s:
                raise Violation(f"this goes on: {why}")
            self._run_until(self.now_s + 2.0)
        self.check_quiet()

    def _run_until(self, end_s: float) -> None:
        events = self._events
        while events and events[0][0] <= end_s:
            self.now_s, _, do, args = heapq.heappop(events)
            do(*args)
            spec = self.disk.spec
            self.was_shut = self.was_shut or spec.closed.keys() >= set(spec.instance_ids)
        self.now_s = end_s

    # -- what happens --------------------------------------------------------------------

    def _plan(self) -> None:
        rng = self.rng
        for number in range(rng.randint(6, 18)):
            self.at(rng.uniform(1.0, FAULTS_S * 0.7), self._submit, f"r{number}", number)
        orders = (
            (self._move_by_hand, 5.0),
            (self._order_move, 7.0),
            (self._make_room_somewhere, 5.0),
            (self._drain, 1.0),
            (self._undrain, 0.5),
            (self._restart, 0.5),
            (self._evacuate, 0.3),
            (self._scale, 0.5),
            (self._roll, 0.3),
            (self._stop_rolling, 0.15),
            (self._configure, 0.3),
        )
        faults = (
            (self._crash_one, 0.5),
            (self._pause_one, 0.7),
            (self._hang_one, 0.4),
            (self._notice_one, 0.2),
            (self._crash_frontend, 0.2),
            (self._crash_controller, 0.4),
            (self._pause_controller, 0.2),
            (self._fill_disk, 0.2),
            (self._lose_launcher, 0.2),
            (self._cut_link, 1.0),
            (self._stall_link, 1.5),
            (self._client_leaves, 1.0),
            (self._evict, 1.0),
            (self._change_rank, 1.0),
            (self._cancel_moves, 0.5),
            (self._break_connection_to_one, 0.5),
            (self._break_connection_of_two, 0.5),
        )
        for what, mean in (*orders, *faults):
            for _ in range(_how_many(rng, mean)):
                self.at(rng.uniform(2.0, FAULTS_S), what)
        if self.machine_dice.random() < 0.3:
            self.at(self.machine_dice.uniform(2.0, FAULTS_S), self._machine_leaves)
        self._start_controller()
        for instance_id in self.disk.spec.instance_ids:
            self.at(rng.uniform(0, TURN_S), self._turn, instance_id)
        self.at(TURN_S, self._frontend_turn)

    def _submit(self, request_id: str, arrival: int) -> None:
        rng = self.rng
        frontends = [each for each in self._frontends() if not self.hosts[each.frontend_id].paused]
        if not frontends:
            return
        asked = Asked(
            request_id,
            rng.randint(1, 20),
            rng.randint(4, 50),
            seeded=rng.random() < 0.3,
            rank=rng.choice([0, 0, 1]),
            arrival=arrival,
        )
        self.outcomes[request_id] = []
        rng.choice(frontends).submit(asked)

    def _order_move(self) -> None:
        """Of a request of any instance, as some controller may have ordered it."""
        movable = [
            (each, request_id) for each in self._going_on() for request_id in sorted(each.live)
        ]
        if movable:
            instance, request_id = self.rng.choice(movable)
            self._begin_move(instance, request_id)

    def _make_room_somewhere(self) -> None:
        if instance_ids := self._instance_ids():
            self._make_room(self.rng.choice(instance_ids))

    def _make_room(self, instance_id: str, not_to: str = "") -> None:
        """An order for room, of a controller that thinks that it is lacking."""
        here = self._instance(instance_id)
        to = [
            each.ref
            for each in self._instances()
            if each.is_welcome and each.instance_id not in (instance_id, not_to)
        ]
        if here is None or not here.live or not to:
            return
        held = sum(len(each.blocks) for each in here.engine.requests.values())
        lacking_blocks = self.rng.randint(1, max(1, held))
        openings = tuple(Opening(each, here.engine.num_blocks) for each in to)
        config = replace(self.config.rescheduling, guard=False)
        order = RoomOrder("room", "", "", 9, lacking_blocks, openings, config)
        self._do_there(here.address, partial(here.receive, ME, RoomOrdered(order)))

    def _begin_move(self, here: Instance, request_id: str) -> None:
        """Without a look of its own at what may move. Now and then the source has not heard yet
        that the destination is gone."""
        to = [each.ref for each in self._instances() if each is not here and each.is_welcome]
        if self._gone and self.rng.random() < 0.05:
            to = [ref for ref in self._gone if ref.instance_id != here.instance_id]
        if not to:
            return
        destination = self.rng.choice(to)
        migration_id = f"m{next(self._num_moves)}"
        begun = here.begin_move(migration_id, request_id, destination)
        refusal = begun if isinstance(begun, MoveRefusal) else ""
        self.note("move", request_id, here.address, destination.address, str(refusal))
        self._check(here)

    # -- what operators order --------------------------------------------------------------

    def _order(self, order: Callable[[ControllerProcess, str], None]) -> None:
        """`order` gets an id too. What is refused changes nothing."""
        process, order_id = self.controller, f"o{next(self._num_orders)}"
        if process is None:
            return

        def give() -> None:
            assert process is not None
            try:
                order(process.controller, order_id)
            except (OperationRefusedError, LlumctlError, LauncherLostError) as error:
                self.note("not done", order_id, str(error))

        process.loop.do(give)

    def _claim(
        self, named: str, claim: Callable[[ControllerProcess, str, str], Claim | None]
    ) -> None:
        """For an instance of the spec; None: there is nothing to claim."""
        forced = self.rng.random() < 0.1

        def order(controller: ControllerProcess, order_id: str) -> None:
            ids = controller.keeper.spec.instance_ids
            if not ids:
                return
            instance_id = self.rng.choice(ids)
            made = claim(controller, instance_id, order_id)
            if made is None or instance_id not in controller.roster.members:
                return
            spec, schedulable = controller.keeper.spec, controller.drains.schedulable_ids()
            if refusal := emptying_refusal(spec, [instance_id], schedulable, force=forced):
                self.note("not done", order_id, str(refusal))
                return
            controller.drains.begin({instance_id: made})
            self.note(named, order_id, instance_id, str(made))

        self._order(order)

    def _drain(self) -> None:
        in_s = self.rng.choice([None, None, 2.0, 6.0])
        keeps = self.rng.random() < 0.5

        def claim(_controller: ControllerProcess, _instance_id: str, order_id: str) -> Claim:
            deadline_s = None if in_s is None else self._wall_s() + in_s
            return Drain(order_id, self._wall_s(), deadline_s, "keep" if keeps else "abort")

        self._claim("drain", claim)

    def _restart(self) -> None:
        in_s, at_once = self.rng.choice([None, None, 4.0]), self.rng.random() < 0.3

        def claim(controller: ControllerProcess, instance_id: str, order_id: str) -> Claim | None:
            member = controller.roster.members.get(instance_id)
            claims = controller.keeper.spec.drains.get(instance_id)
            if member is None or not member.nonce or (claims is not None and claims.goes):
                return None
            deadline_s = None if in_s is None else self._wall_s() + in_s
            return Restart(
                order_id, self._wall_s(), deadline_s, "abort", nonce=member.nonce, at_once=at_once
            )

        self._claim("restart", claim)

    def _evacuate(self) -> None:
        within_s = self.rng.choice([0.0, 2.0, 5.0])
        self._claim(
            "evacuate",
            lambda _controller, _instance_id, order_id: Evacuate(
                order_id, self._wall_s(), self._wall_s() + within_s
            ),
        )

    def _undrain(self) -> None:
        def order(controller: ControllerProcess, order_id: str) -> None:
            if drained := sorted(controller.keeper.spec.drains):
                instance_id = self.rng.choice(drained)
                controller.drains.end(instance_id, "undrained")
                self.note("undrain", order_id, instance_id)

        self._order(order)

    def _scale(self) -> None:
        self._scale_to(self.rng.choice([1, 2, 3, 3, 4]))

    def _scale_to(self, target: int) -> None:
        def order(controller: ControllerProcess, order_id: str) -> None:
            plan = controller.scaling.plan(target, force=False)
            hold = controller.autoscaling.hold("an operator", target)
            controller.scaling.carry_out(plan, Remove(order_id, self._wall_s()), hold)
            self.note("scale", order_id, plan)

        self._order(order)

    def _roll(self) -> None:
        at_once, deadline_s = self.rng.choice([0, 1, 2]), self.rng.choice([None, None, 8.0])

        def order(controller: ControllerProcess, order_id: str) -> None:
            controller.rolling.check(force=False)
            # Every other one goes to another Python environment, or back.
            spec, number = controller.keeper.spec, next(self._num_rolls)
            python = f"/{number}" if number % 4 == 1 else None
            given = {"python": python} if number % 2 else {}
            rolling = RollingOrder(
                order_id,
                self._wall_s(),
                (),
                at_once=at_once,
                deadline_s=deadline_s,
                start_timeout_s=10.0,
                engine=spec.engine.changed(given, spec.next_generation),
            )
            controller.rolling.begin(rolling)
            self.note("roll", order_id)

        self._order(order)

    def _stop_rolling(self) -> None:
        self._order(lambda controller, _: controller.rolling.stop("stopped", "an operator"))

    def _configure(self) -> None:
        self.config = self._drawn_config()
        self.max_replays = min(self.max_replays, self.config.frontends.replay.max_replays)
        self._order(lambda controller, _: controller.configure(self.config))

    def _move_by_hand(self) -> None:
        rng = self.rng
        patience_s, is_named = rng.choice([1.0, 4.0, 10.0]), rng.random() < 0.5
        process = self.controller

        def order(controller: ControllerProcess, _: str) -> None:
            found = [
                (request_id, owner.instance_id)
                for frontend in self._frontends()
                for request_id in frontend.clients
                if (owner := frontend.owner(request_id)) is not None
            ]
            records = controller.scheduler.instances
            open_ids = [i for i, each in records.items() if each.schedulable]
            if process is None or not found:
                return
            request_id, source_id = rng.choice(found)
            others = [each for each in open_ids if each != source_id]
            source = records.get(source_id)
            if source is None or not source.reports or (is_named and not others):
                return
            to = rng.choice(others) if is_named else None
            by_hand = MoveByHand(request_id, source_id, 0, "by hand")
            migration_id = controller.operator_moves.machine.next_migration_id()
            self.note("by hand", request_id, source_id, to, migration_id)
            moves = controller.operator_moves
            process.order(moves.move(by_hand, to, migration_id, patience_s))

        self._order(order)

    # -- faults ----------------------------------------------------------------------------

    def _bad_luck(self, a: str, b: str, move: MoveEnvelope) -> None:
        """Something goes wrong just when who owns a request is in doubt."""
        rng = self.rng
        seconds = rng.choice([1.0, 3.0, 8.0])
        match rng.choice(self.doubts):
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
                if rng.random() < 0.5:
                    self._stalled_until[source, there] = self.now_s + 8.0
                if rng.random() < 0.7:
                    for frontend_id in FRONTENDS:
                        self._stalled_until[there, frontend_id] = self.now_s + 8.0
                match rng.randrange(3):
                    case 0:
                        self.after(rng.uniform(0.1, 2.0), self._hang, source, seconds)
                    case _:
                        self.after(rng.uniform(0.1, 2.0), self._break_connection, source, there)
                for _ in range(3):
                    delay_s = rng.uniform(0.1, 3.0)
                    self.after(delay_s, self._make_room, there, source)
            case doubt:
                slow = rng.choice((a, b))
                for frontend_id in FRONTENDS:
                    self._stalled_until[slow, frontend_id] = self.now_s + seconds
                self._cut[a, b] = self._cut[b, a] = self.now_s + seconds
                if doubt == 5:  # one gets the request back, and dies before the other hears of it
                    other = a if slow == b else b
                    self.after(TIMING.answer_timeout_s + rng.uniform(0, 2), self._crash, other)

    def _crash_one(self) -> None:
        if instance_ids := self._instance_ids():
            self._crash(self.rng.choice(instance_ids))

    def _crash_frontend(self) -> None:
        self._crash(self.rng.choice(FRONTENDS))

    def _crash(self, member_id: str) -> None:
        if not self._healed:
            self._end_process(member_id)

    def _end_process(self, member_id: str) -> None:
        host = self.hosts.get(member_id)
        if host is None or host.process is None:
            return
        dead, host.process = host.process, None
        self.num_lost += 1
        self.note("crash", dead.address)
        host.inbox.clear()
        host.paused = False
        if isinstance(dead, Frontend):
            for request_id in list(dead.clients):
                self.ended(request_id, "cut", "its frontend died")
        else:
            self._gone.append(dead.ref)
        everybody = [*self.hosts, CONTROLLER]
        if self.rng.random() < 0.5:
            self._lost |= {(dead.address, each) for each in everybody}
        for each in everybody:
            self.after(self.rng.uniform(0.05, 3.0), self._hear_lost, each, dead.address)
        self.after(self.rng.uniform(0.5, 4.0), self._start_again, member_id)

    def _tell_lost(self, teller: str, dead: str) -> None:
        self._hear_lost(_member(teller), dead)

    def _hear_lost(self, member_id: str, dead: str) -> None:
        """The transfers of an instance fail with the other end."""
        if member_id == CONTROLLER:
            if self.controller is not None:
                self.controller.address_lost(dead)
            return
        host = self.hosts.get(member_id)
        if host is None or host.process is None:
            return
        process = host.process

        def hear() -> None:
            process.address_lost(dead)
            if isinstance(process, Instance):
                self._fail_copies_with(process, dead)

        self._do_there(process.address, hear)

    def _break_connection_to_one(self) -> None:
        """Of a frontend or the controller to an instance; both live."""
        instances = self._instances()
        if not instances or self._healed:
            return
        instance = self.rng.choice(instances)
        there = self.rng.choice([*FRONTENDS, CONTROLLER])
        self.num_lost += 1
        self.note("connection broken", there, instance.address)
        if there == CONTROLLER:
            self._called_dead.add(instance.ref.key)
        self._hear_lost(there, instance.address)

    def _break_connection_of_two(self) -> None:
        instance_ids = self._instance_ids()
        if len(instance_ids) > 1:
            self._break_connection(*self.rng.sample(instance_ids, 2))

    def _break_connection(self, a: str, b: str) -> None:
        """Between two that live: each takes the other for dead, one of them perhaps late or
        never."""
        there = [each for i in (a, b) if (each := self._instance(i)) is not None]
        if len(there) < 2 or self._healed:
            return
        self.num_lost += 1
        self.note("connection broken", *(each.address for each in there))
        for here, other in (there, reversed(there)):
            if self.rng.random() < 0.8:
                delay_s = self.rng.uniform(0.01, 2.0)
                self.after(delay_s, self._hear_lost, here.instance_id, other.address)

    def _pause_one(self) -> None:
        self._pause(self.rng.choice([*self._instance_ids(), *FRONTENDS]))

    def _pause(self, member_id: str) -> None:
        host = self.hosts.get(member_id)
        if host is None or host.process is None or host.paused or self._healed:
            return
        host.paused = True
        self.num_lost += 1
        self.note("pause", host.process.address)
        seconds = self.rng.choice([1.0, 3.0, 8.0])
        self.after(seconds, self._go_on, host.process.address)

    def _go_on(self, address: str) -> None:
        host, process = self.hosts[_member(address)], self._process(address)
        if process is None or not host.paused:
            return
        host.paused = False
        came, host.inbox = host.inbox, []
        for do in came:
            do()
            self._check(process)

    def _hang_one(self) -> None:
        if instance_ids := self._instance_ids():
            self._hang(self.rng.choice(instance_ids), self.rng.choice([1.0, 3.0, 8.0]))

    def _hang(self, instance_id: str, seconds: float) -> None:
        instance = self._instance(instance_id)
        if instance is not None and not self._healed:
            self.num_lost += 1
            self.note("hang", instance.address, seconds)
            instance.hangs_until_s = self.now_s + seconds

    def _notice_one(self) -> None:
        """The process will be ended, whoever says so."""
        instances = self._instances()
        if len(instances) < 2:
            return
        instance, within_s = self.rng.choice(instances), self.rng.choice([1.0, 4.0])
        self.note("notice", instance.address, within_s)
        instance.ends_at_s = self.now_s + within_s

        def end() -> None:
            if self._process(instance.address) is not None:
                self._end_process(instance.instance_id)

        self._do_there(instance.address, instance.say_hello)
        self.after(within_s + 2.0, end)

    def _machine_leaves(self) -> None:
        """A file there says so, which may be taken away again, or the launcher does."""
        dice = self.machine_dice
        if self._healed or len(self._instances()) < 2:
            return
        machine = dice.choice(sorted({each.machine for each in self._instances()}))
        within_s, is_launchers = dice.choice([2.0, 6.0]), dice.random() < 0.5
        self.note("machine", machine, within_s, is_launchers)
        self.leaving[machine] = self.now_s + within_s, is_launchers
        if not is_launchers and dice.random() < 0.5:
            self.after(dice.uniform(0.5, within_s), self._file_is_gone, machine)
        else:
            self.after(within_s, self._machine_is_gone, machine)

    def _file_is_gone(self, machine: str) -> None:
        self.leaving.pop(machine, None)

    def _machine_is_gone(self, machine: str) -> None:
        """There is another one in its place, with another name."""
        self.note("machine gone", machine)
        self.num_machines_gone += 1
        for instance in self._instances():
            if instance.machine == machine:
                self.num_lost += 1
                self._end_process(instance.instance_id)
        self.leaving.pop(machine, None)

    def machine_leaves_in_s(self, machine: str) -> float | None:
        at_s, is_launchers = self.leaving.get(machine, (0.0, True))
        return None if is_launchers else at_s - self.now_s

    def drained_machines(self) -> dict[str, float | None]:
        base_s = self._wall_s() - self.now_s
        return {machine: base_s + at_s for machine, (at_s, said) in self.leaving.items() if said}

    def _machine_of(self, instance_id: str) -> str:
        return f"m-{int(instance_id[2:]) % 2}-{self.num_machines_gone}"

    def _crash_controller(self) -> None:
        if self.controller is None or self._healed:
            return
        self.note("crash", CONTROLLER)
        self.num_lost += 1
        self.controller.die()
        self.controller = None
        self.after(self.rng.uniform(0.3, 5.0), self._start_controller)

    def _start_controller(self) -> None:
        self.note("start", CONTROLLER, self.disk.spec.revision)
        self.controller = SimulatedController(
            self, self.send, self.launcher, self.disk, self.config, len(FRONTENDS)
        )

    def _pause_controller(self) -> None:
        if self.controller is not None and not self._healed:
            self.num_lost += 1
            self.note("pause", CONTROLLER)
            self.controller.loop.stand_still(self.rng.choice([1.5, 6.0]))

    def _fill_disk(self) -> None:
        self.disk.is_full = not self._healed
        self.after(self.rng.choice([1.0, 4.0]), setattr, self.disk, "is_full", False)

    def _lose_launcher(self) -> None:
        self.launcher.lost = not self._healed
        self.after(self.rng.choice([1.0, 4.0]), setattr, self.launcher, "lost", False)

    def _cut_link(self) -> None:
        """Nothing gets through, one way or both ways; it is lost."""
        instance_ids = self._instance_ids()
        if len(instance_ids) < 2:
            return
        a, b = self.rng.sample(instance_ids, 2)
        until_s = self.now_s + self.rng.choice([1.0, 3.0, 8.0])
        self._cut[a, b] = until_s
        if self.rng.random() < 0.6:
            self._cut[b, a] = until_s

    def _stall_link(self) -> None:
        """What is sent waits, and comes in the end."""
        a, b = self.rng.sample([*self._instance_ids(), *FRONTENDS, CONTROLLER], 2)
        seconds = self.rng.choice([1.0, 3.0, 8.0])
        self.note("stall", a, b, seconds)
        self._stalled_until[a, b] = self.now_s + seconds
        if b == CONTROLLER:  # which fences a member of which it hears nothing
            self.num_lost += 1

    def _client_leaves(self) -> None:
        if request := self._any_request():
            frontend, request_id = request
            frontend.client_leaves(request_id)

    def _evict(self) -> None:
        if instances := self._instances():
            self.rng.choice(instances).evict_one()

    def _change_rank(self) -> None:
        request = self._any_request()
        if request is None:
            return
        frontend, request_id = request
        rank, owner = self.rng.choice([0, 1, 2]), frontend.owner(request_id)
        if owner is None:
            frontend.change_rank(request_id, rank)
            return
        instance = self._process(owner.address)
        if isinstance(instance, Instance):
            self._do_there(owner.address, partial(instance.change_rank, request_id, rank))

    def _cancel_moves(self) -> None:
        if going_on := self._going_on():
            instance = self.rng.choice(going_on)
            instance.cancel_moves(list(instance.outgoing))

    def _heal(self) -> None:
        self._healed = True
        self._cut.clear()
        self._stalled_until.clear()
        self.disk.is_full = self.launcher.lost = False
        for host in self.hosts.values():
            if host.process is not None and host.paused:
                self._go_on(host.process.address)
            if isinstance(host.process, Instance):
                host.process.hangs_until_s = 0.0
        if self.controller is not None:
            self.controller.loop.go_on()
        self.config = replace(self.config, autoscale=LiveAutoscale(AutoscaleConfig(mode="off")))
        ends = self.rng.random() < 0.5
        for delay_s in (6.0, 9.0, 30.0):  # a controller is there by then, and has heard everybody
            self.after(delay_s, self._put_right, ends)

    def _put_right(self, ends: bool) -> None:
        """By operators: some instances are to serve. With `ends` no drain stays. A rolling restart
        waits while the others are drained."""

        def order(controller: ControllerProcess, _: str) -> None:
            if controller.live.autoscale.config.mode != "off":
                controller.configure(self.config)
            drains = controller.keeper.spec.drains
            serving = [i for i in controller.keeper.spec.instance_ids if i not in drains]
            for instance_id in sorted(drains):
                if (ends or not serving) and not drains[instance_id].notice:
                    controller.drains.end(instance_id, "put right")
            if controller.rolling.waits and self.now_s > FAULTS_S + 20.0:
                controller.rolling.stop("put right", "an operator")
            if controller.scaling.num_planned < 2:
                plan = controller.scaling.plan(2, force=True)
                controller.scaling.carry_out(plan, Remove("put right", self._wall_s()))

        self._order(order)

    # -- processes -------------------------------------------------------------------------

    def launch(self, member_id: str) -> None:
        """Starts a member's process, or finds it."""
        host = self.hosts.get(member_id)
        if host is None:
            self.hosts[member_id] = Host(member_id, python=self._python_of(member_id))
            self._start(member_id)
            if member_id not in FRONTENDS and self.now_s:
                self.after(TURN_S, self._turn, member_id)
        else:
            host.is_wanted = True
            if host.process is None:
                self._start_again(member_id)

    def end(self, member_id: str, *, for_good: bool) -> None:
        host = self.hosts.get(member_id)
        if host is not None:
            host.is_wanted, host.python = not for_good, self._python_of(member_id)
            self._end_process(member_id)

    def is_misplaced(self, member_id: str) -> bool:
        host = self.hosts.get(member_id)
        return host is not None and host.python != self._python_of(member_id)

    def _python_of(self, member_id: str) -> str:
        return "" if member_id in FRONTENDS else self.disk.spec.engine_of(member_id).python

    def _start_again(self, member_id: str) -> None:
        host = self.hosts[member_id]
        if host.is_wanted and host.process is None:
            self._start(member_id)

    def _start(self, member_id: str) -> None:
        host, rng = self.hosts[member_id], self.rng
        host.num_started += 1
        nonce = str(host.num_started)
        process: Instance | Frontend
        if member_id in FRONTENDS:
            process = Frontend(member_id, nonce, self)
        else:
            num_blocks = rng.choice([blocks_for(72), 20, 24, 32])
            engine = SimulatedEngine(next(self._num_engines), num_blocks)
            process = Instance(member_id, nonce, engine, self, rng.choice([1, 2, 4, 8]))
            process.python, process.machine = host.python, self._machine_of(member_id)
            process.step_time_s = rng.choice([TURN_S] * 9 + [4 * TURN_S])
            self.after(
                rng.uniform(0.1, 1.5), self._do_there, process.address, process.begin_serving
            )
        host.process = process
        self.note("start", process.address)
        self._say_hello(process)

    def _say_hello(self, process: Instance | Frontend) -> None:
        if self._process(process.address) is not None:
            self._do_there(process.address, process.say_hello)
            self.after(HELLO_S, self._say_hello, process)

    # -- turns ---------------------------------------------------------------------------

    def _turn(self, instance_id: str) -> None:
        """A step of the engine, and of the loop, which may be late."""
        self.after(TURN_S, self._turn, instance_id)
        instance = self._instance(instance_id)
        if instance is None or self.hosts[instance_id].paused:
            return
        if self.rng.random() < 0.8:
            instance.engine_turn()
            self._check(instance)
        if self.rng.random() < 0.8:
            instance.loop_turn()
            self._check(instance)

    def _frontend_turn(self) -> None:
        self.after(TURN_S, self._frontend_turn)
        for frontend in self._frontends():
            if not self.hosts[frontend.frontend_id].paused:
                frontend.tick()
        self.check_owners()
        self.check_read()
        if self.controller is not None and self.now_s >= self._check_at_s:
            self._check_at_s = self.now_s + TICK_S - 0.01
            self.controller.check()
        if self.errors.found:
            raise Violation("; ".join(self.errors.found))

    # -- deliveries ----------------------------------------------------------------------

    def _put(self, sender: InstanceRef, address: str, body: Any, in_order: bool) -> None:
        arrival_s = self._arrival_s(sender.address, address)
        if in_order:
            way = (sender.address, address)
            arrival_s = max(arrival_s, self._last_arrival.get(way, 0.0) + 1e-6)
            self._last_arrival[way] = arrival_s
        self.at(arrival_s, self._deliver, sender, address, body)

    def _arrival_s(self, sender: str, address: str) -> float:
        stalled_s = self._stalled_until.get((_member(sender), _member(address)), 0.0)
        return max(self.now_s, stalled_s) + self.rng.uniform(0.001, self.slowness_s)

    def _is_cut(self, sender: str, address: str) -> bool:
        return self._cut.get((_member(sender), _member(address)), 0.0) > self.now_s

    def _deliver(self, sender: InstanceRef, address: str, body: Any) -> None:
        if (sender.address, _member(address)) in self._lost:
            return
        if address == CONTROLLER:
            if self.controller is not None:
                self.controller.receive(body)
            return
        self._do_there(address, partial(self._hear, sender, address, body))

    def _hear(self, sender: InstanceRef, address: str, body: Any) -> None:
        if not isinstance(body, Message):
            self.note("said", address, _words(body))
        process = self._process(address)
        assert process is not None
        process.receive(sender, body)

    def _do_there(self, address: str, do: Callable[[], None]) -> None:
        """Unless that process has ended; when it goes on, if it is paused."""
        process = self._process(address)
        if process is None:
            return
        host = self.hosts[_member(address)]
        if host.paused:
            host.inbox.append(do)
            return
        do()
        self._check(process)

    def _copied(self, stage_id: str, fails: bool) -> None:
        copy = self._copies.get(stage_id)
        if copy is None or self._process(copy.source.address) is None:
            return
        if stage_id not in self._expected and not fails:  # called off there: nobody takes it
            fails = True
        contents = copy.read()
        if fails:
            self._fail_copy(stage_id)
            return
        _, expected = self._expected[stage_id]
        del self._copies[stage_id]
        self._do_there(copy.source.address, lambda: copy.sent(copy.num_blocks))
        delay_s = self.rng.uniform(0, self.slowness_s)
        self.after(delay_s, self._received, stage_id, expected, contents)

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
            self._do_there(copy.source.address, lambda: copy.sent(None))
        if stage_id in self._expected:
            owner, _ = self._expected[stage_id]
            self._do_there(owner, lambda: self._fail_expected(stage_id))

    def _fail_expected(self, stage_id: str) -> None:
        known = self._expected.pop(stage_id, None)
        if known is not None:
            known[1].received(None)

    def _cancelled(self, owner: str, stage_id: str) -> None:
        copy = self._copies.get(stage_id)
        if copy is not None and copy.source.address == owner:
            del self._copies[stage_id]
            self._do_there(owner, lambda: copy.sent(None))
        elif stage_id in self._expected and self._expected[stage_id][0] == owner:
            self._do_there(owner, lambda: self._fail_expected(stage_id))

    def _fail_copies_with(self, here: Instance, dead: str) -> None:
        for stage_id, copy in list(self._copies.items()):
            if copy.source.address == here.address and copy.destination.address == dead:
                del self._copies[stage_id]
                copy.sent(None)
        for stage_id, (owner, _) in list(self._expected.items()):
            migration_id = stage_id.split("/")[0]
            if owner == here.address and here.incoming[migration_id].source.address == dead:
                self._fail_expected(stage_id)

    # -- what must hold --------------------------------------------------------------------

    def _check(self, process: Instance | Frontend) -> None:
        if isinstance(process, Instance):
            process.check()

    def check_owners(self) -> None:
        """At most one instance decodes in the epoch that the frontend reads, but for those that
        the cluster has called dead, which hear of it soon."""
        for frontend in self._frontends():
            for request_id, route in frontend.routes.items():
                epoch = route.ownership.order.epoch
                owners = [
                    instance.ref.key
                    for instance in self._instances()
                    if request_id in instance.live
                    and instance.ref.key not in self._called_dead
                    and instance.live[request_id].epoch == epoch
                    and request_id in instance.engine.requests
                    and instance.engine.requests[request_id].place != "suspended"
                ]
                if len(owners) > 1:
                    raise Violation(f"{request_id} has two owners in {epoch}: {owners}")

    def check_read(self) -> None:
        """What an instance decodes a frontend reads, or will, or it says that it does not."""
        since_s, self._unread_since_s = self._unread_since_s, {}
        for instance in self._instances():
            for request_id, live in instance.live.items():
                request = instance.engine.requests.get(request_id)
                if request is None or request.place != "running":
                    continue
                if self._is_held_up(instance, live.frontend):
                    continue
                frontend = self._process(live.frontend)
                if isinstance(frontend, Frontend) and frontend.reads(
                    instance.ref, request_id, live.epoch
                ):
                    continue
                orphan = instance.address, request_id
                self._unread_since_s[orphan] = since_s.get(orphan, self.now_s)
                if self.now_s - self._unread_since_s[orphan] > UNREAD_S:
                    raise Violation(f"{request_id} runs at {orphan[0]} and nobody reads it")

    def _is_held_up(self, instance: Instance, frontend: str) -> bool:
        """One of both stands still, or what they said to each other takes its time."""
        ways = (instance.address, frontend), (frontend, instance.address)
        arrival_s = max(self._last_arrival.get(way, 0.0) for way in ways)
        is_late = arrival_s > self.now_s + self.slowness_s
        stands_still = (
            self.hosts[instance.instance_id].paused or self.hosts[_member(frontend)].paused
        )
        return stands_still or is_late or self.now_s < instance.hangs_until_s

    def unsettled(self) -> str:
        """What goes on still, or is remembered; empty: nothing."""
        wanted = {*FRONTENDS, *self.disk.spec.instance_ids}
        there = {key for key, host in self.hosts.items() if host.process is not None}
        if self.controller is None or there != wanted:
            return f"{sorted(there)} live, and {sorted(wanted)} are to"
        for frontend in self._frontends():
            if not frontend.is_empty:
                return f"{frontend.address} has {sorted(frontend.clients)}"
        for instance in self._instances():
            if not instance.is_empty or instance.relieving.view().under_way:
                return f"something is left on {instance.address}: {leftovers(instance)}"
            if instance.draining != (instance.instance_id in self.disk.spec.drains):
                return f"{instance.address} drains, or does not: {instance.draining}"
        return self.controller.unsettled()

    def check_quiet(self) -> None:
        for request_id, outcomes in self.outcomes.items():
            if len(outcomes) != 1:
                raise Violation(f"{request_id} ended {len(outcomes)} times: {outcomes}")
            outcome, why = outcomes[0]
            if (outcome, why) == ("refused", "unavailable") and self.was_shut:
                continue
            if outcome in ("error", "refused") and not self.num_lost:
                raise Violation(f"{request_id} failed, though nothing went wrong: {why}")
            if outcome == "error" and why not in MAY_FAIL:
                raise Violation(f"{request_id} failed: {why}")
        for instance in self._instances():
            if instance.engine.num_free != instance.engine.num_blocks:
                raise Violation(f"blocks leaked on {instance.address}")

    def digest(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    # ------------------------------------------------------------------------------------

    def _wall_s(self) -> float:
        assert self.controller is not None
        return self.controller.wall_s()

    def _process(self, address: str) -> Instance | Frontend | None:
        host = self.hosts.get(_member(address))
        if host is None or host.process is None or host.process.address != address:
            return None
        return host.process

    def _instance(self, instance_id: str) -> Instance | None:
        host = self.hosts.get(instance_id)
        return host.process if host is not None and isinstance(host.process, Instance) else None

    def _instances(self) -> list[Instance]:
        return [each.process for each in self.hosts.values() if isinstance(each.process, Instance)]

    def _going_on(self) -> list[Instance]:
        return [
            each
            for each in self._instances()
            if each.is_serving and not self.hosts[each.instance_id].paused
        ]

    def _instance_ids(self) -> list[str]:
        return [each.instance_id for each in self._instances()]

    def _frontends(self) -> list[Frontend]:
        return [each.process for each in self.hosts.values() if isinstance(each.process, Frontend)]

    def _any_request(self) -> tuple[Frontend, str] | None:
        found = [
            (frontend, request_id)
            for frontend in self._frontends()
            if not self.hosts[frontend.frontend_id].paused
            for request_id in sorted(frontend.clients)
        ]
        return self.rng.choice(found) if found else None


def _member(address: str) -> str:
    return address.split("#")[0]


def leftovers(instance: Instance) -> str:
    moves = {
        migration_id: str(move.machine.state)
        for moves in (instance.outgoing, instance.incoming)
        for migration_id, move in moves.items()
    }
    engine = instance.engine
    return (
        f"moves {moves}, requests {sorted(engine.requests)}, pins {sorted(engine.pins)}, "
        f"reserved {sorted(engine.reserved)}, live {sorted(instance.live)}, "
        f"entering {len(instance.entering)}, leaving {instance.relieving.view().under_way}"
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
    """The controller's mail is not encoded here, it ticks seldom, and its ids
    are the history's."""
    simulation = Simulation(seed)
    log = logging.getLogger("controller")
    level, log.propagate = log.level, False
    log.setLevel(logging.ERROR)
    log.addHandler(simulation.errors)
    ids = random.Random(seed)
    process = "controller.runtime.controller"
    try:
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(mock.patch(f"{process}.roster.encode", lambda message: message))
            enter(mock.patch(f"{process}.cluster.TICK_S", TICK_S))
            enter(mock.patch("secrets.token_hex", lambda n: f"{ids.getrandbits(8 * n):x}"))
            simulation.run()
    except Exception as error:
        tail = "\n".join(str(line) for line in simulation.trace[-30:])
        raise HistoryError(f"seed {seed}: {error!r} at {simulation.now_s:.2f} s\n{tail}") from error
    finally:
        log.removeHandler(simulation.errors)
        log.setLevel(level)
        log.propagate = True
        if simulation.controller is not None:
            simulation.controller.die()
    return simulation
