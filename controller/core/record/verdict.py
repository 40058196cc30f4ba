"""The machine that says how the cluster is, in one word, with the cause and the best order.

    word              when
    starting          the cluster has not served yet
    stopping          it is being stopped
    degraded          a member is missing, or no process can be started
    overloaded        requests wait for long, and the instances together have no room or time
    short of memory   requests are evicted again and again
    fragmented        a request waits for long, and all instances together have room for it
    unbalanced        a request waits for long, and another instance has room for it
    slow              an instance computes much slower than the others, moves take very long, or a
                      drain does not end
    recovering        the trouble is over, and the last minute's figures still show it; or the
                      controller has just come back
    ok                none of these

The worst word counts. One look may be wrong: so a worse word must hold for a while before it is
said, and a better one for longer. Only members whose process is gone count at once, as that is no
measurement; one that is silent may be heard again, above all after a pause of the controller.
After trouble the cluster is recovering for a minute, or until it is ok and first tokens come in
time again.

The words are for operators: figures first, then the cause. `Order` is the one thing that helps
most, with what can be expected of it; it is empty where waiting is best.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from statistics import median

from controller.core.record.history import Sample
from controller.core.record.windows import MINUTE_S, added, percentile_of
from controller.core.value import value


class Word(StrEnum):
    OK = "ok"
    RECOVERING = "recovering"
    SLOW = "slow"
    UNBALANCED = "unbalanced"
    FRAGMENTED = "fragmented"
    SHORT_OF_MEMORY = "short of memory"
    OVERLOADED = "overloaded"
    DEGRADED = "degraded"
    STARTING = "starting"
    STOPPING = "stopping"


_GRAVITY = {word: gravity for gravity, word in enumerate(Word)}
_AT_ONCE = frozenset({Word.STARTING, Word.STOPPING})
_WAITING = frozenset({Word.OVERLOADED, Word.FRAGMENTED, Word.UNBALANCED})
TROUBLE = _WAITING | {Word.SLOW, Word.SHORT_OF_MEMORY}


class Severity(StrEnum):
    """How bad it is. WARN: users hardly notice, or it ends by itself."""

    QUIET = "quiet"
    WARN = "warn"
    BAD = "bad"


_SEVERITIES = {
    Word.OK: Severity.QUIET,
    **dict.fromkeys((Word.SHORT_OF_MEMORY, *_WAITING), Severity.BAD),
}
"""Those of other words are WARN; a degraded cluster may be worse."""
RAISED_AFTER_S = 3.0
"""A worse word must hold for so long."""
WAITING_AFTER_S = 1.0
"""That requests wait for long: a wait only grows, so that two looks are enough."""
CLEARED_AFTER_S = 5.0
"""A better word must hold for so long."""
RECOVERS_FOR_S = 60.0
"""The figures of the last minute know the trouble for so long after its end."""
LONG_WAIT_S = 5.0
"""From so long a wait on, requests wait for room and not for their turn."""
FULL_SHARE = 0.95
"""The instances together have no room if requests want this share of their memory."""
LONG_BACKLOG_S = 2.0
"""The instances together have no time if each would compute prompts for so long."""
CLEARED_SHARE = 0.8
"""While they are said to have none, this share of the two limits above is enough. Half of the wait
is, as the wait of the longest one falls with each request that goes."""
MANY_EVICTIONS = 6
"""So many evictions in the last minute for two instances are trouble: some happen on a good day, as
requests grow."""
BUSY_SHARE = 0.8
"""Below this share of the memory, evictions of the last minute are over."""
SLOW_FACTOR = 3.0
"""An instance is slow if its steps take so many times as long as those of the others: medians, as a
step that computes prompts takes several times as long as one that decodes."""
FEWEST_OTHERS = 2
SLOW_FOR_S = 20.0
"""For so long at least."""
FEWEST_LOOKS = 5
OVERDUE = 1.5
"""From so many times its usual length on, a start is late."""
SLOW_MOVE_S = 15.0
"""A move is slow from this time on; nearly all take less than a second."""
NEW_CONTROLLER_S = 15.0
"""A controller that came back says so for this long."""
LONG_TTFT_S = 10.0
"""First tokens come in time if 99 of 100 take less than this, or than the target of their level."""


class Deed(StrEnum):
    """What an operator can do."""

    ADD = "add"
    """Add an instance."""
    RESTART = "restart"
    LOGS = "logs"
    DRAIN = "drain"
    MOVES_ON = "moves-on"
    """Let requests move (`migration.enabled`)."""
    MOVE = "move"
    """Move the request to the instance that has room for it."""
    LOOK = "look"
    """Look at the instance and its machine."""
    WAIT = "wait"
    """Nothing has to be done."""


@value
class Order:
    """`target`: the instance that it is about, or the request. `to`: where that goes. `expected`:
    what it will do, in words."""

    deed: Deed
    target: str = ""
    expected: str = ""
    to: str = ""


@value
class Absent:
    """A member that does not serve although it should. `words`: what is known of it.
    `num_requests`: those that stand still on it."""

    member_id: str
    state: str
    words: str
    num_requests: int = 0


@value
class Blocked:
    """The request that has waited longest for memory. `instance_id`: where it waits; empty at the
    controller. `free_blocks`: what it could take there."""

    request_id: str
    instance_id: str
    demand_blocks: int
    waited_s: float
    free_blocks: int


@value
class SlowMove:
    source_id: str
    destination_id: str
    age_s: float
    num_copied: int
    num_blocks: int


@value
class StuckDrain:
    """A drain past its deadline."""

    instance_id: str
    overdue_s: float
    num_left: int


@value
class Leaving:
    """Instances that have to be gone in `in_s`, by a notice. `takes_endpoint`: the endpoint goes
    with their machine."""

    instance_ids: Sequence[str]
    in_s: float
    why: str
    takes_endpoint: bool = False


@value
class Present:
    """What one look at the cluster finds. `launcher`: why no process can be started; empty if it
    can. `num_waiting_on`: on how many instances requests wait; 0 if they wait at the controller.
    `room_blocks`: for each instance that is open to requests and reserved for none, and to which
    requests can move, the blocks that no request claims. `step_times_s`: of the instances that run
    requests. `num_adding`: the instances that start or that auto-scaling wants. `attached_only`:
    whether the model runs on attached servers only, so that llumctl can add none. `targets_s`: the
    TTFT targets of levels. `controller_back_s`: for how long this controller has run, if another
    one ran before it."""

    sample: Sample
    is_stopping: bool = False
    is_starting: bool = False
    absent: Sequence[Absent] = ()
    launcher: str = ""
    num_wanted: int = 0
    num_serving: int = 0
    num_waiting_on: int = 0
    blocked: Blocked | None = None
    room_blocks: Mapping[str, int] = field(default_factory=dict)
    step_times_s: Mapping[str, float] = field(default_factory=dict)
    slow_moves: Sequence[SlowMove] = ()
    drained: Collection[str] = ()
    stuck_drain: StuckDrain | None = None
    leaving: Sequence[Leaving] = ()
    controller_back_s: float | None = None
    num_adding: int = 0
    attached_only: bool = False
    cold_start_s: float | None = None
    moves: bool = True
    targets_s: Mapping[str, float] = field(default_factory=dict)


@value
class Verdict:
    """`since_s`: when the cluster began to be so, in seconds since the epoch. `about`: the member
    that is the cause, if one is."""

    word: Word
    severity: Severity
    since_s: float
    why: str
    about: str = ""
    order: Order | None = None


@value
class Changed:
    """The word has changed: `before` was said for `lasted_s` seconds."""

    verdict: Verdict
    before: Verdict
    lasted_s: float


class Verdicts:
    """Looks at the cluster each second. Times are by the clock of the samples."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._found: Word | None = None
        """What the latest looks found."""
        self._found_since_s = 0.0
        self._trouble_until_s: float | None = None
        """When trouble was last said; None if it never was, or is over for good."""
        self._absent_since_s: dict[str, float] = {}
        self._minute: deque[Sample] = deque()
        self._step_times: deque[tuple[float, Mapping[str, float]]] = deque()
        """The lengths of steps of the last SLOW_FOR_S, by look."""

    def view(self) -> Verdict | None:
        """None before the first look."""
        return self._verdict

    def handle(self, present: Present) -> Changed | None:
        """Takes a look. Returns the change if another word is said now."""
        now_s = present.sample.time_s
        if self._minute and now_s < self._minute[-1].time_s:
            self._begin_anew(now_s)
        self._minute.append(present.sample)
        while self._minute[0].time_s <= now_s - MINUTE_S:
            self._minute.popleft()
        self._step_times.append((now_s, present.step_times_s))
        while self._step_times[0][0] <= now_s - SLOW_FOR_S:
            self._step_times.popleft()
        said = Word.OK if self._verdict is None else self._verdict.word
        ids = [each.member_id for each in present.absent]
        self._absent_since_s = {each: self._absent_since_s.get(each, now_s) for each in ids}
        absent_for_s = {each: now_s - since_s for each, since_s in self._absent_since_s.items()}
        minute = list(self._minute)
        judgement = _Judgement(present, minute, said, absent_for_s, self._medians())
        found = judgement.word()
        if found is Word.OK and self._recovers(judgement, now_s):
            found = Word.RECOVERING
        if found is not self._found:
            self._found, self._found_since_s = found, now_s
        before = self._verdict
        is_sure = before is None or judgement.is_gone or self._is_sure(before.word, found, now_s)
        word = found if is_sure or before is None else before.word
        if word in TROUBLE or word is Word.DEGRADED:
            self._trouble_until_s = now_s
        elif word is Word.OK:
            self._trouble_until_s = None
        since_s = now_s if before is None or word is not before.word else before.since_s
        self._verdict = Verdict(
            word,
            judgement.severity(word),
            since_s,
            judgement.why(word),
            judgement.about(word),
            judgement.order(word),
        )
        if before is None or word is before.word:
            return None
        return Changed(self._verdict, before, now_s - before.since_s)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        times_s = [each.time_s for each in self._minute]
        assert times_s == sorted(times_s), "the samples are out of order"
        if self._verdict is not None and times_s:
            assert self._verdict.since_s <= times_s[-1], "the verdict is of the future"
            is_trouble = self._verdict.word in TROUBLE
            assert not is_trouble or self._trouble_until_s is not None, "trouble was forgotten"

    def _begin_anew(self, now_s: float) -> None:
        """The clock was set back: nothing has a duration any more."""
        self._minute.clear()
        self._step_times.clear()
        self._absent_since_s = {}
        self._found_since_s = now_s
        if self._trouble_until_s is not None:
            self._trouble_until_s = now_s
        if self._verdict is not None:
            self._verdict = replace(self._verdict, since_s=now_s)

    def _is_sure(self, said: Word, found: Word, now_s: float) -> bool:
        """Whether what was found has held for long enough to be said."""
        if found in _AT_ONCE or said in (Word.STARTING, Word.STOPPING):
            return True
        hold_s = RAISED_AFTER_S if _GRAVITY[found] > _GRAVITY[said] else CLEARED_AFTER_S
        if found in _WAITING and said not in TROUBLE:
            hold_s = WAITING_AFTER_S
        return now_s - self._found_since_s >= hold_s

    def _medians(self) -> dict[str, float]:
        """The median step of each instance that has run requests in all looks of SLOW_FOR_S."""
        looks = [each for _, each in self._step_times]
        covered_s = self._step_times[-1][0] - self._step_times[0][0]
        if covered_s < SLOW_FOR_S - 2 or len(looks) < FEWEST_LOOKS:
            return {}
        return {
            instance_id: median(each[instance_id] for each in looks)
            for instance_id in looks[-1]
            if all(instance_id in each for each in looks)
        }

    def _recovers(self, judgement: "_Judgement", now_s: float) -> bool:
        """Whether trouble is over, but the last minute's figures still show it."""
        ended_s = self._trouble_until_s
        if ended_s is None or now_s - ended_s >= RECOVERS_FOR_S:
            return False
        return judgement.late_level() is not None


