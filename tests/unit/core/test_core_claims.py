"""Who wants an instance empty: the strongest claim decides, and none of the others is forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.claims import (
    Claim,
    Claims,
    Drain,
    Evacuate,
    Remove,
    Restart,
    SlowDrain,
    claimed,
    why_claimed,
)

DRAIN, REMOVE = Drain("d", 1.0, reason="a fan"), Remove("e", 2.0, reason="fewer")
RESTART = Restart("r", 3.0, nonce="old", reason="a leak")
EVACUATE = Evacuate("v", 4.0, deadline_s=34.0)
WEAKEST_FIRST: tuple[Claim, ...] = (SlowDrain("s", 0.0), DRAIN, RESTART, REMOVE, EVACUATE)
KINDS = tuple(type(claim) for claim in WEAKEST_FIRST)


def of(*claims: Claim) -> Claims:
    found = Claims.first(claims[0])
    for claim in claims[1:]:
        found = found.with_claim(claim)
    return found


deeds = st.lists(st.tuples(st.sampled_from(WEAKEST_FIRST), st.booleans(), st.integers(5, 9)))


@given(deeds)
def test_in_any_order_the_strongest_of_those_that_stand_is_in_force(deeds) -> None:
    """Compared with a plain table of the claims."""
    claims: Claims | None = None
    stands: dict[type[Claim], Claim] = {}
    drain_id = ""
    for claim, is_made, second in deeds:
        kind = type(claim)
        if is_made:
            made = replace(claim, cause_id=f"{claim.cause_id}-{second}", made_s=float(second))
            drain_id = drain_id if stands else made.cause_id
            claims, stands[kind] = claimed(claims, made), made
        elif claims is not None:
            claims = claims.without(kind)
            stands.pop(kind, None)
        assert (claims is None) == (not stands)
        if claims is None:
            continue
        claims.check()
        assert claims.weakest_first == tuple(stands[k] for k in KINDS if k in stands)
        assert claims.strongest == next(stands[k] for k in reversed(KINDS) if k in stands)
        assert claims.drain_id == drain_id, "as long as anybody claims the instance"
        assert claims.goes == bool({Remove, Evacuate} & set(stands))
        assert claims.restarts == (Restart in stands and not claims.goes)


def test_a_drain_s_deadline_is_not_the_removal_s() -> None:
    """It counts once the instance is to stay after all."""
    drained = replace(DRAIN, deadline_s=60.0)
    both = of(replace(REMOVE, deadline_s=5.0), drained)
    assert [both.strongest.is_overdue(now_s) for now_s in (4.9, 5.0)] == [False, True]
    assert not DRAIN.is_overdue(1e12)
    left = both.without(Remove)
    assert (left.strongest, left.drain_id) == (drained, "e")


def test_a_second_restart_is_of_the_same_process_and_may_come_at_once() -> None:
    """The process that it would replace may be the new one already."""
    second = replace(RESTART, cause_id="s", nonce="new", at_once=True)
    assert of(RESTART, second).restart == replace(second, nonce="old")


def test_what_would_change_a_drain() -> None:
    later = replace(DRAIN, cause_id="x", made_s=9.0, actor="bo")
    claims = of(DRAIN, RESTART)
    assert not claims.would_change(later), "the same order again"
    assert claims.would_change(replace(later, reason="two fans"))
    assert claims.would_change(replace(later, deadline_s=60.0)), "it counts from now"
    assert of(replace(DRAIN, deadline_s=60.0)).would_change(later), "none from now on"
    assert of(REMOVE).would_change(later), "it drains on when it is not removed"
    assert not claims.would_change(replace(RESTART, nonce="new")), "it is of the same process"
    assert claims.would_change(replace(RESTART, at_once=True))


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (None, of(DRAIN), "a fan"),
        (of(DRAIN), of(DRAIN, REMOVE), "to be removed: fewer"),
        (of(REMOVE, DRAIN), of(DRAIN), "not to be removed any more; it drains on: a fan"),
        (of(DRAIN, RESTART), of(DRAIN), "its restart is over; it drains on: a fan"),
        (of(WEAKEST_FIRST[0], DRAIN), of(WEAKEST_FIRST[0]), "it drains on"),
    ],
)
def test_what_is_said_of_a_change(before: Claims | None, now: Claims, why: str) -> None:
    assert why_claimed(now, before) == why


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (Claims("d", 1.0), "nobody claims"),
        (of(replace(EVACUATE, deadline_s=None)), "without a deadline"),
        (of(replace(RESTART, nonce="")), "of no process"),
    ],
)
def test_what_cannot_have_come_about_is_refused(broken: Claims, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        broken.check()
