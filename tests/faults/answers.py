"""The right tokens of a request."""

from controller.api import token_sequence
from tests.faults.cluster import INSTANCES, Client, FaultCluster
from tests.faults.engines import prompt_of


def emulated(_cluster: FaultCluster, client: Client) -> list[int]:
    start = token_sequence.start(prompt_of(client.request_id, client.num_prompt_tokens))
    return [token_sequence.token(start, position) for position in range(client.max_tokens)]


def unmoved(cluster: FaultCluster, client: Client) -> list[int]:
    """What an instance answers that is left alone: for engines that compute."""
    instance_id = next(i for i in INSTANCES if not cluster.children[i].dead)
    again = cluster.submit(
        "f-1",
        f"again-{client.request_id}",
        instance_id,
        client.num_prompt_tokens,
        client.max_tokens,
        prompt_of=client.request_id,
    )
    read = again.wait_over()
    assert read.num_ends == 1, read
    return read.tokens
