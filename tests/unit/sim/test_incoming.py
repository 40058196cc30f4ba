"""Which KV blocks of two prompts are the same, by the hashes of their trace."""

from controller.sim.request_run import BlockNames
from controller.sim.workload.trace import TraceRequest


def _names(request_id: str, num_prompt_tokens: int, *prefix_hashes: int) -> BlockNames:
    traced = TraceRequest(0.0, num_prompt_tokens, 5, prefix_hashes=prefix_hashes)
    return BlockNames(request_id, traced, 64, 16)


def _num_shared(one: BlockNames, other: BlockNames) -> int:
    same = [one(index) == other(index) for index in range(20)]
    assert same == sorted(same, reverse=True), "what is shared is a prefix"
    return sum(same)


def test_blocks_are_shared_as_far_as_the_hashes_agree() -> None:
    """Blocks beyond the hashes or the prompt are the request's own."""
    for one, other, num_tokens, num_shared in (
        ((1, 2, 3), (1, 2, 4), 300, 8),
        ((1, 2), (5, 6), 300, 0),
        ((1,), (1,), 300, 4),
        ((1, 2), (1, 2), 100, 6),
    ):
        assert _num_shared(_names("a", num_tokens, *one), _names("b", num_tokens, *other)) == (
            num_shared
        )
