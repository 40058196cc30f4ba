"""Hashes of prompts' beginnings: equal where the tokens are equal, and only under the same key."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.load.cached_prefixes import HASH_BYTES
from controller.runtime.frontend.traffic_recorder import prefix_hashes, session_hash

KEY = b"k" * 32
TOKENS = st.lists(st.integers(0, 3) | st.sampled_from([2**31, 2**40]), max_size=40)


def hashes(tokens: list[int], size: int = 4, key: bytes = KEY) -> list[bytes]:
    return list(prefix_hashes(key, tokens, size))


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_two_prompts_share_the_hashes_of_the_full_blocks_that_they_share(one, other, size) -> None:
    of_one, of_other = hashes(one, size), hashes(other, size)
    assert len(of_one) == len(one) // size
    assert {len(each) for each in of_one} <= {HASH_BYTES}
    for block, (left, right) in enumerate(zip(of_one, of_other, strict=False), start=1):
        assert (left == right) == (one[: block * size] == other[: block * size])


def test_another_key_makes_all_hashes_others() -> None:
    prompt = list(range(400))
    assert not set(hashes(prompt)) & set(hashes(prompt, key=b"l" * 32))
    sessions = {session_hash(KEY, "ann"), session_hash(KEY, "bob"), session_hash(b"l" * 32, "ann")}
    assert len(sessions) == 3
    assert session_hash(KEY, "") == ""
