"""What a frontend knows of one request's owner, where the order of its messages matters."""

import pytest

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.ownership import Epoch, Loss, Ownership

A, B, C = (InstanceRef(each, 1, each) for each in "abc")


def _ownership() -> Ownership[str]:
    return Ownership(A)


def test_a_move_announced_before_the_first_token_of_its_hop_is_not_forgotten() -> None:
    """The source has the request back, and moves it on before it decoded again."""
    ownership = _ownership()
    ownership.announce(B, Epoch(0, 1))
    ownership.announce(C, Epoch(0, 3))
    ownership.offer(A, Epoch(0, 2), 0, 1, "0")
    assert ownership.holders == [A, C]
    assert ownership.lost(*A.key) is Loss.ASK
    assert ownership.to_ask == (C, Epoch(0, 3))
    ownership.check()


def test_a_fence_is_granted_once_and_again_and_not_to_one_whose_destination_was_heard() -> None:
    ownership = _ownership()
    assert ownership.fence(A, Epoch(0, 2))
    assert ownership.fence(A, Epoch(0, 2))
    ownership.announce(B, Epoch(0, 1))
    assert ownership.holders == [A], "that hop is over"
    assert not ownership.moved(B, Epoch(0, 1), 0)
    assert ownership.moved(B, Epoch(0, 3), 0)
    assert not ownership.fence(A, Epoch(0, 4))
    assert ownership.owner == B


def test_a_source_does_not_get_back_what_has_moved_on_meanwhile() -> None:
    """To C in the hop that the source A asks for, or further on, and back to A."""
    ownership = _ownership()
    assert ownership.moved(B, Epoch(0, 1), 0)
    for hop, owner in ((2, C), (3, A)):
        assert ownership.moved(owner, Epoch(0, hop), 0)
        assert ownership.fence(A, Epoch(0, 2)) is False
        assert ownership.owner == owner


def test_in_one_epoch_the_tokens_of_one_instance_count() -> None:
    """B moved it on to C in the hop in which A, which was taken for dead, got it back."""
    ownership = _ownership()
    assert ownership.fence(A, Epoch(0, 2))
    assert ownership.offer(C, Epoch(0, 2), 0, 1, "of C") is None
    assert ownership.offer(A, Epoch(0, 2), 0, 1, "of A") == [("of A", 0)]
    assert ownership.lost(*A.key) is Loss.REQUEST
    assert ownership.offer(A, Epoch(0, 2), 1, 1, "late") == [("late", 0)]


@pytest.mark.parametrize(
    ("dead", "found"), [((A, B), [Loss.ASK, Loss.REQUEST]), ((B, A), [Loss.NONE, Loss.REQUEST])]
)
def test_both_dead_is_lost(dead: tuple[InstanceRef, ...], found: list[Loss]) -> None:
    ownership = _ownership()
    ownership.announce(B, Epoch(0, 1))
    assert [ownership.lost(*each.key) for each in dead] == found


def test_who_was_asked_and_says_no_in_that_hop_ends_it() -> None:
    ownership = _ownership()
    ownership.announce(B, Epoch(0, 1))
    assert not ownership.disowned(Epoch(0, 1)), "nobody asked"
    ownership.lost(*A.key)
    assert not ownership.disowned(Epoch(0, 3))
    assert ownership.disowned(Epoch(0, 1))


def test_a_dead_one_is_announced_to_nobody() -> None:
    ownership = _ownership()
    ownership.lost(*B.key)
    ownership.announce(B, Epoch(0, 1))
    assert ownership.lost(*A.key) is Loss.REQUEST


def test_a_request_given_to_one_that_died_unheard_is_lost() -> None:
    ownership = _ownership()
    ownership.announce(B, Epoch(0, 1))
    assert ownership.lost(*B.key) is Loss.NONE
    assert ownership.lost_in(Epoch(0, 1))
    heard = _ownership()
    heard.moved(B, Epoch(0, 1), 0)
    assert not heard.lost_in(Epoch(0, 1)), "its death itself says so"


def test_a_replay_is_a_new_attempt_from_the_tokens_delivered_so_far() -> None:
    ownership = _ownership()
    ownership.offer(A, Epoch(), 0, 2, "01")
    ownership.offer(A, Epoch(), 5, 1, "5")
    assert ownership.lost(*A.key) is Loss.REQUEST
    assert ownership.replayed(B) == Epoch(1, 0)
    assert (ownership.owner, ownership.holders, ownership.to_ask) == (B, [B], None)
    assert ownership.order.gap is None, "what the old attempt said of later tokens is forgotten"
    assert ownership.offer(A, Epoch(0, 0), 2, 1, "2") is None, "the old attempt goes on"
    assert ownership.offer(A, Epoch(0, 1), 2, 1, "2") is None, "or moved"
    delivered = ownership.offer(B, Epoch(1, 0), 2, 1, "2")
    assert delivered is not None
    assert [each.item for each in delivered] == ["2"]
    ownership.check()


def test_what_is_said_of_an_earlier_attempt_counts_for_nothing() -> None:
    ownership = _ownership()
    ownership.announce(B, Epoch(0, 1))
    ownership.lost(*A.key)
    ownership.replayed(C)
    assert not ownership.disowned(Epoch(0, 1))
    assert not ownership.moved(B, Epoch(0, 1), 0)
    ownership.announce(B, Epoch(0, 5))
    assert ownership.holders == [C]
    assert not ownership.lost_in(Epoch(0, 5))
    assert ownership.fence(A, Epoch(0, 6)), "and its source may stop it"
    assert ownership.owner == C
    assert ownership.lost(*B.key) is Loss.NONE
    assert ownership.lost(*C.key) is Loss.REQUEST
    ownership.check()
