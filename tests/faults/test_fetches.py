"""Faults while a prefix is fetched or loaded, on two of vLLM's engines with host caches: the tokens
are those of the request that computed the whole prompt, and all blocks come back."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.children import wait_for
from tests.faults.cluster import Client, FaultCluster
from tests.faults.conftest import Shared
from tests.faults.engines import HOST_CACHE, SLICE_BLOCKS, VLLM_BLOCK_BYTES, VLLM_BLOCK_TOKENS

ENGINE = HOST_CACHE
TIMING: dict[str, float] = {}
SOURCE, DESTINATION = "i-0", "i-1"
NUM_BLOCKS = 40
PROMPT = NUM_BLOCKS * VLLM_BLOCK_TOKENS + 7
OUTPUTS = 24
SLICE_BYTES = SLICE_BLOCKS * VLLM_BLOCK_BYTES
STANDS_STILL = 100.0
"""A limit in bytes per second: a slice takes more than an hour."""

_names = (f"prompt-{number}" for number in itertools.count())


@contextmanager
def balanced(shared: Shared) -> Iterator[FaultCluster]:
    """A cluster of which nothing may be in use afterwards."""
    with shared.lend() as cluster:
        cluster.mend()
        yield cluster
        alive = [i for i in (SOURCE, DESTINATION) if not cluster.children[i].dead]
        for instance_id in alive:
            limit(cluster, instance_id, None)
        cluster.wait_quiet(*alive)
        assert not (errors := cluster.new_errors()), errors


def computed(cluster: FaultCluster, place: str, num_tokens: int = PROMPT) -> tuple[str, list[int]]:
    """A new prompt, and the tokens of the request that computed it at this instance."""
    name = next(_names)
    return name, finish(cluster.submit("f-0", name, place, num_tokens, OUTPUTS))


def finish(client: Client) -> list[int]:
    read = client.wait_over()
    assert (read.num_ends, read.errors) == (1, []), read
    return read.tokens


def copied(
    cluster: FaultCluster, prompt: str, source: str = SOURCE, limit_s: float = 60.0
) -> Client:
    """A request of the other instance, which copies its prefix before."""
    fetch = {"source": source, "num_tokens": PROMPT, "limit_s": limit_s}
    name = f"{next(_names)}-like-{prompt}"
    return cluster.submit("f-0", name, DESTINATION, PROMPT, OUTPUTS, prompt, fetch=fetch)


def outcome(client: Client) -> str:
    def told() -> list[dict[str, Any]]:
        return client.frontend.heard("event", kind="prefix_fetched", request_id=client.request_id)

    (event,) = wait_for(told, f"the end of the fetch of {client.request_id}")
    return f"{event['outcome']} {event['num_tokens'] // VLLM_BLOCK_TOKENS}"


def limit(cluster: FaultCluster, instance_id: str, bytes_per_s: float | None) -> None:
    cluster.children[instance_id].tell("limit", bytes_per_s=bytes_per_s)
    cluster.report(instance_id)  # commands are carried out in their order


def forget(cluster: FaultCluster, instance_id: str) -> None:
    """Its prefix cache is empty then, and its host cache has what was in it last."""
    cluster.wait_quiet(instance_id)
    child = cluster.children[instance_id]
    begun = child.num_said
    child.tell("forget")
    child.wait_heard("forgot", begun)


def standing_still(cluster: FaultCluster, prompt: str, limit_s: float = 60.0) -> Client:
    """A fetch of which some has arrived, and no more will."""
    limit(cluster, SOURCE, SLICE_BYTES / 0.5)
    client = copied(cluster, prompt, limit_s=limit_s)
    wait_for(lambda: cluster.report(DESTINATION)["arrived"], "a first slice")
    limit(cluster, SOURCE, STANDS_STILL)
    return client


def loading(cluster: FaultCluster, prompt: str, limit_s: float = 60.0) -> Client:
    """A load that has begun and is held."""
    forget(cluster, DESTINATION)
    child = cluster.children[DESTINATION]
    begun = child.num_said
    child.tell("hold_loads")
    client = copied(cluster, prompt, DESTINATION, limit_s)
    child.wait_heard("loading", begun)
    return client


def test_a_prefix_comes_over_a_slow_link(shared: Shared) -> None:
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        limit(cluster, SOURCE, NUM_BLOCKS * VLLM_BLOCK_BYTES / 0.5)
        client = copied(cluster, prompt)
        assert finish(client) == tokens
        assert outcome(client) == f"fetched {NUM_BLOCKS}"
        limit(cluster, SOURCE, None)
        forget(cluster, DESTINATION)
        client = copied(cluster, prompt, DESTINATION)
        assert finish(client) == tokens
        assert outcome(client) == f"fetched {NUM_BLOCKS}", (
            "what was fetched was kept in main memory"
        )


def test_a_link_that_is_too_slow_is_not_waited_for(shared: Shared) -> None:
    """The source need not go on sending: its blocks are free again, though it would take hours."""
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        client = standing_still(cluster, prompt, limit_s=4.0)
        assert finish(client) == tokens
        assert outcome(client) == "late 0"
        cluster.wait_quiet(SOURCE, DESTINATION)


def test_the_client_leaves_while_its_prefix_is_fetched(shared: Shared) -> None:
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        client = standing_still(cluster, prompt)
        client.frontend.tell("cancel", request_id=client.request_id)
        cluster.wait_quiet(SOURCE, DESTINATION)
        assert client.read().tokens == []
        limit(cluster, SOURCE, None)
        client = copied(cluster, prompt)
        assert finish(client) == tokens
        assert outcome(client) == f"fetched {NUM_BLOCKS}"


@pytest.mark.parametrize("ends", ["cancelled", "late", "goes on"])
def test_what_happens_while_a_prefix_is_loaded(shared: Shared, ends: str) -> None:
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, DESTINATION)
        client = loading(cluster, prompt, 0.5 if ends == "late" else 60.0)
        if ends == "cancelled":
            client.frontend.tell("cancel", request_id=client.request_id)
            cluster.wait_report(DESTINATION, "to forget the fetch", fetches=[], copies=True)
        elif ends == "late":
            cluster.wait_report(DESTINATION, "to give it up", fetches=["giving-up"])
        cluster.children[DESTINATION].tell("go_on")
        if ends == "cancelled":
            cluster.wait_quiet(DESTINATION)
            assert client.read().tokens == []
        else:
            assert finish(client) == tokens
        again = copied(cluster, prompt, DESTINATION)
        assert finish(again) == tokens


def test_a_source_that_has_dropped_a_prefix(shared: Shared) -> None:
    """First only its prefix cache has, then its host cache, too."""
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        forget(cluster, SOURCE)
        client = copied(cluster, prompt)
        assert finish(client) == tokens
        assert outcome(client) == f"fetched {NUM_BLOCKS}", "from its host cache"
        forget(cluster, DESTINATION)
        computed(cluster, SOURCE)
        forget(cluster, SOURCE)
        client = copied(cluster, prompt)
        assert finish(client) == tokens
        assert outcome(client) == "not-there 0"


def test_a_source_whose_memory_is_full_drops_nothing_that_it_sends(shared: Shared) -> None:
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        client = standing_still(cluster, prompt)
        for _ in range(3):
            computed(cluster, SOURCE, PROMPT // 2)
        limit(cluster, SOURCE, None)
        assert finish(client) == tokens
        assert outcome(client) == f"fetched {NUM_BLOCKS}"


def test_a_source_that_is_killed_while_it_sends(shared: Shared) -> None:
    with balanced(shared) as cluster:
        prompt, tokens = computed(cluster, SOURCE)
        client = standing_still(cluster, prompt)
        cluster.children[SOURCE].signal("SIGKILL")
        assert finish(client) == tokens
        assert outcome(client) == "failed 0"
