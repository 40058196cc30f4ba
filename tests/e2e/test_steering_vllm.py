"""What `test_steering` shows on emulated instances, on real engines with few blocks: here the texts
must equal those of runs in which nothing moved."""

from typing import Any

import pytest

from controller.api.client import ControlClient
from tests.e2e import steering
from tests.e2e.steering import Story, change, drain, undrain
from tools.client_stream import Stream
from tools.cluster import Cluster

NUM_BLOCKS = 64
"""Of 32 tokens of 4,096 bytes each."""
CONFIG = f"""
[cluster]
instances = 2

[scheduler]
policy = "llumnix"

[engine]
kv_cache_memory_bytes = {(NUM_BLOCKS + 1) * 32 * 4096}
max_model_len = 2000
enable_prefix_caching = false

[migration]
source_below_steps = 96
destination_above_steps = 96
"""

cluster = steering.own_cluster(CONFIG, "steering")
client = steering.steered


def begun(cluster: Cluster, when: str) -> list[Stream]:
    """Six requests, greedy and seeded alternately, no two alike, all of them running."""
    known: dict[str, Any] = {"max_tokens": 340, "ignore_eos": True}
    streams = []
    for index in range(6):
        body = {"prompt": [364 + 10 * index] * 64, "temperature": index % 2, "seed": index}
        streams.append(Stream(cluster, "/v1/completions", known | body, f"steer-{when}-{index}-"))
    assert all(stream.wait_tokens(1) for stream in streams)
    return streams


@pytest.mark.full
def test_an_overloaded_instance_is_relieved_before_it_evicts(
    cluster: Cluster, client: ControlClient
) -> None:
    """They want 78 of its 64 blocks in the end; the other one is empty."""
    change(client, {"migration.enabled": False})
    expected = [stream.result() for stream in begun(cluster, "unmoved")]
    change(client, {"migration.enabled": True})
    cluster.wait_quiet()
    story = Story(client)
    drain(client, "i-1")
    busy = begun(cluster, "moved")
    assert {stream.status(client).instance_id for stream in busy} == {"i-0"}
    undrain(client, "i-1")
    assert [stream.result() for stream in busy] == expected
    assert story.moves("balance", to="i-1")
    assert story.events("evicted", "failed") == []
