"""The verdict on the cluster: each word with its cause and its order, when it changes, and random
courses through all words."""

import random
from dataclasses import replace
from typing import Any

import pytest

from controller.core.record.alarm_book import QUIET_S, AlarmBook, Cleared, Raised
from controller.core.record.history import LevelSample, Sample
from controller.core.record.verdict import (
    CLEARED_AFTER_S,
    RAISED_AFTER_S,
    RECOVERS_FOR_S,
    SLOW_FOR_S,
    TROUBLE,
    WAITING_AFTER_S,
    Absent,
    Blocked,
    Changed,
    Deed,
    Leaving,
    Order,
    Present,
    SlowMove,
    StuckDrain,
    Verdict,
    Verdicts,
    Word,
)
from controller.core.record.windows import bucket_of

QUIET = {"num_running_reqs": 12.0, "kv_held_share": 0.3, "kv_wanted_share": 0.3}
WAITING = {"num_waiting_reqs": 106.0, "longest_wait_s": 34.0}
FULL = {"kv_held_share": 0.91, "kv_wanted_share": 1.2}
ROOM = {"i-0": 4, "i-1": 60, "i-2": 70}
BLOCKED = Blocked("r7", "i-0", 118, 12.0, 4)


class Bed:
    """Looks at a cluster of three instances each second."""

    def __init__(self) -> None:
        self.verdicts = Verdicts()
        self.now_s = 1000.0
        self.changes: list[Changed] = []

    def look(
        self,
        seconds: float = 1,
        *,
        gauges: dict[str, float] | None = None,
        counts: dict[str, int] | None = None,
        ttft_s: float | None = None,
        **present: Any,
    ) -> Verdict:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            ttft = {} if ttft_s is None else {bucket_of(ttft_s): 1}
            sample = Sample(
                self.now_s,
                1.0,
                {**QUIET, **(gauges or {})},
                counts or {},
                {"normal": LevelSample(ttft=ttft)},
            )
            looked = Present(sample, num_wanted=3, num_serving=3, room_blocks=ROOM)
            changed = self.verdicts.handle(replace(looked, **present))
            self.verdicts.check()
            self.changes += [changed] if changed is not None else []
        verdict = self.verdicts.view()
        assert verdict is not None
        return verdict


@pytest.fixture
def bed() -> Bed:
    return Bed()


STEPS = {"i-0": 0.02, "i-1": 0.025, "i-2": 0.1}
SLOW_MOVES = [SlowMove("i-0", "i-2", 43.0, 22, 83), SlowMove("i-1", "i-2", 20.0, 1, 9)]
BLOCKED_WORDS = "a request on i-0 waits for 118 blocks for 12 s"
MOVES_ON = Order(Deed.MOVES_ON, expected="requests move to where room is")
COMING = Order(Deed.WAIT, expected="an instance more is coming")
DEAD = Absent("i-2", "restarting", "died and starts again")
SILENT = Absent("i-2", "stalled", "is silent for 9 s")
FAILED = Absent("i-1", "failed", "failed to start")
ADD = Order(Deed.ADD, expected="serving in 25 s")

