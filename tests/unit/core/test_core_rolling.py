"""The steps of a rolling restart: which instance is next, when it is over, and what a failure
does."""

from dataclasses import replace

import pytest

from controller.core.fleet.cluster_spec import (
    AS_MANY_AS_FIT,
    AS_STARTED,
    EngineChange,
    RollingOrder,
    Turn,
)
from controller.core.fleet.rolling import (
    NO_OTHER_SERVES,
    InstanceNow,
    RollingStep,
    in_turn,
    rolling_step,
    stopped,
)

ORDER = RollingOrder("op-1", 100.0, ("i-0", "i-1", "i-2"))


def serving(instance_id: str, nonce: str = "old", **what: object) -> InstanceNow:
    now = InstanceNow(instance_id, nonce, serving=True, takes_requests=True, free_tokens=100)
    return replace(now, **what)  # type: ignore[arg-type]


THREE = [serving("i-0"), serving("i-1"), serving("i-2")]


def being_emptied(instance_id: str, **what: object) -> InstanceNow:
    return serving(instance_id, ordered=True, takes_requests=False, **what)


def with_turn(*turns: Turn, **what: object) -> RollingOrder:
    away = {turn.instance_id for turn in turns}
    left = tuple(each for each in ORDER.left if each not in away)
    return replace(ORDER, under_way=turns, left=left, **what)  # type: ignore[arg-type]


FIRST = Turn("i-0", "old", 100.0)


def test_the_first_begins_at_once_and_the_second_waits_for_it() -> None:
    step = rolling_step(ORDER, THREE, 100.0)
    assert step == RollingStep(with_turn(FIRST), begins=("i-0",))
    now = [being_emptied("i-0"), *THREE[1:]]
    assert rolling_step(step.order, now, 105.0).order is step.order
    starting = [InstanceNow("i-0", "new", ordered=True, away_s=3.0), *THREE[1:]]
    assert rolling_step(step.order, starting, 106.0).order is step.order
    serves = [serving("i-0", "new"), *THREE[1:]]
    later = rolling_step(step.order, serves, 107.5)
    assert later.begins == ("i-1",)
    assert later.order.done == {"i-0": 7.5}
    assert later.order.under_way == (Turn("i-1", "old", 107.5),)


def test_one_that_is_restarted_already_waits_for_that() -> None:
    """Its present process is the next one, and the claim names the one before; the restart would be
    mistaken for one that was taken back."""
    loading = InstanceNow("i-0", "new", restarts="old")
    step = rolling_step(ORDER, [loading, *THREE[1:]], 100.0)
    assert "i-0" not in step.begins
    assert step.order.state == "going"
    emptied = serving("i-0", restarts="old")
    assert rolling_step(ORDER, [emptied, *THREE[1:]], 100.0).begins == ("i-0",), "the same process"


def test_it_is_done_when_the_last_one_serves() -> None:
    last = replace(
        ORDER,
        left=(),
        under_way=(replace(FIRST, instance_id="i-2"),),
        done={"i-0": 1.0, "i-1": 2.0},
    )
    step = rolling_step(last, [*THREE[:2], serving("i-2", "new")], 110.0)
    assert (step.order.state, step.order.ended_s) == ("done", 110.0)
    assert step.order.done == {"i-0": 1.0, "i-1": 2.0, "i-2": 10.0}
    assert rolling_step(step.order, THREE, 111.0) == RollingStep(step.order)


@pytest.mark.parametrize(
    ("found", "deadline_s", "why"),
    [
        (
            InstanceNow("i-0", "new", failed=True, detail="no such model"),
            None,
            "i-0 could not start: no such model",
        ),
        (serving("i-0"), None, "the restart of i-0 was taken back"),
        (serving("i-0"), 60.0, "the restart of i-0 was taken back"),
        (serving("i-0"), 5.0, "i-0 was not empty within 5 s"),
        (
            InstanceNow("i-0", "new", ordered=True, away_s=601.0),
            None,
            "i-0 did not serve within 600 s of its restart",
        ),
    ],
)
def test_one_that_fails_ends_it(found: InstanceNow, deadline_s: float | None, why: str) -> None:
    order = with_turn(FIRST, deadline_s=deadline_s)
    step = rolling_step(order, [found, *THREE[1:]], 106.0)
    assert (step.order.state, step.order.why, step.order.failed_id) == ("failed", why, "i-0")
    assert (step.begins, step.taken_back, step.order.under_way) == ((), (), ())
    assert step.order.left == ("i-1", "i-2")
    step.order.check()


