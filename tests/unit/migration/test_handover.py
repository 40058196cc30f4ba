"""The handover of cached prompts by a leaving instance."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.migration.handover import (
    MAX_FILL_SOURCES,
    Answered,
    Began,
    DestinationLost,
    End,
    Fill,
    Filling,
    Gone,
    Handover,
    Looked,
    Offer,
    Started,
    Ticked,
)
from controller.core.migration.prefix_fetch import FetchOutcome

PROMPTS = {
    "turn-3": [b"a1", b"a2", b"a3"],
    "other": [b"a1", b"b2", b"b3"],
    "turn-2": [b"a1", b"a2"],
    "with an adapter": [],
    "third": [b"c1"],
}


def handover(destinations: list[str], **limits: int) -> Handover:
    return Handover(list(PROMPTS), destinations, PROMPTS.__getitem__, 10.0, 0.0, **limits)


def took(offer: object, num_tokens: int = 16) -> Answered:
    assert isinstance(offer, Offer)
    fetched = FetchOutcome.FETCHED
    return Answered(offer.destination_id, offer.prompt_id, fetched, num_tokens)


def test_the_hottest_goes_first_and_beginnings_of_it_are_left_out() -> None:
    machine = handover(["i-1", "i-2"])
    first, second = machine.handle(Began(), 0.0)
    assert (first, second) == (Offer("turn-3", "i-1", 3), Offer("other", "i-2", 3))
    (third,) = machine.handle(took(second), 1.0)
    assert third == Offer("third", "i-2", 1)
    assert machine.handle(took(third), 2.0) == []
    assert machine.handle(took(first, 48), 3.0) == [End()]
    assert machine.view().complete
    assert (machine.view().num_prompts, machine.view().num_tokens) == (3, 80)
    assert machine.view().took_s == 3.0


def test_what_one_has_no_room_for_goes_to_another() -> None:
    machine = handover(["i-1", "i-2"])
    _, second = machine.handle(Began(), 0.0)
    full = Answered("i-1", "turn-3", FetchOutcome.NO_ROOM)
    assert machine.handle(full, 1.0) == [], "i-2 is busy, i-1 full"
    (again,) = machine.handle(took(second), 1.0)
    assert again == Offer("turn-3", "i-2", 3)
    assert machine.handle(DestinationLost("i-2"), 2.0) == [End()]
    assert not machine.view().complete
    assert machine.view().num_prompts == 1


def test_what_is_nearly_the_same_goes_to_the_same_place() -> None:
    prompts = {"edited": [b"a", b"b", b"d"], "longer": [b"a", b"b", b"c", b"e"], "other": [b"x"]}
    machine = Handover(list(prompts), ["i-1", "i-2"], prompts.__getitem__, 10.0, 0.0)
    first, second = machine.handle(Began(), 0.0)
    assert (first, second) == (Offer("edited", "i-1", 3), Offer("other", "i-2", 1))
    assert machine.handle(took(second), 1.0) == []
    (third,) = machine.handle(took(first), 2.0)
    assert third == Offer("longer", "i-1", 4)
    (again,) = machine.handle(DestinationLost("i-1"), 3.0)
    assert again == Offer("longer", "i-2", 4), "i-1 may be gone with all that it took"


def test_no_offer_is_made_after_the_limit() -> None:
    machine = handover(["i-1"])
    (first,) = machine.handle(Began(), 0.0)
    assert machine.handle(Ticked(), 10.0) == [], "the destination gives up by itself"
    assert machine.handle(took(first), 10.1) == [End()]
    assert not machine.view().complete


def test_no_more_tokens_are_copied_than_may_be() -> None:
    machine = handover(["i-1"], max_tokens=48)
    (first,) = machine.handle(Began(), 0.0)
    assert machine.handle(took(first, 48), 1.0) == [End()]
    assert not machine.view().complete


def test_without_prompts_or_destinations_it_is_over_at_once() -> None:
    assert handover([]).handle(Began(), 0.0) == [End()]
    nothing = Handover([], ["i-1"], PROMPTS.__getitem__, 10.0, 0.0)
    assert nothing.handle(Began(), 0.0) == [End()]
    assert nothing.view().complete


@given(st.data())
def test_every_prompt_is_placed_or_left_and_the_handover_ends(data: st.DataObject) -> None:
    num_prompts = data.draw(st.integers(0, 8))
    names = {f"p{n}": [bytes([n, k]) for k in range(n % 4)] for n in range(num_prompts)}
    destinations = [f"i-{n}" for n in range(data.draw(st.integers(0, 3)))]
    machine = Handover(list(names), destinations, names.__getitem__, 20.0, 0.0)
    under_way: dict[str, str] = {}
    placed: list[str] = []
    now_s, events = 0.0, [Began()]
    for _ in range(100):
        for event in events:
            for told in machine.handle(event, now_s):
                if isinstance(told, Offer):
                    assert told.destination_id not in under_way
                    under_way[told.destination_id] = told.prompt_id
            machine.check()
        if machine.over:
            break
        now_s += data.draw(st.sampled_from([0.1, 1.0]))
        choices = [*under_way, *(["tick"] if now_s < 20.0 else [])]
        chosen = data.draw(st.sampled_from(choices))
        if chosen == "tick":
            events = [Ticked()]
        elif data.draw(st.booleans()):
            outcome = data.draw(st.sampled_from(list(FetchOutcome)))
            prompt_id = under_way.pop(chosen)
            placed += [prompt_id] * (outcome is FetchOutcome.FETCHED)
            events = [Answered(chosen, prompt_id, outcome)]
        else:
            del under_way[chosen]
            events = [DestinationLost(chosen)]
    assert machine.over
    assert len(placed) == len(set(placed)), "one prompt has one new place"


def test_a_new_instance_is_filled_once_it_may_get_requests() -> None:
    machine = Filling()
    machine.handle(Started("i-2"))
    assert machine.handle(Looked({"i-0": 100, "i-1": 900})) == [], "it may not get any yet"
    machine.handle(Started("i-3"))
    machine.handle(Gone("i-3"))
    (fill,) = machine.handle(Looked({"i-0": 100, "i-1": 900, "i-2": 0, "i-3": 0, "i-4": 0}))
    assert fill == Fill("i-2", ("i-1", "i-0")), "i-4 is not new and has nothing"
    assert fill.tokens_each(8000) == 2000
    assert not machine.view()
    assert machine.handle(Looked({"i-0": 100, "i-2": 0})) == [], "once is enough"


def test_in_a_new_cluster_nobody_is_filled_and_in_a_large_one_by_few() -> None:
    machine = Filling()
    for number in range(3):
        machine.handle(Started(f"i-{number}"))
    assert machine.handle(Looked(dict.fromkeys(("i-0", "i-1", "i-2"), 0))) == []
    assert not machine.view()
    machine.handle(Started("new"))
    many = {f"i-{number}": 1000 + number for number in range(64)}
    (fill,) = machine.handle(Looked(many | {"new": 0}))
    assert len(fill.source_ids) == MAX_FILL_SOURCES
    assert fill.source_ids[0] == "i-63"