class _Judgement:
    """What one look says. `minute`: the samples of the last minute. `said`: the word so far; its
    limits are lower, so that it does not come and go with a figure around its limit.
    `absent_for_s`: for how long each absent member has been so.
    `step_times_s`: the usual length of a step of each instance."""

    def __init__(
        self,
        present: Present,
        minute: Sequence[Sample],
        said: Word,
        absent_for_s: Mapping[str, float],
        step_times_s: Mapping[str, float],
    ) -> None:
        self._present = present
        self._minute = minute
        self._absent_for_s = absent_for_s
        self._step_times_s = step_times_s
        gauges = present.sample.gauges
        self._num_waiting = round(gauges.get("num_waiting_reqs", 0.0))
        self._longest_wait_s = gauges.get("longest_wait_s", 0.0)
        self._wanted_share = gauges.get("kv_wanted_share", 0.0)
        self._backlog_s = gauges.get("backlog_s", 0.0)
        self._used_share = max(gauges.get("kv_held_share", 0.0), self._wanted_share)
        self._wait_limit_s = LONG_WAIT_S * (0.5 if said in _WAITING else 1.0)
        self._full_from = CLEARED_SHARE if said is Word.OVERLOADED else 1.0
        self._evictions_from = CLEARED_SHARE if said is Word.SHORT_OF_MEMORY else 1.0

    @property
    def is_gone(self) -> bool:
        """Whether a member's process is gone, or no process can be started."""
        present = self._present
        return bool(present.launcher) or any(each.state != "stalled" for each in present.absent)

    def word(self) -> Word:
        present = self._present
        if present.is_stopping:
            return Word.STOPPING
        if present.is_starting:
            return Word.STARTING
        if present.absent or present.launcher:
            return Word.DEGRADED
        if self._num_waiting and self._longest_wait_s >= self._wait_limit_s:
            if not self._is_room_elsewhere():
                return Word.OVERLOADED
            return Word.FRAGMENTED if self._roomy() is None else Word.UNBALANCED
        many = self._evictions_from * MANY_EVICTIONS * max(2, present.num_serving) / 2
        if self._num("num_evictions") >= many and self._used_share >= BUSY_SHARE:
            return Word.SHORT_OF_MEMORY
        if self._slow() is not None or present.slow_moves or present.stuck_drain is not None:
            return Word.SLOW
        back_s = present.controller_back_s
        return Word.OK if back_s is None or back_s >= NEW_CONTROLLER_S else Word.RECOVERING

    def _roomy(self) -> str | None:
        """The freest instance that has room for the request that has waited longest."""
        blocked, rooms = self._present.blocked, self._present.room_blocks
        freest = max(rooms, key=lambda each: (rooms[each], each), default=None)
        if blocked is None or freest is None or freest == blocked.instance_id:
            return None
        return freest if rooms[freest] >= blocked.demand_blocks else None

    def _is_room_elsewhere(self) -> bool:
        """Whether the request that has waited longest would fit if all free blocks were in one
        place. Where computing is short, room would not help it."""
        blocked = self._present.blocked
        is_full = self._wanted_share >= self._full_from * FULL_SHARE
        if blocked is None or is_full or self._backlog_s >= self._full_from * LONG_BACKLOG_S:
            return False
        free = [max(0, each) for each in self._present.room_blocks.values()]
        return blocked.demand_blocks > blocked.free_blocks and sum(free) >= blocked.demand_blocks

    def _slow(self) -> tuple[str, float] | None:
        """The slowest instance, and how many times as long its steps take as those of the others,
        if it is slow."""
        times_s = dict(self._step_times_s)
        if len(times_s) <= FEWEST_OTHERS:
            return None
        slowest = max(times_s, key=lambda each: (times_s[each], each))
        slowest_s = times_s.pop(slowest)
        others_s = median(times_s.values())
        if others_s <= 0.0 or slowest_s < SLOW_FACTOR * others_s:
            return None
        return slowest, slowest_s / others_s

    def late_level(self) -> tuple[str, float] | None:
        """The level whose P99 TTFT of the last minute is furthest above what is in time, with this
        P99."""
        late = []
        for name in {name: None for each in self._minute for name in each.levels}:
            counts = added(e.levels[name].ttft for e in self._minute if name in e.levels)
            p99_s, limit_s = percentile_of(counts, 0.99), self._limit_s(name)
            if p99_s is not None and p99_s > limit_s:
                late.append((p99_s / limit_s, name, p99_s))
        return max(late)[1:] if late else None

    def _limit_s(self, level: str) -> float:
        return self._present.targets_s.get(level, LONG_TTFT_S)

    def _num(self, name: str) -> int:
        return sum(each.counts.get(name, 0) for each in self._minute)

    def severity(self, word: Word) -> Severity:
        if word is Word.DEGRADED:
            present = self._present
            stands = any(each.num_requests for each in present.absent)
            waits = self._longest_wait_s >= self._wait_limit_s and self._num_waiting > 0
            is_bad = stands or waits or not present.num_serving or present.launcher
            return Severity.BAD if is_bad else Severity.WARN
        return _SEVERITIES.get(word, Severity.WARN)

    def about(self, word: Word) -> str:
        present = self._present
        match word:
            case Word.DEGRADED if present.absent:
                return present.absent[0].member_id
            case Word.FRAGMENTED | Word.UNBALANCED if present.blocked is not None:
                return present.blocked.instance_id
            case Word.SLOW:
                found, end = self._slow(), self._slow_end()
                if found is not None:
                    return found[0]
                if end is not None:
                    return end[1]
                return "" if present.stuck_drain is None else present.stuck_drain.instance_id
        return ""

    def _slow_end(self) -> tuple[str, str, int] | None:
        """`to` or `from`, the instance that most of the slow moves go to or come from, and how many
        do."""
        moves = self._present.slow_moves
        if not moves:
            return None
        to = Counter(each.destination_id for each in moves)
        of = Counter(each.source_id for each in moves)
        (most_to, num_to), (most_of, num_of) = to.most_common(1)[0], of.most_common(1)[0]
        return ("to", most_to, num_to) if num_to >= num_of else ("from", most_of, num_of)

    # -- in words ------------------------------------------------------------------------------

    def why(self, word: Word) -> str:
        match word:
            case Word.STARTING:
                return f"{self._present.num_serving} of {self._present.num_wanted} serve"
            case Word.STOPPING:
                return f"{round(self._present.sample.gauges.get('num_running_reqs', 0.0))} run"
            case Word.DEGRADED:
                return self._why_degraded()
            case Word.OVERLOADED:
                return ", ".join([self._waiting(), self._fullness(), *self._arrives()])
            case Word.SHORT_OF_MEMORY:
                return f"{self._num('num_evictions')} evicted in the last minute, {self._kv()}"
            case Word.FRAGMENTED | Word.UNBALANCED:
                return self._why_fragmented()
            case Word.SLOW:
                return self._why_slow()
            case Word.RECOVERING:
                return self._why_recovering()
            case Word.OK:
                gauges = self._present.sample.gauges
                running = round(gauges.get("num_running_reqs", 0.0))
                waits = f"{self._num_waiting} wait, " if self._num_waiting else ""
                serve = f"{self._leaving()}{self._present.num_serving} serve"
                return f"{serve}, {running} run, {waits}{self._kv()}"

    def _leaving(self) -> str:
        """`i-1 i-3 leave in 28 s (Ray drains its node), `, for each notice."""
        words = ""
        for each in self._present.leaving:
            few, number = " ".join(each.instance_ids), len(each.instance_ids)
            who = few if number <= 3 else f"{number} instances"
            if each.takes_endpoint:
                who = f"{who} and the endpoint" if who else "the endpoint"
            leave = "leave" if number > 1 or (number and each.takes_endpoint) else "leaves"
            when = f"in {_seconds(each.in_s)}" if each.in_s > 0 else "now"
            words += f"{who} {leave} {when} ({each.why}), "
        return words

    def _why_degraded(self) -> str:
        present = self._present
        words = [f"{each.member_id} {each.words}" for each in present.absent[:2]]
        if len(present.absent) > 2:
            words.append(f"{len(present.absent) - 2} more missing")
        if present.launcher:
            words.append(present.launcher)
        if not words:
            words.append("all members are back")
        words.append(f"{present.num_serving} of {present.num_wanted} serve")
        if self._num_waiting and self._longest_wait_s >= LONG_WAIT_S:
            words.append(self._waiting())
        return ", ".join(words)

    def _waiting(self) -> str:
        number, on = self._num_waiting, self._present.num_waiting_on
        where = f" on {on} of {self._present.num_serving}" if on else ""
        levels = self._present.sample.levels.items()
        waiting = {name: round(level.num_waiting) for name, level in levels if level.num_waiting}
        of = ", ".join(f"{number} {name}" for name, number in waiting.items())
        usual = next(iter(self._present.sample.levels), "")
        by_level = "" if set(waiting) <= {usual} else f" ({of})"
        return f"{number} wait{by_level}{where}, the longest {_seconds(self._longest_wait_s)}"

    def _fullness(self) -> str:
        if self._backlog_s >= LONG_BACKLOG_S and self._wanted_share < FULL_SHARE:
            return f"prompts for {_seconds(self._backlog_s)} on each"
        return self._kv()

    def _kv(self) -> str:
        held = self._present.sample.gauges.get("kv_held_share", 0.0)
        return f"KV {100 * held:.0f}%"

    def _arrives(self) -> list[str]:
        arrived, ended = self._num("num_arrived"), self._num("num_ended")
        if not ended:
            return []
        if arrived > 1.1 * ended:
            return [f"{arrived / ended:.1f} times more arrives than leaves"]
        return [
            "more leaves than arrives" if ended > 1.1 * arrived else "as much leaves as arrives"
        ]

    def _why_fragmented(self) -> str:
        blocked, rooms = self._present.blocked, self._present.room_blocks
        if blocked is None:
            return "room is free again"
        where = f"on {blocked.instance_id}" if blocked.instance_id else "at the controller"
        waits = (
            f"a request {where} waits for {blocked.demand_blocks} blocks for"
            f" {_seconds(blocked.waited_s)}"
        )
        if (roomy := self._roomy()) is not None:
            off = "" if self._present.moves else ", moves are off"
            return f"{waits}, {roomy} has {rooms[roomy]} free{off}"
        freest = max(rooms, key=lambda each: (rooms[each], each), default="")
        most = f", at most {max(0, rooms[freest])} in one place ({freest})" if freest else ""
        free = sum(max(0, each) for each in rooms.values())
        return f"{waits}, {free} are free in all{most}"

    def _why_slow(self) -> str:
        found = self._slow()
        if found is not None:
            return f"{found[0]} takes {found[1]:.1f} times as long for a step as the others"
        end, drain = self._slow_end(), self._present.stuck_drain
        if end is None and drain is not None:
            return (
                f"the drain of {drain.instance_id} is {_seconds(drain.overdue_s)} over its"
                f" deadline, {drain.num_left} requests left"
            )
        if end is None:
            return "the steps are as long as elsewhere again"
        way, instance_id, number = end
        of_end = [
            e for e in self._present.slow_moves if instance_id in (e.source_id, e.destination_id)
        ]
        oldest = max(of_end, key=lambda each: each.age_s)
        moves = f"{number} moves {way} it" if number > 1 else f"a move {way} it"
        return (
            f"the link of {instance_id}, {moves}: {oldest.num_copied} of {oldest.num_blocks}"
            f" blocks in {_seconds(oldest.age_s)}"
        )

    def _why_recovering(self) -> str:
        waits = f"{self._num_waiting} wait" if self._num_waiting else "nobody waits any more"
        late, back_s = self.late_level(), self._present.controller_back_s
        if back_s is not None and back_s < NEW_CONTROLLER_S:
            return f"the controller was away, it came back {_seconds(back_s)} ago, {waits}"
        if late is None:
            return waits
        return f"{waits}, P99 TTFT {_seconds(late[1])} in the last minute"

    # -- what helps ----------------------------------------------------------------------------

    def order(self, word: Word) -> Order | None:
        match word:
            case Word.DEGRADED:
                return self._order_for_absent()
            case Word.OVERLOADED | Word.SHORT_OF_MEMORY:
                return self._order_for_room()
            case Word.FRAGMENTED | Word.UNBALANCED:
                if not self._present.moves:
                    return Order(Deed.MOVES_ON, expected="requests move to where room is")
                return self._order_for_blocked()
            case Word.SLOW:
                return self._order_for_slow()
            case Word.RECOVERING:
                return Order(Deed.WAIT)
        return None

    def _order_for_blocked(self) -> Order | None:
        blocked, roomy = self._present.blocked, self._roomy()
        if blocked is None:
            return Order(Deed.WAIT)
        if roomy is None or not blocked.instance_id:
            return self._order_for_room("room for it")
        return Order(Deed.MOVE, blocked.request_id, f"{roomy} has room for it", roomy)

    def _order_for_absent(self) -> Order | None:
        if self._present.launcher or not self._present.absent:
            return None  # nothing comes back by itself while no process can be started
        for state, deed, expected in (
            ("failed", Deed.LOGS, "says why it could not start"),
            ("stalled", Deed.RESTART, "its requests go on elsewhere"),
        ):
            for each in self._present.absent:
                if each.state == state:
                    return Order(deed, each.member_id, expected)
        cold_s = self._present.cold_start_s
        longest = max(self._absent_for_s, key=lambda each: self._absent_for_s[each])
        if cold_s is not None and self._absent_for_s[longest] > OVERDUE * cold_s:
            return Order(Deed.LOGS, longest, f"a start takes {_seconds(cold_s)} as a rule")
        usual = "" if cold_s is None else f", as a rule within {_seconds(cold_s)}"
        return Order(Deed.WAIT, expected=f"it comes back by itself{usual}")

    def _order_for_room(self, gained: str = "") -> Order | None:
        if self._present.num_adding:
            return Order(Deed.WAIT, expected="an instance more is coming")
        cold_s = self._present.cold_start_s
        words = ["" if cold_s is None else f"serving in {_seconds(cold_s)}", gained]
        return self._added(", with ".join(filter(None, words)))

    def _added(self, expected: str) -> Order | None:
        return None if self._present.attached_only else Order(Deed.ADD, expected=expected)

    def _order_for_slow(self) -> Order | None:
        found, end = self._slow(), self._slow_end()
        if found is not None:
            if found[0] in self._present.drained:
                return Order(Deed.WAIT, expected="it drains")
            return Order(Deed.DRAIN, found[0], "its requests move to the others")
        if end is not None:
            return Order(Deed.LOOK, end[1], "says on which machine it is")
        if self._present.stuck_drain is not None and not self._present.num_adding:
            return self._added("makes room for them")
        return None


def _seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