def test_restarts_beside_the_failed_one_are_taken_back_unless_their_process_has_ended() -> None:
    turns = (FIRST, Turn("i-1", "old", 100.0), Turn("i-2", "old", 100.0))
    now = [
        InstanceNow("i-0", "new", failed=True),
        being_emptied("i-1"),
        InstanceNow("i-2", "", ordered=True, away_s=1.0),
    ]
    step = rolling_step(with_turn(*turns, at_once=AS_MANY_AS_FIT), now, 106.0)
    assert (step.order.state, step.taken_back) == ("failed", ("i-1",))
    assert step.order.left == ("i-1",)
    by_hand = stopped(with_turn(*turns, at_once=3), now, "by ana", 106.0)
    assert (by_hand.order.state, by_hand.order.why) == ("stopped", "by ana")
    assert by_hand.taken_back == ("i-1",)


def test_nobody_begins_while_no_other_serves_unless_forced() -> None:
    now = [serving("i-0"), InstanceNow("i-1", "old", failed=True), InstanceNow("i-2", "")]
    alone = replace(ORDER, left=("i-0",), done={"i-1": 1.0, "i-2": 1.0})
    step = rolling_step(alone, now, 101.0)
    assert (step.order is alone, step.begins, step.waits) == (True, (), NO_OTHER_SERVES)
    assert rolling_step(replace(alone, force=True), now, 101.0).begins == ("i-0",)


def test_one_that_has_not_started_is_passed_over_and_one_that_cannot_goes_first() -> None:
    now = [serving("i-0"), InstanceNow("i-1", ""), InstanceNow("i-2", "old", failed=True)]
    assert in_turn(now) == ("i-1", "i-2", "i-0")
    assert in_turn([serving("i-0"), serving("i-1", removes=True)]) == ("i-0",)
    assert rolling_step(replace(ORDER, left=("i-1", "i-2", "i-0")), now, 1.0).begins == ("i-2",)


def test_one_that_is_removed_meanwhile_is_left_out() -> None:
    order = with_turn(FIRST)
    for rest in ([], [being_emptied("i-0", removes=True)]):
        step = rolling_step(order, [*rest, *THREE[1:]], 106.0)
        assert (step.order.done, step.begins) == ({}, ("i-1",))
    only = rolling_step(replace(order, left=("i-1",)), [serving("i-2")], 106.0)
    assert only.order.state == "done"


def test_as_many_go_at_once_as_the_others_have_room_for() -> None:
    order = replace(ORDER, at_once=AS_MANY_AS_FIT)
    light = [serving(each, num_tokens=10, num_requests=2) for each in ORDER.left]
    assert rolling_step(order, light, 1.0).begins == ("i-0", "i-1"), "one stays"
    heavy = [replace(each, num_tokens=60) for each in light]
    assert rolling_step(order, heavy, 1.0).begins == ("i-0",), "two have 120, the third 100 free"
    narrow = [replace(each, free_places=3) for each in light]
    assert rolling_step(order, narrow, 1.0).begins == ("i-0",), "4 requests, 3 places"
    limited = replace(order, at_once=1)
    assert rolling_step(limited, light, 1.0).begins == ("i-0",)


# -- any history --------------------------------------------------------------------------


NEW = EngineChange(1, {"max_num_seqs": 64})
CHANGING = replace(
    ORDER,
    engine=NEW,
    left=("i-1", "i-2"),
    under_way=(Turn("i-0", "old", 100.0, AS_STARTED, "f", 8192),),
)
OTHERS = [serving("i-1"), serving("i-2")]


def anew(**what: object) -> InstanceNow:
    known = {"engine": NEW, "fingerprint": "f", "max_model_len": 8192, **what}
    return serving("i-0", "new", **known)