CASES: dict[str, tuple[dict[str, Any], Word, str, Order | None]] = {
    "quiet": ({}, Word.OK, "3 serve, 12 run, KV 30%", None),
    "a short wait": ({"gauges": {**FULL, "num_waiting_reqs": 9, "longest_wait_s": 1.0}}, Word.OK,
        "3 serve, 12 run, 9 wait, KV 91%", None),
    "no memory": (
        {
            "gauges": {**WAITING, **FULL},
            "counts": {"num_arrived": 13, "num_ended": 10},
            "num_waiting_on": 2,
            "cold_start_s": 25.0,
        },
        Word.OVERLOADED,
        "106 wait on 2 of 3, the longest 34 s, KV 91%, 1.3 times more arrives than leaves",
        ADD,
    ),
    "no time": (
        {"gauges": {**WAITING, "backlog_s": 7.0}, "counts": {"num_arrived": 5, "num_ended": 5}},
        Word.OVERLOADED,
        "106 wait, the longest 34 s, prompts for 7.0 s on each, as much leaves as arrives",
        Order(Deed.ADD),
    ),
    "one is added": ({"gauges": {**WAITING, **FULL}, "num_adding": 1}, Word.OVERLOADED,
        "106 wait, the longest 34 s, KV 91%", COMING),
    "none can be added": ({"gauges": {**WAITING, **FULL}, "attached_only": True}, Word.OVERLOADED,
        "106 wait, the longest 34 s, KV 91%", None),
    "room in pieces": ({"gauges": WAITING, "blocked": BLOCKED, "cold_start_s": 25.0},
        Word.FRAGMENTED, f"{BLOCKED_WORDS}, 134 are free in all, at most 70 in one place (i-2)",
        Order(Deed.ADD, expected="serving in 25 s, with room for it")),
    "nothing may move": ({"gauges": WAITING, "blocked": BLOCKED, "moves": False}, Word.FRAGMENTED,
        f"{BLOCKED_WORDS}, 134 are free in all, at most 70 in one place (i-2)", MOVES_ON),
    "room elsewhere": ({"gauges": WAITING, "blocked": BLOCKED, "room_blocks": {"i-2": 200}},
        Word.UNBALANCED, f"{BLOCKED_WORDS}, i-2 has 200 free",
        Order(Deed.MOVE, "r7", "i-2 has room for it", "i-2")),
    "room elsewhere, and nothing may move": (
        {"gauges": WAITING, "blocked": BLOCKED, "room_blocks": {"i-2": 200}, "moves": False},
        Word.UNBALANCED, f"{BLOCKED_WORDS}, i-2 has 200 free, moves are off", MOVES_ON),
    "a reserved instance has no room": (
        {"gauges": WAITING, "blocked": BLOCKED, "room_blocks": {"i-1": 60}}, Word.OVERLOADED,
        "106 wait, the longest 34 s, KV 30%", Order(Deed.ADD)),
    "evictions": ({"gauges": FULL, "counts": {"num_evictions": 1}}, Word.SHORT_OF_MEMORY,
        "60 evicted in the last minute, KV 91%", Order(Deed.ADD)),
    "evictions that are over": ({"counts": {"num_evictions": 1}}, Word.OK,
        "3 serve, 12 run, KV 30%", None),
    "a slow instance": ({"step_times_s": STEPS}, Word.SLOW,
        "i-2 takes 4.4 times as long for a step as the others",
        Order(Deed.DRAIN, "i-2", "its requests move to the others")),
    "it drains": ({"step_times_s": STEPS, "drained": ["i-2"]}, Word.SLOW,
        "i-2 takes 4.4 times as long for a step as the others",
        Order(Deed.WAIT, expected="it drains")),
    "of two none is slow": ({"step_times_s": {"i-0": 0.01, "i-1": 1.0}}, Word.OK,
        "3 serve, 12 run, KV 30%", None),
    "slow moves": ({"slow_moves": SLOW_MOVES}, Word.SLOW,
        "the link of i-2, 2 moves to it: 22 of 83 blocks in 43 s",
        Order(Deed.LOOK, "i-2", "says on which machine it is")),
    "a stuck drain": ({"stuck_drain": StuckDrain("i-2", 15.0, 2)}, Word.SLOW,
        "the drain of i-2 is 15 s over its deadline, 2 requests left",
        Order(Deed.ADD, expected="makes room for them")),
    "the controller is back": ({"controller_back_s": 3.0}, Word.RECOVERING,
        "the controller was away, it came back 3.0 s ago, nobody waits any more",
        Order(Deed.WAIT)),
    "a machine is left": ({"leaving": [Leaving(("i-0", "i-2"), 28.0, "Ray drains its node")]},
        Word.OK, "i-0 i-2 leave in 28 s (Ray drains its node), 3 serve, 12 run, KV 30%", None),
    "one with the endpoint": ({"leaving": [Leaving((), 5.0, "a file", True)]}, Word.OK,
        "the endpoint leaves in 5.0 s (a file), 3 serve, 12 run, KV 30%", None),
    "a process that had to go": ({"leaving": [Leaving(("i-1",), -1.0, "told so")]}, Word.OK,
        "i-1 leaves now (told so), 3 serve, 12 run, KV 30%", None),
    "for long": ({"controller_back_s": 30.0}, Word.OK, "3 serve, 12 run, KV 30%", None),
    "one died": (
        {"absent": [DEAD], "num_serving": 2, "gauges": WAITING, "cold_start_s": 25.0},
        Word.DEGRADED, "i-2 died and starts again, 2 of 3 serve, 106 wait, the longest 34 s",
        Order(Deed.LOGS, "i-2", "a start takes 25 s as a rule")),
    "one hangs": ({"absent": [SILENT], "num_serving": 2}, Word.DEGRADED,
        "i-2 is silent for 9 s, 2 of 3 serve",
        Order(Deed.RESTART, "i-2", "its requests go on elsewhere")),
    "one cannot start": ({"absent": [DEAD, FAILED]}, Word.DEGRADED,
        "i-2 died and starts again, i-1 failed to start, 3 of 3 serve",
        Order(Deed.LOGS, "i-1", "says why it could not start")),
    "Ray is gone": ({"launcher": "Ray's head is gone"}, Word.DEGRADED,
        "Ray's head is gone, 3 of 3 serve", None),
    "Ray is gone, and a member with it": ({"launcher": "Ray's head is gone", "absent": [DEAD]},
        Word.DEGRADED, "i-2 died and starts again, Ray's head is gone, 3 of 3 serve", None),
    "it starts": ({"is_starting": True, "num_serving": 1}, Word.STARTING, "1 of 3 serve", None),
    "it stops": ({"is_stopping": True, "absent": [SILENT]}, Word.STOPPING, "12 run", None),
}  # fmt: skip


