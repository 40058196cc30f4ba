"""What holds for relief whatever the requests are."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.core.emptying.relief import (
    Candidate,
    ReliefView,
    lacks,
    next_move,
    with_arrivals,
    without,
)
from controller.core.load.freeness import freeness
from controller.core.settings import ReschedulingConfig
from tests.unit.rescheduling.relief_builders import BLOCK_SIZE, begun, instance, view_of

TOTAL_BLOCKS = 200
"""Twice the target load of a high-priority request."""


@st.composite
def request_lists(draw: st.DrawFn, name: str, max_size: int = 8) -> list[Candidate]:
    requests, free = [], TOTAL_BLOCKS
    for index in range(draw(st.integers(0, max_size))):
        num_blocks = draw(st.integers(1, 60))
        queued = num_blocks > free or draw(st.integers(0, 7)) == 0
        free -= 0 if queued else num_blocks
        requests.append(
            Candidate(
                f"{name}{index}",
                draw(st.sampled_from([0, 0, 0, 1])),
                num_blocks * BLOCK_SIZE - draw(st.integers(0, 15)),
                0 if queued else num_blocks,
                0 if queued else num_blocks,
                queued,
                evicted=queued and draw(st.booleans()),
                arrival_time_s=float(draw(st.integers(0, 3))),
                num_tokens_left=draw(st.one_of(st.none(), st.integers(1, 500))),
                refusal=draw(st.sampled_from([None] * 6 + ["multimodal"])),
                moves=draw(st.sampled_from([(), (), (("b", 5.0),), (("c", 5.0),) * 6])),
            )
        )
    return requests


configs = st.builds(
    ReschedulingConfig,
    source_below_steps=st.sampled_from([16.0, 48.0, 160.0]),
    destination_above_steps=st.just(160.0),
    guard=st.booleans(),
)


@st.composite
def views(draw: st.DrawFn) -> ReliefView:
    return view_of(
        draw(request_lists("s")),
        [replace(each, refusal=None) for each in draw(request_lists("d"))],
        total_blocks=TOTAL_BLOCKS,
        draining=draw(st.integers(0, 4)) == 0,
        config=draw(configs),
        bytes_per_s=draw(st.sampled_from([None, 1e9, 1e7])),
    )


def projected(view: ReliefView) -> tuple[float, float]:
    """Freeness of both once all that has begun is over."""
    leaving = {c.request_id for c in view.candidates if c.outgoing}
    return (
        freeness(without(view.source, view.candidates, leaving), view.levels),
        freeness(with_arrivals(view.destination, view.sent), view.levels),
    )


@given(views())
def test_every_move_is_needed_and_fits(view: ReliefView) -> None:
    """And relief ends: by being none any more, or with a code for everybody who was tried."""
    config, draining = view.config, view.source.draining
    while (decision := next_move(view)).chosen is not None:
        chosen = decision.chosen
        assert chosen in view.candidates
        assert chosen.refusal is None
        assert not chosen.outgoing
        assert chosen.request_id not in {each.request_id for each in decision.refused}
        if not draining:
            assert projected(view)[0] < config.source_below_steps, "it was a source"
            to = with_arrivals(view.destination, view.sent)
            assert lacks(to, chosen.blocks_there(BLOCK_SIZE)) is None
        view = begun(view, chosen)
        if config.guard and not draining:
            assert projected(view)[1] >= config.source_below_steps, "it became a source"
    staying = {c.request_id for c in view.candidates if not c.outgoing}
    refused = {each.request_id for each in decision.refused}
    assert refused <= staying
    if draining:
        assert refused == staying
    elif projected(view)[0] < config.source_below_steps:
        assert {c.request_id for c in view.candidates if not c.outgoing and not c.queued} <= refused


@given(views())
def test_a_draining_instance_sends_whatever_can_go(view: ReliefView) -> None:
    view = replace(
        view,
        source=replace(view.source, draining=True),
        destination=instance(instance_id="b", total_blocks=1000),
        candidates=[replace(c, num_tokens_left=None) for c in view.candidates],
    )
    while (decision := next_move(view)).chosen is not None:
        view = begun(view, decision.chosen)
    assert {c.request_id for c in view.candidates if not c.outgoing} == {
        c.request_id for c in view.candidates if c.refusal
    }


@given(views())
def test_one_under_way_counts_as_if_it_had_arrived(view: ReliefView) -> None:
    """Once: the next decision is the one that is made when both instances have reported it."""
    chosen = next_move(view).chosen
    if chosen is None or (chosen.queued and view.source.draining):
        return
    under_way = begun(view, chosen)
    arrived = replace(
        view,
        source=without(view.source, view.candidates, {chosen.request_id}),
        candidates=[c for c in view.candidates if c.request_id != chosen.request_id],
        destination=with_arrivals(view.destination, [chosen]),
    )
    assert next_move(under_way) == next_move(arrived)
