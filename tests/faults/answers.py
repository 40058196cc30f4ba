"""The right tokens of a request, after the tokens `begun` that it has already."""

from collections.abc import Sequence

from controller.api import token_sequence
from tests.faults.cluster import INSTANCES, Client, FaultCluster
from tests.faults.engines import prompt_of


def emulated(_cluster: FaultCluster, client: Client, begun: Sequence[int] = ()) -> list[int]:
    start = token_sequence.start(prompt_of(client.request_id, client.num_prompt_tokens))
    positions = range(len(begun), client.max_tokens)
    return [token_sequence.token(start, position) for position in positions]


def unmoved(cluster: FaultCluster, client: Client, begun: Sequence[int] = ()) -> list[int]:
    """What each living instance answers now to a request that does not move: for engines that
    compute. Also finds a prefix cache in which a move has left wrong content."""
    alive = [i for i in INSTANCES if not cluster.children[i].dead]
    again = [
        cluster.submit(
            "f-1",
            f"again-{len(begun)}-{instance_id}-{client.request_id}",
            instance_id,
            client.num_prompt_tokens,
            client.max_tokens - len(begun),
            prompt_of=client.request_id,
            and_tokens=begun,
        )
        for instance_id in alive
    ]
    readings = [each.wait_over() for each in again]
    assert all(read.num_ends == 1 for read in readings), readings
    first, *others = (read.tokens for read in readings)
    assert all(tokens == first for tokens in others), f"{client.request_id}: {alive} disagree"
    return first
