import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.migration.ownership import Delivery, Epoch, TokenOrder

FIRST = Epoch(0, 0)
MOVED = Epoch(0, 1)
REPLAYED = Epoch(1, 0)

Message = tuple[Epoch, int, tuple[int, ...]]
"""Epoch, index of the first token, tokens; a token's value is its index."""


def _message(epoch: Epoch, first: int, end: int) -> Message:
    return (epoch, first, tuple(range(first, end)))


def _feed(order: TokenOrder[Message], message: Message) -> list[tuple[Epoch, int]]:
    """Offers a message; the tokens delivered, each with the epoch of its message."""
    epoch, first, tokens = message
    delivered = order.offer(epoch, first, len(tokens), message)
    order.check()
    return [(item[0], token) for item, num_skip in delivered or () for token in item[2][num_skip:]]


def test_a_notice_of_an_owner_that_was_drops() -> None:
    order: TokenOrder[str] = TokenOrder()
    assert order.offer(MOVED, 2, 1, "2") == []
    assert order.offer(FIRST, 0, 0, "aborted there") is None
    assert order.offer(MOVED, 0, 2, "0-1") == [Delivery("0-1"), Delivery("2")]


def test_what_was_held_of_the_old_owner_counts_up_to_where_the_new_one_begins() -> None:
    order: TokenOrder[str] = TokenOrder()
    order.offer(FIRST, 1, 1, "1")
    order.offer(FIRST, 2, 2, "2-3 of the old owner")
    order.offer(FIRST, 2, 0, "notice of the old owner")
    order.raise_epoch(MOVED, began_index=2)
    assert order.gap == (0, 1)
    assert order.offer(FIRST, 0, 1, "0") == [Delivery("0"), Delivery("1")]
    assert order.offer(MOVED, 2, 1, "2") == [Delivery("2")]
    order.check()


def test_an_owner_begins_where_it_was_told_though_one_before_it_went_further() -> None:
    order: TokenOrder[str] = TokenOrder()
    order.raise_epoch(MOVED, began_index=4)
    order.raise_epoch(REPLAYED, began_index=2)
    order.check()
    assert order.offer(FIRST, 2, 1, "2") is None
    assert order.offer(MOVED, 0, 2, "0-1") == [Delivery("0-1")]
    order = TokenOrder(REPLAYED, next_index=3)
    assert order.offer(FIRST, 3, 1, "3") is None, "it knows no earlier epoch"
    assert order.offer(REPLAYED, 3, 1, "3") == [Delivery("3")]
    order.check()


def test_raise_epoch_fences_and_never_goes_back() -> None:
    order: TokenOrder[str] = TokenOrder()
    order.offer(MOVED, 3, 1, "3")
    order.raise_epoch(FIRST)
    assert (order.epoch, order.gap) == (MOVED, (0, 3))
    order.raise_epoch(REPLAYED)
    assert (order.epoch, order.gap) == (REPLAYED, None)
    assert order.offer(Epoch(0, 9), 0, 1, "fenced") is None
    assert order.offer(REPLAYED, 0, 1, "0") == [Delivery("0")]
    with pytest.raises(ValueError, match="bad token range"):
        order.offer(Epoch(2), -1, 1, "bad")
    assert order.epoch == REPLAYED, "nothing changed"


@pytest.mark.parametrize("next_index", [0, 3])
def test_a_notice_is_delivered_once_per_epoch_and_behind_its_tokens_not_at_all(next_index) -> None:
    order: TokenOrder[str] = TokenOrder(next_index=next_index)
    assert order.offer(FIRST, next_index, 0, "aborted") == [Delivery("aborted")]
    assert order.offer(FIRST, next_index, 0, "aborted again") == []
    assert order.offer(MOVED, next_index, 0, "aborted there") == [Delivery("aborted there")]
    order.check()
    order = TokenOrder()
    order.offer(FIRST, 1, 1, "1")
    order.offer(FIRST, 1, 0, "notice")
    assert order.offer(FIRST, 0, 1, "0") == [Delivery("0"), Delivery("notice"), Delivery("1")]
    assert order.offer(FIRST, 1, 0, "late notice") == []