@pytest.mark.parametrize(("looks", "word", "why", "order"), CASES.values(), ids=CASES)
def test_each_state_of_the_cluster_has_its_word_cause_and_order(
    bed: Bed, looks: dict[str, Any], word: Word, why: str, order: Order | None
) -> None:
    found = bed.look(60, **looks)
    assert (found.word, found.why, found.order) == (word, why, order)


SEVERITIES = {
    Word.OK: "quiet",
    Word.RECOVERING: "warn",
    Word.SLOW: "warn",
    Word.STARTING: "warn",
    Word.STOPPING: "warn",
}


@pytest.mark.parametrize("name", CASES)
def test_what_hurts_users_is_bad_and_the_cause_has_a_name(bed: Bed, name: str) -> None:
    looks, word, why, _ = CASES[name]
    found = bed.look(60, **looks)
    if word is not Word.DEGRADED:
        assert found.severity == SEVERITIES.get(word, "bad")
    assert found.about == "" or found.about in why


@pytest.mark.parametrize(
    ("looks", "severity"),
    [
        ({"absent": [DEAD], "num_serving": 2}, "warn"),
        ({"absent": [DEAD], "num_serving": 0}, "bad"),
        ({"absent": [DEAD], "num_serving": 2, "gauges": WAITING}, "bad"),
        ({"absent": [replace(SILENT, num_requests=8)], "num_serving": 2}, "bad"),
        ({"launcher": "Ray's head is gone"}, "bad"),
    ],
)
def test_a_missing_member_is_as_bad_as_what_it_does_to_requests(
    bed: Bed, looks: dict[str, Any], severity: str
) -> None:
    assert bed.look(60, **looks).severity == severity


def test_a_worse_word_must_hold_and_a_missing_member_counts_at_once(bed: Bed) -> None:
    bed.look(10)
    overloaded = {**WAITING, **FULL}
    assert bed.look(WAITING_AFTER_S, gauges=overloaded).word is Word.OK
    assert bed.look(1, gauges=overloaded).word is Word.OVERLOADED
    assert bed.look(CLEARED_AFTER_S).word is Word.OVERLOADED
    assert bed.look(1).word is Word.OK
    assert bed.look(RAISED_AFTER_S, absent=[SILENT]).word is Word.OK
    assert bed.look(1).word is Word.OK, "it was heard again"
    assert bed.look(1, absent=[DEAD]).word is Word.DEGRADED
    assert [str(each.verdict.word) for each in bed.changes] == ["overloaded", "ok", "degraded"]
    assert bed.changes[1].lasted_s == 1 + CLEARED_AFTER_S


def test_a_wait_that_comes_and_goes_around_its_limit_is_one_overload(bed: Bed) -> None:
    bed.look(1)
    for second in range(120):
        wait_s = 6.0 if second % 8 < 4 else 3.0
        bed.look(1, gauges={**WAITING, **FULL, "longest_wait_s": wait_s})
    assert [str(each.verdict.word) for each in bed.changes] == ["overloaded"]


def test_after_trouble_it_recovers_while_the_last_minute_shows_it(bed: Bed) -> None:
    bed.look(1)
    bed.look(30, gauges={**WAITING, **FULL}, ttft_s=34.0)
    found = bed.look(20, ttft_s=0.2)
    assert found.word is Word.RECOVERING
    assert found.why.startswith("nobody waits any more, P99 TTFT 3")
    assert found.order == Order(Deed.WAIT)
    assert bed.look(RECOVERS_FOR_S, ttft_s=0.2).word is Word.OK
    assert [str(each.verdict.word) for each in bed.changes] == ["overloaded", "recovering", "ok"]


def test_late_first_tokens_without_trouble_are_no_recovery(bed: Bed) -> None:
    assert bed.look(30, ttft_s=34.0).word is Word.OK


def test_targets_say_what_is_late(bed: Bed) -> None:
    bed.look(30, gauges={**WAITING, **FULL}, ttft_s=3.0, targets_s={"normal": 2.0})
    found = bed.look(20, ttft_s=0.2, targets_s={"normal": 2.0})
    assert found.word is Word.RECOVERING


