"""The global scheduler: events in, instructions out.

It sees instances and not the requests that run on them. It knows the latest status of each instance
and what was sent to the instance since then (`InstancePool`, which also chooses). It also knows the
requests that wait at the controller because no instance may take them. `now_s` is of any monotonic
clock.

    dispatch    at once, to the policy's choice among the schedulable instances
    hold        only while no instance is schedulable. If too many requests wait, the newest of the
                lowest rank is refused with Reject("overloaded"), even if it has waited for long
    release     as soon as an instance is schedulable: all of them, the higher rank first, then by
                arrival, then by id
    expire      on Ticked, Reject("unavailable") for those that have waited longer than the timeout
    late        on Ticked, those that have waited for the target of their level go last, or are
                refused with Reject("late"), as the level says

With late binding (`holding`, of llumnix+) a request also waits while it fits nowhere, and goes when
it fits (`Placement`). The timeout then counts from the moment when the last instance ceased to be
schedulable. A request that is larger than any instance goes at once, and the engine refuses it. So
does a request that some instance cannot run, to another one: it waits there. That is a request
whose LoRA adapter an instance cannot use, or one that no attached server can be given.

By design nothing survives a crash of the process. After a restart, loads and sequence numbers are
restored from InstanceStarted for each running instance and from the first statuses. Frontends ask
again.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from statistics import fmean

from controller.core.admission.api_keys import NO_KEYS, KeyTable, OwnLimits
from controller.core.admission.instance_pool import InstancePool
from controller.core.admission.placement import (
    Placement,
    WaitingPlace,
    WaitingView,
    best_fitting,
    is_backlogged,
)
from controller.core.admission.policies import POLICIES, Policy, SchedulerConfig
from controller.core.admission.waiting_requests import (
    DrainRate,
    Key,
    WaitingRequest,
    WaitingRequests,
)
from controller.core.emptying.room_plan import MakeRoom, MoveHead, help_blocked
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.scheduler_events import (
    ClosedBy,
    DispatchCancelled,
    DispatchRequested,
    Event,
    FrontendDied,
    InstanceStalled,
    Instruction,
    KeysTold,
    Reject,
    RejectCode,
    StatusReported,
    Ticked,
)

UNAVAILABLE_RETRY_S = 1
"""The Retry-After of this refusal, in seconds. A client that comes back early only waits at the
controller again, and so loses nothing."""


MOST_MEASURED = 1000
"""The prompts of so many waiting requests are looked at when their work is asked for."""
MAX_LATE = 500
"""How many requests may become late in one tick: 500 of 100,000 take 40 ms."""


class GlobalScheduler:
    def __init__(
        self,
        config: SchedulerConfig,
        own_limits: OwnLimits = NO_KEYS,
        policies: Mapping[str, Policy] = POLICIES,
    ) -> None:
        """`own_limits`: the limits of single API keys that differ from `config.key_limits`.
        `policies`: all policies, by name."""
        self._config = config
        self.keys = KeyTable(config.key_limits, own_limits)
        self._pool = InstancePool(config, policies)
        self.instances = self._pool.instances
        """The records of the instances, by id; others may only read them."""
        self.ordered = self._pool.ordered
        """For each instance id, the reasons of the spec against the instance. Instances without
        such reasons are left out."""
        self._waiting = WaitingRequests()
        self._drain_rate = DrainRate()
        self._placement = _placement(config)
        """Set with late binding. While no instance is schedulable, it may lack the newest requests
        of `_waiting`."""
        self._num_help_rounds = 0
        """How many rounds ordered something. Only such rounds change which request is first in the
        next round, so a simulated run can leave out rounds in which nobody needs help, with the
        same outcome."""
        self._last_schedulable_s = float("-inf")
        """The last tick at which an instance was schedulable; used with late binding."""
        self._late_at: list[tuple[float, Key]] = []
        """A heap of when requests become late. Some of them do not wait any more."""
        self._first_expires_s = float("-inf")
        """No waiting request can be overdue before this time. Without this value, each tick looked
        at every request: 18 ms for 100,000 requests."""

    def reconfigure(self, config: SchedulerConfig, now_s: float) -> list[Instruction]:
        """Uses another configuration from now on; returns what to do now, as `handle` does. Waiting
        requests go on waiting, even if there are more of them than a smaller limit now allows."""
        self._pool.configure(config)
        before_s = self._late_after_s()
        self._config = config
        self._first_expires_s = float("-inf")
        self.keys.limits = config.key_limits
        if self._placement is None or config.holding is None:
            self._placement = _placement(config)
        else:
            self._placement.config = config.holding
        if (after_s := self._late_after_s()) != before_s:
            self._judge_anew(after_s)
        return self._release(now_s)

    def schedulable_snapshots(self) -> list[InstanceSnapshot]:
        """The last snapshots of all instances that may get requests."""
        return self._pool.schedulable_snapshots()

    def num_cached_tokens(self, instance_id: str) -> int:
        """How many tokens of prompts and answers the instance has cached, by its reports."""
        return self._pool.num_cached_tokens(instance_id)

    def num_cold_tokens(self, instance_id: str) -> int:
        """How many tokens of prompts and answers only this instance has cached, by its reports."""
        return self._pool.num_cold_tokens(instance_id)

    @property
    def hold_timeout_s(self) -> float:
        return self._config.hold_timeout_s

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def waiting_demand_blocks(self) -> int:
        """The blocks that all waiting requests need in order to start. While an instance is
        schedulable, late binding already knows this sum, and nothing is counted anew."""
        if self._placement is not None and len(self._placement.queue) == len(self._waiting):
            return self._placement.queue.demand_blocks
        return sum(self._demand(waiting.request) for _, waiting in self._waiting.items())

    @property
    def waiting_work_s(self) -> float:
        """How long one instance would compute the prompts of all waiting requests, each where most
        of it is cached. Of many, MOST_MEASURED stand for all: 10,000 took 0.2 s."""
        some = islice(self._waiting.items(), MOST_MEASURED)
        works_s = [self._pool.work_s(waiting.request) for _, waiting in some]
        return fmean(works_s) * len(self._waiting) if works_s else 0.0

    @property
    def reserved(self) -> Mapping[str, Key]:
        """For each reserved instance, the request for which it is reserved."""
        return {} if self._placement is None else self._placement.reserved

    @property
    def placement(self) -> Placement | None:
        """The waiting requests of late binding and their reserved instances, only for reading; None
        without late binding."""
        return self._placement

    def waiting_view(self) -> WaitingView:
        """Which requests wait, and why; only for reading."""
        rooms = self._pool.rooms if self._pool.any_schedulable() else {}
        if self._placement is not None and len(self._placement.queue) == len(self._waiting):
            return WaitingView(self._placement.queue, self._placement, rooms)
        items = self._waiting.items()
        entries = [each.entry(key, self._demand(each.request)) for key, each in items]
        entries.sort(key=lambda each: each.order)
        return WaitingView(entries, self._placement, rooms)

    def best_reserved(self) -> dict[str, WaitingPlace]:
        """For each reserved instance, the request for which it is reserved. If several are reserved
        for one request, only the one that lacks the least is named. While no instance takes
        requests, none is reserved."""
        return self.waiting_view().best_reserved() if self._pool.any_schedulable() else {}

    def help_blocked(
        self,
        may_move: Callable[[str, str], bool] = lambda source_id, destination_id: True,
    ) -> list[MoveHead | MakeRoom]:
        """What a round does for blocked requests; nothing without late binding. `may_move`: whether
        a move from one instance to another may begin now. Mutates: after a round that orders
        something, the next one begins with another request."""
        if self._placement is None or not self._pool.any_schedulable():
            return []
        sources, destinations = list[InstanceSnapshot](), list[InstanceSnapshot]()
        for record in self.instances.values():
            if (snapshot := record.snapshot) is None:
                continue
            if record.may_receive:
                destinations.append(snapshot)
            # all requests of this instance leave in any case
            if record.may_send and not snapshot.draining:
                sources.append(snapshot)
        rooms, turn = self._pool.rooms, self._num_help_rounds
        orders = help_blocked(sources, destinations, rooms, self._placement, may_move, turn)
        self._num_help_rounds += bool(orders)
        return orders

    def choice(self, request: DispatchRequested, now_s: float) -> str | None:
        """Returns the instance to which this request would go at once. None if it would not go at
        once, which is always so while any request waits. Changes nothing."""
        if self._waiting or not self._pool.any_schedulable():
            return None
        if self._placement is None:
            return self._pool.choice(request)
        config, rooms = self._placement.config, list(self._pool.rooms.values())
        if config.by_time and is_backlogged(rooms, config, now_s):
            return None
        waiting = WaitingRequest(request, now_s)
        room = best_fitting(
            rooms,
            waiting.entry((request.frontend_id, request.request_id), self._demand(request)),
            self._pool.score_of(request.rank),
            self._pool.prompt(request),
            config,
            now_s,
            self._pool.wait_for(request),
        )
        return None if room is None else room.instance_id

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event in; returns what to do now, in order. Mutates.

        Waiting requests are dispatched as soon as an instance can take requests: when its status
        says so, or when the last reason to keep requests away from it (such as a drain or a cordon)
        ends. With late binding only requests that fit are dispatched.
        """
        match event:
            case StatusReported():
                ask = self._pool.report_cache(event, now_s)
                asked: list[Instruction] = [] if ask is None else [ask]
                more_room = self._pool.report(event, now_s)
                if self._placement is not None and self._placement.rests(now_s):
                    return asked
                return [*asked, *self._release(now_s, same_or_less=not more_room)]
            case DispatchRequested():
                return self._on_request(event, now_s)
            case DispatchCancelled():
                self._forget_waiting((event.frontend_id, event.request_id))
            case Ticked():
                late = self._late(now_s)
                return [*late, *self._release(now_s, same_or_less=not late), *self._expire(now_s)]
            case KeysTold():
                self.keys.told(event)
            case FrontendDied():
                for key in [key for key, _ in self._waiting.items() if key[0] == event.frontend_id]:
                    self._forget_waiting(key)
                self._pool.handle(event)
                self.keys.frontend_died(event.frontend_id)
            case ClosedBy(instance_id) | InstanceStalled(instance_id):
                self._pool.handle(event)
                record = self.instances.get(instance_id)
                if record is not None and record.schedulable:
                    return self._release(now_s)
            case _:
                self._pool.handle(event)
        return []

    def _on_request(self, event: DispatchRequested, now_s: float) -> list[Instruction]:
        key = (event.frontend_id, event.request_id)
        waiting = self._waiting.get(key)
        if waiting is not None:
            if waiting.request == event:
                return []  # frontends repeat their questions, in case an answer was lost
            self._forget_waiting(key)
            # The request's rank may have changed.
            self._waiting.hold(event, waiting.since_s, self._cost(event))
        elif (refusal := self.keys.asked(event)) is not None:
            return [_reject(event, refusal.code, refusal.retry_after_s)]
        elif self._config.holding is None and self._pool.any_schedulable():
            return [self._pool.dispatch(event, now_s)]
        else:
            self._waiting.hold(event, now_s, self._cost(event))
        released = [] if self._placement is None else self._release(now_s)
        if key in self._waiting:
            self._note_late_at(key, self._waiting[key], self._late_after_s())
        is_one_more = waiting is None and not event.replayed and key in self._waiting
        return [*released, *self._shed(now_s)] if is_one_more else released

    # -- late requests ---------------------------------------------------------------------

    def _late(self, now_s: float) -> list[Instruction]:
        """Refuses requests that have waited for the target of their level, or puts them behind the
        others of their level, as the level says; at most `MAX_LATE` in one call."""
        refused = list[DispatchRequested]()
        rules = self._late_after_s()
        for _ in range(MAX_LATE):
            if not self._late_at or self._late_at[0][0] > now_s:
                break
            late_s, key = heapq.heappop(self._late_at)
            waiting = self._waiting.get(key)
            if waiting is None or waiting.is_late:
                continue
            after_s, refuses = rules.get(waiting.request.rank, (math.inf, False))
            if late_s != waiting.since_s + after_s:
                continue  # the rank or the rules have changed since
            if refuses:
                self._forget_waiting(key)
                refused.append(waiting.request)
            else:
                self._set_late(key, is_late=True)
        # Their clients are to come back one after the other, as fast as requests leave.
        return [
            _reject(each, RejectCode.LATE, self._drain_rate.retry_after_s(num_before, now_s))
            for num_before, each in enumerate(refused, len(self._waiting) + 1)
        ]

    def _late_after_s(self) -> dict[int, tuple[float, bool]]:
        """For each rank with a rule for late requests, how long they may wait, and whether they are
        refused then."""
        return {
            level.rank: (level.target_ttft_s, level.when_late == "refuse")
            for level in self._config.levels
            if level.target_ttft_s is not None and level.when_late != "serve"
        }

    def _note_late_at(
        self, key: Key, waiting: WaitingRequest, rules: Mapping[int, tuple[float, bool]]
    ) -> None:
        rule = rules.get(waiting.request.rank)
        if rule is not None and not waiting.request.replayed:
            heapq.heappush(self._late_at, (waiting.since_s + rule[0], key))

    def _judge_anew(self, rules: Mapping[int, tuple[float, bool]]) -> None:
        """By other rules, no request is late yet."""
        self._late_at.clear()
        for key, waiting in list(self._waiting.items()):
            if waiting.is_late:
                self._set_late(key, is_late=False)
            self._note_late_at(key, waiting, rules)

    def _set_late(self, key: Key, *, is_late: bool) -> None:
        found = self._waiting.set_late(key, is_late=is_late)
        before = None if self._placement is None else self._placement.discard(key)
        if before is not None and self._placement is not None:
            self._placement.queue.push(found.entry(key, before.demand_blocks, before.behind_s))

    # --------------------------------------------------------------------------------------

    def _shed(self, now_s: float) -> list[Instruction]:
        """Refuses one of the waiting requests if too many wait."""
        limits = self._config.holding or self._config
        last = self._waiting.last() if len(self._waiting) > limits.max_held_reqs else None
        if last is None:
            return []
        self._forget_waiting((last.frontend_id, last.request_id))
        retry_after_s = self._drain_rate.retry_after_s(len(self._waiting), now_s)
        return [_reject(last, RejectCode.OVERLOADED, retry_after_s)]

    def _forget_waiting(self, key: Key) -> None:
        self._waiting.discard(key)
        if self._placement is not None:
            self._placement.discard(key)

    def _release(self, now_s: float, *, same_or_less: bool = False) -> list[Instruction]:
        """Dispatches all waiting requests if any instance may take them; with late binding, only
        the requests that fit. `same_or_less`: no instance can take more than at the previous call.
        """
        if not self._waiting or not self._pool.any_schedulable():
            return []
        if self._placement is not None:
            return self._place(self._placement, now_s, same_or_less=same_or_less)
        requests = (each.request for _, each in self._waiting.items())
        waiting = sorted(requests, key=lambda request: request.order)
        self._waiting = WaitingRequests()
        self._drain_rate.gone(now_s, len(waiting))
        return [self._pool.dispatch(request, now_s) for request in waiting]

    def _place(
        self, placement: Placement, now_s: float, *, same_or_less: bool
    ) -> list[Instruction]:
        if (
            same_or_less
            and len(placement.queue) == len(self._waiting)
            and placement.is_settled(self._pool.rooms, now_s)
        ):
            return []
        dispatched: list[Instruction] = []
        for key, waiting in reversed(list(self._not_placed(placement))):
            same_or_less = False
            behind_s = placement.config.short_first * self._pool.work_s(waiting.request)
            entry = waiting.entry(key, self._demand(waiting.request), behind_s)
            fits = any(r.capacity_blocks >= entry.demand_blocks for r in self._pool.rooms.values())
            if fits and self._pool.may_wait_for_room(waiting.request):
                placement.queue.push(entry)
            else:
                self._waiting.discard(key, served=True)
                dispatched.append(self._pool.dispatch(waiting.request, now_s))
        for placed in placement.place(
            self._pool.rooms,
            self._pool.score_of,
            lambda key: self._pool.prompt(self._waiting[key].request),
            now_s,
            lambda key: self._pool.wait_for(self._waiting[key].request),
            same_or_less=same_or_less,
        ):
            request = self._waiting[placed.waiting.key].request
            self._waiting.discard(placed.waiting.key, served=True)
            dispatched.append(self._pool.dispatch_to(placed.instance_id, request, now_s))
        self._drain_rate.gone(now_s, len(dispatched))
        return dispatched

    def _cost(self, request: DispatchRequested) -> float:
        """How many tokens of its key's share the request is expected to take; 0 if keys do not
        count."""
        holding = self._config.holding
        if holding is None or not holding.fair_keys or not request.api_key:
            return 0.0
        return max(1.0, request.num_prompt_tokens + self.keys.mean_output(request.api_key))

    def _demand(self, request: DispatchRequested) -> int:
        """The blocks that a request needs in order to start; 0 while no instance has reported."""
        known = next((r.snapshot for r in self.instances.values() if r.snapshot), None)
        return 0 if known is None else known.demand_for(request.num_prompt_tokens)

    def _not_placed(self, placement: Placement) -> Iterator[tuple[Key, WaitingRequest]]:
        """The waiting requests that `placement` does not know yet, the newest first."""
        for key, waiting in self._waiting.latest_first():
            if key in placement.queue:
                return  # `placement` knows all earlier ones
            yield key, waiting

    def _expire(self, now_s: float) -> list[Instruction]:
        if self._placement is not None and self._pool.any_schedulable():
            self._last_schedulable_s = now_s
            return []
        timeout_s = self._config.hold_timeout_s
        if now_s < self._first_expires_s:
            return []
        since_s, first_s, expired = self._last_schedulable_s, now_s, []
        for _, waiting in self._waiting.items():
            waits_since_s = max(waiting.since_s, since_s)
            if now_s >= waits_since_s + timeout_s:
                expired.append(waiting.request)
            else:
                first_s = min(first_s, waits_since_s)
        self._first_expires_s = first_s + timeout_s
        expired.sort(key=lambda request: request.order)
        for each in expired:
            self._forget_waiting((each.frontend_id, each.request_id))
        return [_reject(each, RejectCode.UNAVAILABLE, UNAVAILABLE_RETRY_S) for each in expired]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self._pool.check()
        if self._placement is not None:
            self._placement.check()
            assert all(waiting.key in self._waiting for waiting in self._placement.queue)
        self._waiting.check()
        if self._waiting and self._placement is None:
            assert not self._pool.schedulable_snapshots(), "held though one may take it"


def _placement(config: SchedulerConfig) -> Placement | None:
    return Placement(config.holding) if config.holding is not None else None


def _reject(request: DispatchRequested, code: RejectCode, retry_after_s: int) -> Reject:
    return Reject(request.request_id, request.frontend_id, code, retry_after_s, request.rank)