def test_its_turn_gives_an_instance_the_new_arguments() -> None:
    now = [serving(each, fingerprint="f", max_model_len=8192) for each in ORDER.left]
    step = rolling_step(replace(ORDER, engine=NEW), now, 100.0)
    assert (step.order, step.engines) == (CHANGING, {"i-0": NEW})
    later = rolling_step(step.order, [anew(), *now[1:]], 107.5)
    assert (later.order.done, later.begins, later.put_back) == ({"i-0": 7.5}, ("i-1",), ())


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (anew(serving=False, failed=True, detail="no memory"), "could not start: no memory"),
        (anew(serving=False, alive=False, ordered=True, away_s=1.0), "died before it served"),
        (anew(serving=False, ordered=True, away_s=601.0), "did not serve within 600 s"),
        (anew(fingerprint="g"), "its KV blocks are not those of before"),
        (anew(max_model_len=100), "takes requests of up to 100 tokens instead of 8192"),
    ],
)
def test_one_that_does_not_serve_with_them_gets_its_old_ones_back(found, why) -> None:
    step = rolling_step(CHANGING, [found, *OTHERS], 110.0)
    assert (step.order.state, step.order.failed_id, step.order.left) == (
        "failed",
        "i-0",
        ("i-1", "i-2"),
    )
    assert why in step.order.why
    assert step.order.why.endswith("; it starts again with the arguments that it had")
    assert (step.put_back, step.engines) == (("i-0",), {"i-0": AS_STARTED})


def test_without_other_arguments_nothing_is_put_back() -> None:
    order = replace(CHANGING, engine=AS_STARTED)
    found = InstanceNow("i-0", "new", failed=True)
    step = rolling_step(order, [found, *OTHERS], 110.0)
    assert (step.order.state, step.put_back, step.engines) == ("failed", (), {})
    dead = InstanceNow("i-0", "new", ordered=True, away_s=2.0, alive=False)
    assert rolling_step(order, [dead, *OTHERS], 110.0).order is order, "it is started again"


def test_one_whose_process_has_not_ended_keeps_its_old_ones() -> None:
    step = stopped(CHANGING, [being_emptied("i-0", engine=NEW), *OTHERS], "no", 105.0)
    assert (step.taken_back, step.put_back) == (("i-0",), ())
    assert step.engines == {"i-0": AS_STARTED}
    assert step.order.left == ("i-0", "i-1", "i-2")


def test_stopped_all_that_do_not_serve_with_them_yet_get_their_old_ones_back() -> None:
    second = Turn("i-1", "old", 101.0, AS_STARTED, "f", 8192)
    order = replace(CHANGING, at_once=2, left=("i-2",), under_way=(*CHANGING.under_way, second))
    starts = replace(anew(serving=False, ordered=True, away_s=2.0), instance_id="i-1")
    step = stopped(order, [anew(), starts, OTHERS[1]], "no", 105.0)
    assert (step.order.done, step.put_back) == ({"i-0": 5.0}, ("i-1",))
    assert (step.order.left, step.engines) == (("i-1", "i-2"), {"i-1": AS_STARTED})


def test_one_that_comes_meanwhile_gets_them_too() -> None:
    now = [being_emptied("i-0", engine=NEW), *OTHERS, serving("i-3"), serving("i-4", engine=NEW)]
    step = rolling_step(CHANGING, now, 105.0)
    assert step.order.left == ("i-1", "i-2", "i-3")


def test_the_first_with_other_arguments_goes_alone() -> None:
    order = replace(ORDER, engine=NEW, at_once=AS_MANY_AS_FIT)
    four = [*THREE, serving("i-3")]
    step = rolling_step(replace(order, left=("i-0", "i-1", "i-2", "i-3")), four, 100.0)
    assert step.begins == ("i-0",)
    starts = [InstanceNow("i-0", "new", ordered=True, away_s=1.0, engine=NEW), *four[1:]]
    assert rolling_step(step.order, starts, 101.0).begins == ()
    serves = [serving("i-0", "new", engine=NEW), *four[1:]]
    assert rolling_step(step.order, serves, 102.0).begins == ("i-1", "i-2", "i-3")
    as_before = replace(order, engine=AS_STARTED, left=("i-0", "i-1", "i-2", "i-3"))
    assert len(rolling_step(as_before, four, 100.0).begins) > 1


def test_one_that_does_not_serve_is_to_be_as_the_others_are() -> None:
    broken = InstanceNow("i-0", "old", failed=True)
    others = [serving(each, fingerprint="f", max_model_len=8192) for each in ("i-1", "i-2")]
    (turn,) = rolling_step(replace(ORDER, engine=NEW), [broken, *others], 1.0).order.under_way
    assert (turn.fingerprint, turn.max_model_len) == ("f", 8192)
