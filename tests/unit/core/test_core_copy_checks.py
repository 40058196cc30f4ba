"""Which copies are verified, and for how long a corrupt one counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.load.snapshot import InstanceRef
from controller.core.migration.copy_checks import (
    MAX_MOVE_BYTES,
    QUARANTINE_S,
    SAMPLE_BYTES,
    VERIFIED_EVERY,
    LinkChecks,
    MoveSample,
    sample_of,
)

A, B = InstanceRef("i-0", 1, "mem://i-0"), InstanceRef("i-1", 1, "mem://i-1")
A_AGAIN = InstanceRef("i-0", 2, "mem://i-0.2")


def verified(checks: LinkChecks, source: InstanceRef, num_copies: int) -> list[int]:
    """Which of so many copies, one after the other, are verified."""
    found = []
    for number in range(num_copies):
        due = checks.verifies(source)
        checks.copied(source, verified=due)
        checks.check(0.0)
        found += [number] if due else []
    return found


def test_the_first_fetch_over_each_link_is_verified_and_later_one_in_16() -> None:
    checks = LinkChecks()
    for source in (A, B, A_AGAIN):
        assert verified(checks, source, 33) == [0, VERIFIED_EVERY, 2 * VERIFIED_EVERY]


def test_a_fetch_that_brings_nothing_does_not_count() -> None:
    checks = LinkChecks()
    assert checks.verifies(A)
    assert checks.verifies(A)
    checks.copied(A, verified=True)
    assert not checks.verifies(A)


def test_fetches_at_the_same_time_do_not_make_the_next_verification_later() -> None:
    checks = LinkChecks()
    checks.copied(A, verified=True)
    for _ in range(VERIFIED_EVERY + 3):
        checks.copied(A, verified=False)
    assert checks.verifies(A)


def test_a_link_with_a_corrupt_copy_is_not_used_for_ten_minutes() -> None:
    checks = LinkChecks()
    verified(checks, A, 1)
    checks.differed(A, 100.0)
    checks.check(100.0)
    ends_s = 100.0 + QUARANTINE_S
    for now_s, trusts in ((100.0, False), (ends_s - 0.1, False), (ends_s, True)):
        assert checks.trusts(A, now_s) is trusts
        assert checks.trusts(A_AGAIN, now_s) is trusts, "it may have the same memory"
        assert checks.trusts(B, now_s)
        assert checks.view(now_s) == (() if trusts else ("i-0",))
    assert checks.verifies(A), "the first one after it"


def test_a_second_corrupt_copy_begins_the_quarantine_anew() -> None:
    checks = LinkChecks()
    checks.differed(A, 0.0)
    checks.differed(A, 10.0)
    assert not checks.trusts(A, QUARANTINE_S)


def test_instances_that_are_gone_are_forgotten_but_not_their_quarantine() -> None:
    checks = LinkChecks()
    checks.copied(A, verified=True)
    checks.copied(B, verified=True)
    checks.differed(A, 0.0)
    checks.lost(lambda peer: peer in (A, B))
    assert checks.verifies(B)
    assert checks.view(0.0) == ("i-0",)


def test_one_in_16_of_the_moves_that_are_short_enough_is_verified() -> None:
    sample = MoveSample()
    assert not sample.begins(0, hurried=False), "it copies nothing"
    assert not sample.begins(MAX_MOVE_BYTES + 1, hurried=False)
    assert not sample.begins(1, hurried=True)
    found = [sample.begins(MAX_MOVE_BYTES, hurried=False) for _ in range(33)]
    assert [i for i, each in enumerate(found) if each] == [0, VERIFIED_EVERY, 2 * VERIFIED_EVERY]


@given(st.integers(0, 5000), st.integers(1, SAMPLE_BYTES))
def test_a_sample_is_bounded_in_order_and_has_both_ends(num_blocks: int, block_bytes: int) -> None:
    block_ids = tuple(range(7, 7 + num_blocks))
    found = list(sample_of(block_ids, block_bytes))
    assert found == sorted(set(found))
    assert set(found) <= set(block_ids)
    assert len(found) <= max(2, SAMPLE_BYTES // block_bytes)
    assert found[:1] == list(block_ids[:1])
    assert found[-1:] == list(block_ids[-1:])


@pytest.mark.parametrize(("num_blocks", "num_found"), [(32, 32), (33, 32), (3750, 32)])
def test_all_of_a_short_prefix_is_digested(num_blocks: int, num_found: int) -> None:
    assert len(sample_of(range(num_blocks), 2 << 20)) == num_found