def test_steps_that_are_long_now_and_then_make_no_instance_slow(bed: Bed) -> None:
    for second in range(100):
        slow_s = 0.2 if second % 3 == 0 else 0.02
        bed.look(1, step_times_s={"i-0": 0.02, "i-1": 0.02, "i-2": slow_s})
    assert bed.changes == []
    assert bed.look(SLOW_FOR_S - 15, step_times_s=STEPS).word is Word.OK


def test_a_pause_of_the_controller_does_not_end_what_is_slow(bed: Bed) -> None:
    assert bed.look(60, step_times_s=STEPS).word is Word.SLOW
    bed.now_s += 4.0
    bed.look(60, step_times_s=STEPS)
    assert [str(each.verdict.word) for each in bed.changes] == ["slow"]


def test_slow_is_said_of_looks_that_come_late(bed: Bed) -> None:
    for _ in range(30):
        bed.now_s += 0.5
        found = bed.look(1, step_times_s=STEPS)
    assert found.word is Word.SLOW


def test_the_figures_are_those_of_the_link_that_is_named(bed: Bed) -> None:
    moves = [SlowMove("x", "y", 99.0, 3, 700), SlowMove("p", "q", 20.0, 5, 50)]
    found = bed.look(60, slow_moves=[*moves, SlowMove("r", "q", 19.0, 1, 9)])
    assert found.why == "the link of q, 2 moves to it: 5 of 50 blocks in 20 s"


def test_a_clock_that_is_set_back_ends_no_trouble_and_hides_none(bed: Bed) -> None:
    bed.look(5)
    bed.look(2, gauges={**WAITING, **FULL})
    bed.now_s -= 3600.0
    assert bed.look(RAISED_AFTER_S + 1, gauges={**WAITING, **FULL}).word is Word.OVERLOADED
    assert bed.look(CLEARED_AFTER_S + 1).word is Word.OK


def test_another_one_that_dies_is_not_late_at_once(bed: Bed) -> None:
    bed.look(100, absent=[DEAD], cold_start_s=25.0)
    other = Absent("i-1", "restarting", "died and starts again")
    found = bed.look(1, absent=[other], cold_start_s=25.0)
    assert found.order is not None
    assert found.order.deed is Deed.WAIT


def test_one_that_does_not_come_back_in_time_has_a_log_to_read(bed: Bed) -> None:
    bed.look(1)
    found = bed.look(30, absent=[DEAD], cold_start_s=25.0)
    assert found.order is not None
    assert found.order.deed is Deed.WAIT
    found = bed.look(10, absent=[DEAD], cold_start_s=25.0)
    assert found.order == Order(Deed.LOGS, "i-2", "a start takes 25 s as a rule")


@pytest.mark.parametrize("seed", range(20))
def test_random_courses_keep_the_rules(seed: int) -> None:
    """Each word but those that count at once is said for at least as long as a better one must
    hold, or until a worse one has held."""
    rng, bed = random.Random(seed), Bed()
    choices = [looks for looks, _, _, _ in CASES.values()]
    bed.look(5)
    for _ in range(60):
        bed.look(rng.randint(1, 15), ttft_s=rng.choice([None, 0.1, 30.0]), **rng.choice(choices))
    for change in bed.changes:
        assert change.before.word is not change.verdict.word
        assert change.lasted_s >= 1.0
        if change.before.word in TROUBLE and change.verdict.word in TROUBLE:
            assert change.lasted_s >= RAISED_AFTER_S
    assert bed.look(130).word is Word.OK


# -- alarms ---------------------------------------------------------------------------------------


def test_an_alarm_is_raised_once_and_cleared_once_it_has_been_quiet() -> None:
    book = AlarmBook()
    assert book.handle({"i-0": "12 wait"}, 10.0) == [Raised("i-0", "12 wait")]
    assert book.handle({"i-0": "40 wait"}, 11.0) == []
    assert book.handle({}, 12.0) == []
    assert book.handle({"i-0": "30 wait"}, 13.0) == [], "it is the same one"
    assert book.handle({}, 13.0 + QUIET_S) == [Cleared("i-0", "30 wait", 3.0)]
    raised, ended = book.view()
    assert raised == []
    assert [(each.subject, each.since_s, each.ended_s) for each in ended] == [("i-0", 10.0, 13.0)]
    assert book.handle({"i-0": "1 waits"}, 40.0) == [Raised("i-0", "1 waits")]
    assert book.handle({}, 5.0) == [], "the clock was set back"
    assert book.handle({}, 5.0 + QUIET_S) == [Cleared("i-0", "1 waits", 0.0)]
    book.check()
