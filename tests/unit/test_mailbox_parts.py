"""Frames of any size cross the wire in parts of at most 8 KiB."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.zmq.zmq_mailbox import (
    MAX_PART_BYTES,
    ClusterKey,
    cut,
    joined,
    new_secret_key,
)
from tests.unit.mailbox_support import Inbox

EDGES = [0, 1, MAX_PART_BYTES - 1, MAX_PART_BYTES, MAX_PART_BYTES + 1, 2 * MAX_PART_BYTES]
SIZES = st.sampled_from([*EDGES, 5 * MAX_PART_BYTES + 7])


@given(st.lists(SIZES, min_size=1, max_size=6))
def test_frames_come_back(sizes: list[int]) -> None:
    frames = [bytes([n]) * size for n, size in enumerate(sizes)]
    sent = cut(frames)
    assert all(len(part) <= MAX_PART_BYTES for part in sent)
    assert joined([memoryview(part) for part in sent]) == frames


def test_small_frames_are_sent_as_they_are() -> None:
    frames = [b"head", b"", bytes(MAX_PART_BYTES - 1)]
    assert all(part is frame for part, frame in zip(cut(frames), frames, strict=True))


def test_what_is_cut_may_be_of_any_kind() -> None:
    words = memoryview(bytes(range(8)) * MAX_PART_BYTES).cast("Q")
    assert joined([memoryview(part) for part in cut([bytearray(b"x"), words])]) == [
        b"x",
        words.tobytes(),
    ]


def test_a_frame_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the last frame is incomplete"):
        joined([memoryview(b"head"), memoryview(bytes(MAX_PART_BYTES))])


async def test_large_messages_arrive_whole_and_in_order() -> None:
    key = ClusterKey(new_secret_key())
    inbox, friend = Inbox(key), Inbox(key)
    sent = [(b"%d" % size, [bytes([size % 251]) * size, b"tail"]) for size in (*EDGES, 8 << 20)]
    try:
        for head, payload in sent:
            friend.mailbox.send(inbox.address, head, payload)
        await inbox.until(lambda i: len(i.messages) == len(sent))
    finally:
        for each in inbox, friend:
            await each.mailbox.close()
    assert inbox.messages == sent
    assert friend.lost == []