@st.composite
def _segments(draw: st.DrawFn, epoch: Epoch, num_tokens: int) -> list[Message]:
    """Messages that cover tokens 0..num_tokens-1, some of them overlapping or doubled."""
    cuts = draw(st.sets(st.integers(1, max(1, num_tokens - 1)), max_size=8))
    edges = [0, *sorted(cut for cut in cuts if cut < num_tokens), num_tokens]
    cover = [_message(epoch, a, b) for a, b in itertools.pairwise(edges) if a < b]
    spans = draw(
        st.lists(st.tuples(st.integers(0, num_tokens), st.integers(0, num_tokens)), max_size=4)
    )
    extra = [_message(epoch, min(span), max(span)) for span in spans if span[0] != span[1]]
    doubled = draw(st.lists(st.sampled_from(cover), max_size=4)) if cover else []
    return cover + extra + doubled


@given(st.data(), st.integers(0, 30))
def test_any_shuffle_of_one_epoch_gives_each_token_once_and_then_the_notice(
    data: st.DataObject, num_tokens: int
) -> None:
    finished = (FIRST, num_tokens, ())
    messages = [*data.draw(_segments(FIRST, num_tokens)), finished, finished]
    order: TokenOrder[Message] = TokenOrder()
    tokens: list[int] = []
    num_finished = 0
    for message in data.draw(st.permutations(messages)):
        for item, num_skip in order.offer(FIRST, message[1], len(message[2]), message) or ():
            assert num_finished == 0, "nothing comes after the notice"
            num_finished += item == finished
            tokens += item[2][num_skip:]
        order.check()
    assert tokens == list(range(num_tokens))
    assert num_finished == 1
    assert order.gap is None


@given(st.data(), st.integers(1, 20))
def test_any_shuffle_over_three_owners_gives_each_token_once_in_order(data, num_tokens) -> None:
    """Owners before the last may stop anywhere; the last one sends all that may be missing."""
    messages = data.draw(_segments(REPLAYED, num_tokens))
    for epoch in (FIRST, MOVED):
        messages += data.draw(_segments(epoch, data.draw(st.integers(0, num_tokens))))
    order: TokenOrder[Message] = TokenOrder()
    delivered: list[tuple[Epoch, int]] = []
    for message in data.draw(st.permutations(messages)):
        delivered += _feed(order, message)
        assert order.next_index == len(delivered)
        assert order.epoch >= message[0]
    assert [token for _, token in delivered] == list(range(num_tokens))


def _shifted(messages: list[Message], begin: int) -> list[Message]:
    return [(epoch, begin + first, tokens) for epoch, first, tokens in messages]


@given(st.data(), st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_any_shuffle_over_three_owners_gives_each_token_of_its_own_owner(data, lengths) -> None:
    """Each goes on where the one before it stopped: nothing is lost, however it is overtaken."""
    messages: list[Message] = []
    owners: list[Epoch] = []
    for epoch, length in zip((FIRST, MOVED, Epoch(0, 2)), lengths, strict=True):
        messages += _shifted(data.draw(_segments(epoch, length)), len(owners))
        owners += [epoch] * length
    order: TokenOrder[Message] = TokenOrder()
    delivered: list[Epoch] = []
    for message in data.draw(st.permutations(messages)):
        delivered += [epoch for epoch, _ in _feed(order, message)]
    assert delivered == owners
    assert order.gap is None


@given(st.data(), st.integers(0, 5), st.lists(st.integers(1, 8), min_size=3, max_size=3))
def test_nothing_of_a_fenced_owner_is_delivered(data, next_index, lengths) -> None:
    """It and its source, which has the request back, both go on from `next_index`; then the
    source's successor does."""
    fenced, back, successor = MOVED, Epoch(0, 2), Epoch(0, 3)
    num_fenced, num_back, num_last = lengths
    messages = _shifted(data.draw(_segments(fenced, num_fenced)), next_index)
    messages += _shifted(data.draw(_segments(back, num_back)), next_index)
    messages += _shifted(data.draw(_segments(successor, num_last)), next_index + num_back)
    order: TokenOrder[Message] = TokenOrder(next_index=next_index)
    order.raise_epoch(back)
    delivered: list[Epoch] = []
    for message in data.draw(st.permutations(messages)):
        delivered += [epoch for epoch, _ in _feed(order, message)]
    assert delivered == [back] * num_back + [successor] * num_last
