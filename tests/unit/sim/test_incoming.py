"""Which KV blocks of two prompts are the same, by the hashes of their trace."""

from controller.sim.request_run import BlockNames, model_request
from controller.sim.workload.trace import TraceRequest


def _names(request_id: str, num_prompt_tokens: int, *prefix_hashes: int) -> BlockNames:
    traced = TraceRequest(0.0, num_prompt_tokens, 5, prefix_hashes=prefix_hashes)
    return BlockNames(request_id, traced, 64, 16)


def _num_shared(one: BlockNames, other: BlockNames) -> int:
    same = [one(index) == other(index) for index in range(20)]
    assert same == sorted(same, reverse=True), "what is shared is a prefix"
    return sum(same)


def test_blocks_are_shared_as_far_as_the_hashes_agree() -> None:
    assert _num_shared(_names("a", 300, 1, 2, 3), _names("b", 300, 1, 2, 4)) == 8
    assert _num_shared(_names("a", 300, 1, 2), _names("b", 300, 5, 6)) == 0


def test_blocks_beyond_the_hashes_or_the_prompt_are_the_requests_own() -> None:
    assert _num_shared(_names("a", 300, 1), _names("b", 300, 1)) == 4
    assert _num_shared(_names("a", 100, 1, 2), _names("b", 100, 1, 2)) == 6


def test_without_hashes_no_block_has_a_name() -> None:
    assert model_request(3, TraceRequest(1.0, 300, 5), 0, 0, 16).block_hash is None
    request = model_request(3, TraceRequest(1.0, 300, 5, 1, "s", (7,)), 0, 64, 16)
    assert request.block_hash is not None
    assert request.block_hash(0) == (7, 0)
    assert (request.rank, request.request_id) == (0, "r-3")
