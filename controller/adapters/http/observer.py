"""The observer of the cluster: once a second it looks at the status that clients see, adds it to
the history, and has the machine of verdicts judge it. `seen_of` and `present_of` turn a status into
the plain values of the core."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from controller.adapters.http.calls import shown
from controller.api.figures import (
    gauges_of,
    held_blocks,
    loads_by_level,
    serving_instances,
    takes_requests,
    usable_blocks,
    wanted_blocks,
)
from controller.api.settings.settings import ConsoleTable
from controller.api.text.alarms import ABSENT_STATES, Alarm, alarms
from controller.api.text.quantities import per_instance_hour
from controller.api.text.status_words import free_blocks, head_wait_s, is_reserved
from controller.api.wire.history import Column, HistoryReport, LevelHistory
from controller.api.wire.status import (
    AlarmStatus,
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceStatus,
    VerdictOrder,
    VerdictStatus,
)
from controller.core.record.alarm_book import AlarmBook, Cleared
from controller.core.record.event_log import EventKind
from controller.core.record.history import (
    COUNTS,
    FINE_S,
    GAUGES,
    INSTANCE_FIGURES,
    UNKNOWN,
    History,
    InstanceFigures,
    LevelPoint,
    LevelSeen,
    Point,
    Sample,
    Seen,
    points,
)
from controller.core.record.verdict import (
    SLOW_MOVE_S,
    Absent,
    Blocked,
    Leaving,
    Present,
    SlowMove,
    StuckDrain,
    Verdict,
    Verdicts,
)
from controller.core.record.windows import MINUTE_S, ServedInAll
from controller.ports.processes import HistoryStore
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.repeating import GuardedTurns

MAX_ENDED_ALARMS = 20
"""A status has the last ones that ended."""
MAX_POINTS = 2000
LONGEST_START_S = 120.0
"""If the cluster is older than its controller by more than this, another controller ran before."""


class HistoryQuery(BaseModel):
    """Asks for the last `last_s` seconds, and only for what is newer than `after_s` (seconds since
    the epoch), in at most `points` points. `instances`: whether the figures of each instance are
    wanted, too."""

    model_config = ConfigDict(extra="forbid")

    last_s: float = Field(default=900.0, gt=0, le=30 * 86_400)
    after_s: float | None = Field(default=None, ge=0)
    points: int = Field(default=300, ge=1, le=MAX_POINTS)
    instances: bool = False


class Observer:
    """`new_status` makes a status. `limits`: at which figures alarms are raised. Without a `store`
    the history lasts as long as this process. The status may be about several models, each with its
    controller; then there are only the history, and no verdict and no alarms of their own."""

    def __init__(
        self,
        controllers: Sequence[ControllerProcess],
        new_status: Callable[[], ClusterStatus],
        limits: ConsoleTable,
        store: HistoryStore | None = None,
    ) -> None:
        self._controllers = controllers
        self._controller = controllers[0]
        self._new_status = new_status
        self._limits = limits
        self._store = store
        self.history = History(store.load() if store is not None else ())
        self.verdicts = Verdicts()
        self.alarm_book = AlarmBook()
        self._alarms: Sequence[Alarm] = ()
        self._output: tuple[float, float | None] | None = None
        """The output of the last minute: tokens per second, and per instance-hour."""

    async def run(self) -> None:
        turns = GuardedTurns(self._controller.now_s)
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(FINE_S)
            before_s, looked_s = looked_s, time.monotonic()
            span_s = looked_s - before_s
            turns.take("the look at the cluster", lambda: self.look(span_s))  # noqa: B023  # taken at once

    def look(self, span_s: float) -> None:
        status = self._new_status()
        seen = seen_of(status, self._totals(status), self._served())
        coarse = self.history.handle(seen, span_s)
        if coarse is not None and self._store is not None:
            self._store.keep(coarse)
        sample = self.history.latest
        assert sample is not None
        self._output = _output_of(self.history.since(sample.time_s - MINUTE_S))
        if len(self._controllers) > 1:
            return
        loss = self._controller.launcher_loss
        launcher = "" if loss is None else loss.what
        moves = self._controller.live.rescheduling.enabled
        self._judge(present_of(status, sample, launcher, moves=moves))
        self._look_for_alarms(status)

    def with_output(self, status: ClusterStatus) -> ClusterStatus:
        """The status with the output of the last minute."""
        tokens_per_s, per_hour = self._output or (None, None)
        return status.model_copy(
            update={"tokens_per_s": tokens_per_s, "tokens_per_instance_hour": per_hour}
        )

    def with_findings(self, status: ClusterStatus) -> ClusterStatus:
        """The status with the verdict and the alarms of the latest look."""
        raised, ended = self.alarm_book.view()
        verdict = self.verdicts.view()
        return self.with_output(status).model_copy(
            update={
                "verdict": None if verdict is None else verdict_status(verdict),
                "alarms": (
                    *(shown(AlarmStatus, each) for each in raised),
                    *(shown(AlarmStatus, each) for each in ended[:MAX_ENDED_ALARMS]),
                ),
            }
        )

    async def report(self, query: HistoryQuery) -> bytes:
        """The answer to a question, as JSON. A thread makes it: for 1,024 instances that takes
        seconds."""
        begin_s = time.time() - query.last_s
        if query.after_s is not None:
            begin_s = max(begin_s, query.after_s)
        samples = self.history.since(begin_s - MINUTE_S)
        return await asyncio.to_thread(_answer, samples, begin_s, query)

    def _judge(self, present: Present) -> None:
        changed = self.verdicts.handle(present)
        if changed is None:
            return
        verdict, before = changed.verdict, changed.before
        self._controller.journal.note(
            EventKind.VERDICT,
            f"verdict-{verdict.word}",
            f"{self._of_model}{verdict.word}: {verdict.why}",
            numbers={"lasted_s": round(changed.lasted_s, 1)},
            labels={"before": str(before.word), "word": str(verdict.word)},
        )

    @property
    def _of_model(self) -> str:
        """`small: `, where the words are about one of several models."""
        return f"{self._controller.model}: " if self._controller.model else ""

    def _look_for_alarms(self, status: ClusterStatus) -> None:
        self._alarms = alarms(status, self._limits, self._alarms)
        found: dict[str, str] = {}
        for each in self._alarms:
            words = [found[each.subject]] if each.subject in found else []
            found[each.subject] = "; ".join([*words, *each.causes])
        instance_ids = {each.id for each in status.instances}
        for event in self.alarm_book.handle(found, status.time_s):
            is_instance = event.subject in instance_ids
            lasted_s = event.lasted_s if isinstance(event, Cleared) else None
            self._controller.journal.note(
                EventKind.ALARM_RAISED if lasted_s is None else EventKind.ALARM_CLEARED,
                f"alarm-{event.subject}",
                event.text if is_instance else f"{self._of_model}{event.subject}: {event.text}",
                instance_id=event.subject if is_instance else None,
                numbers={} if lasted_s is None else {"lasted_s": round(lasted_s, 1)},
            )

    def _served(self) -> Mapping[str, ServedInAll]:
        return {
            f"{each.model}/{frontend.member_id}/{frontend.said.nonce}": frontend.said.served
            for each in self._controllers
            for frontend in each.roster.frontends()
        }

    def _totals(self, status: ClusterStatus) -> Mapping[str, Mapping[str, int]]:
        by_outcome = {
            each.model: each.operator_moves.log.num_by_outcome for each in self._controllers
        }
        return {
            "num_evictions": {
                f"{each.id}/{each.incarnation}": each.num_evictions or 0
                for each in status.instances
            },
            "num_migrated": {model: each["migrated"] for model, each in by_outcome.items()},
            "num_failed_moves": {
                model: each["kept"] + each["resumed"] for model, each in by_outcome.items()
            },
            "num_replayed": {
                each.model: sum(each.replays.counts().values()) for each in self._controllers
            },
        }


# -- what clients see ------------------------------------------------------------------------------


def verdict_status(verdict: Verdict) -> VerdictStatus:
    order = None if verdict.order is None else shown(VerdictOrder, verdict.order)
    return shown(VerdictStatus, verdict, since_s=round(verdict.since_s, 3), order=order)


def _output_of(found: Sequence[Sample] | Sequence[Point]) -> tuple[float, float | None] | None:
    """The output tokens per second and per instance-hour; None if no time has passed."""
    span_s = sum(each.span_s for each in found)
    if span_s <= 0:
        return None
    tokens_per_s = sum(each.counts.get("num_output_tokens", 0) for each in found) / span_s
    instances = sum(each.gauges.get("num_instances", 0.0) * each.span_s for each in found) / span_s
    return tokens_per_s, per_instance_hour(tokens_per_s, instances)


def _answer(samples: Sequence[Sample], begin_s: float, query: HistoryQuery) -> bytes:
    found = points(samples, begin_s, query.points, instances=query.instances)
    return _report(found, instances=query.instances).model_dump_json().encode()


def _report(found: Sequence[Point], *, instances: bool) -> HistoryReport:
    levels = {name: None for each in found for name in each.levels}
    outputs = [_output_of([each]) or (None, None) for each in found]
    ids = {name: None for each in found for name in each.instances} if instances else {}
    return HistoryReport(
        time_s=tuple(round(each.time_s, 3) for each in found),
        span_s=tuple(round(each.span_s, 3) for each in found),
        cluster={
            **{name: _column(each.gauges.get(name) for each in found) for name in GAUGES},
            **{name: tuple(each.counts.get(name) for each in found) for name in COUNTS},
            "tokens_per_s": _column(tokens_per_s for tokens_per_s, _ in outputs),
            "tokens_per_instance_hour": _column(per_hour for _, per_hour in outputs),
        },
        levels={name: _level_history([e.levels.get(name) for e in found]) for name in levels},
        instances={
            instance_id: {
                figure: _column(
                    each.instances[instance_id][at] if instance_id in each.instances else None
                    for each in found
                )
                for at, figure in enumerate(INSTANCE_FIGURES)
            }
            for instance_id in ids
        },
    )


def _level_history(found: Sequence[LevelPoint | None]) -> LevelHistory:
    return LevelHistory(
        num_running_reqs=_column(None if e is None else e.num_running for e in found),
        num_waiting_reqs=_column(None if e is None else e.num_waiting for e in found),
        ttft_p50_s=_column(None if e is None else e.ttft_p50_s for e in found),
        ttft_p99_s=_column(None if e is None else e.ttft_p99_s for e in found),
        tpot_p99_s=_column(None if e is None else e.tpot_p99_s for e in found),
    )


def _column(values: Iterable[float | None]) -> Column:
    return tuple(
        None if each is None or not math.isfinite(each) else float(f"{each:.4g}") for each in values
    )


# -- a status as plain values ----------------------------------------------------------------------


def seen_of(
    status: ClusterStatus,
    totals: Mapping[str, Mapping[str, int]],
    served: Mapping[str, ServedInAll],
) -> Seen:
    return Seen(
        status.time_s,
        gauges_of(status),
        totals,
        served,
        {name: LevelSeen(*loads) for name, loads in loads_by_level(status).items()},
        {each.id: _figures(each) for each in status.instances},
    )


def present_of(
    status: ClusterStatus, sample: Sample, launcher: str = "", *, moves: bool = True
) -> Present:
    """`launcher`: why no process can be started; empty if it can. `moves`: whether requests may
    move."""
    absent = [
        *(_absent(each, launcher) for each in status.instances if each.state in ABSENT_STATES),
        *(_absent(each, launcher) for each in status.frontends if each.state in ABSENT_STATES),
    ]
    serving = serving_instances(status)
    autoscale = status.autoscale
    num_adding = sum(each.state == "starting" for each in status.instances)
    if autoscale.mode == "on" and autoscale.held is None and autoscale.num_wanted is not None:
        num_adding = max(num_adding, autoscale.num_wanted - autoscale.num_instances)
    return Present(
        sample,
        is_stopping=status.state is ClusterState.STOPPING,
        is_starting=status.state is ClusterState.STARTING,
        absent=absent,
        launcher=launcher,
        num_wanted=len(status.instances),
        num_serving=len(serving),
        attached_only=bool(status.instances) and all(e.attached for e in status.instances),
        num_waiting_on=sum(bool(each.num_waiting_reqs) for each in serving),
        blocked=_blocked(status),
        room_blocks={
            each.id: free_blocks(each) or 0
            for each in serving
            if takes_requests(each) and not is_reserved(each) and each.attached is None
        },
        step_times_s={
            each.id: each.step_time_s
            for each in serving
            if each.num_running_reqs and each.step_time_s is not None
        },
        slow_moves=[
            SlowMove(
                each.from_instance_id,
                each.to_instance_id,
                each.age_s,
                each.num_blocks_copied,
                each.num_blocks,
            )
            for each in status.moves
            if each.age_s >= SLOW_MOVE_S
        ],
        drained=[each.id for each in status.instances if each.drain is not None],
        stuck_drain=_stuck_drain(status),
        leaving=[
            Leaving(
                each.instance_ids, each.leaves_at_s - status.time_s, each.why, each.takes_endpoint
            )
            for each in status.notices
            if each.instance_ids or each.takes_endpoint
        ],
        controller_back_s=status.uptime_s
        if status.cluster_uptime_s > status.uptime_s + LONGEST_START_S
        else None,
        num_adding=num_adding,
        cold_start_s=autoscale.cold_start_s,
        moves=moves,
        targets_s={
            each.name: each.target_ttft_s
            for each in status.levels
            if each.target_ttft_s is not None
        },
    )


def _absent(member: InstanceStatus | FrontendStatus, launcher: str) -> Absent:
    words, num_requests = "failed to start", 0
    if member.state == "restarting":
        drain = member.drain if isinstance(member, InstanceStatus) else None
        is_ordered = drain is not None and drain.restarts
        dead = "died" if launcher else "died and starts again"
        words = "is being restarted" if is_ordered else dead
    elif member.state == "stalled":
        words = "" if member.age_s is None else f" for {member.age_s:.0f} s"
        words = f"is silent{words}"
        if isinstance(member, InstanceStatus):
            num_requests = (member.num_running_reqs or 0) + (member.num_waiting_reqs or 0)
        if num_requests:
            words += f", {num_requests} requests stand still on it"
    return Absent(member.id, str(member.state), words, num_requests)


def _stuck_drain(status: ClusterStatus) -> StuckDrain | None:
    found = [
        StuckDrain(each.id, status.time_s - each.drain.deadline_s, each.drain.num_requests_left)
        for each in status.instances
        if each.drain is not None
        and each.drain.deadline_s is not None
        and status.time_s > each.drain.deadline_s
        and not each.drain.safe_to_delete
    ]
    return max(found, key=lambda each: each.overdue_s, default=None)


def _blocked(status: ClusterStatus) -> Blocked | None:
    found = [
        Blocked(
            head.request_id,
            each.id,
            head.demand_blocks,
            head_wait_s(head) or 0.0,
            free_blocks(each) or 0,
        )
        for each in status.instances
        if each.attached is None  # from a server no request can move
        and (head := each.queue_head) is not None
        and head.why in ("memory", "fragmented")
    ]
    if status.held is not None:
        oldest = status.held.oldest or status.held.head
        if oldest.demand_blocks is not None and oldest.why in ("memory", "fragmented", "kept"):
            free = oldest.demand_blocks - (oldest.lacking_blocks or 0)
            found.append(
                Blocked(oldest.request_id, "", oldest.demand_blocks, oldest.waited_s, free)
            )
    return max(found, key=lambda each: each.waited_s, default=None)


def _figures(item: InstanceStatus) -> InstanceFigures:
    total = usable_blocks(item)
    return (
        UNKNOWN if item.freeness_steps is None else item.freeness_steps,
        held_blocks(item) / total if total > 0 else UNKNOWN,
        wanted_blocks(item) / total if total > 0 else UNKNOWN,
        UNKNOWN if item.num_running_reqs is None else float(item.num_running_reqs),
        UNKNOWN if item.num_waiting_reqs is None else float(item.num_waiting_reqs),
        UNKNOWN if item.ttft_p99_s is None else item.ttft_p99_s,
    )
