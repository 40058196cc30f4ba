"""What `test_steering` shows on emulated instances, on real engines with few blocks: here the texts
must equal those of runs in which nothing moved."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from controller.api.client import ControlClient
from tests.e2e.steering import (
    Load,
    Story,
    change,
    done,
    drain,
    ids_of,
    json_of,
    left_as_found,
    num_running,
    num_used_blocks,
    undrain,
)
from tools.client_stream import Read, Stream
from tools.cluster import Cluster, wait_for

pytestmark = pytest.mark.full

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

[[priority]]
name = "normal"
rank = 0

[[priority]]
name = "high"
rank = 1
target_load_tokens = 128
"""
_names = map("steer-{}-".format, itertools.count())  # threads may share it, unlike a generator
Bodies = Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
def pair(base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = tmp_path_factory.mktemp("steering") / "c.toml"
    config.write_text(CONFIG)
    cluster = Cluster(base_env, name="pair", up_args=("--config", str(config)))
    with cluster.running():
        yield cluster


@pytest.fixture(autouse=True)
def client(pair: Cluster) -> Iterator[ControlClient]:
    with pair.control() as client, left_as_found(client):
        yield client


class Completion(Stream):
    def __init__(self, cluster: Cluster, body: dict[str, Any]) -> None:
        super().__init__(cluster, "/v1/completions", body, next(_names))


def bodies(count: int, num_prompt: int, num_output: int, num_more: int = 0) -> Bodies:
    """Greedy and seeded by turns, no two alike, each with so many tokens more than the one before
    it."""
    return [
        {
            "prompt": [300 + num_prompt + 10 * index] * num_prompt,
            "max_tokens": num_output + num_more * index,
            "ignore_eos": True,
            "temperature": index % 2,
            "seed": index,
        }
        for index in range(count)
    ]


def unmoved(cluster: Cluster, client: ControlClient, bodies: Bodies) -> list[list[Read]]:
    """As they are where nothing moves. The controller knows that they ended before others come:
    until then it dispatches away from the instance where the longest was."""
    change(client, {"migration.enabled": False})
    found = [stream.result() for stream in [Completion(cluster, body) for body in bodies]]
    change(client, {"migration.enabled": True})
    cluster.wait_quiet()
    return found


def begun(cluster: Cluster, bodies: Bodies) -> list[Completion]:
    """All of them running."""
    streams = [Completion(cluster, body) for body in bodies]
    assert all(stream.wait_tokens(1) for stream in streams)
    return streams


def test_an_overloaded_instance_is_relieved_before_it_evicts(
    pair: Cluster, client: ControlClient
) -> None:
    """Six requests on one instance want 78 of its 64 blocks in the end; the other one is empty."""
    wanted = bodies(6, 64, 340)
    expected = unmoved(pair, client, wanted)
    story = Story(client)
    drain(client, "i-1")
    busy = begun(pair, wanted)
    assert {stream.status(client).instance_id for stream in busy} == {"i-0"}
    undrain(client, "i-1")
    assert [stream.result() for stream in busy] == expected
    assert story.moves("balance", to="i-1")
    assert story.events("evicted", "failed") == []


def test_a_long_prompt_that_fits_nowhere_gets_in_because_others_are_moved(
    pair: Cluster, client: ControlClient
) -> None:
    """One request on each instance leaves 55 of its 64 blocks free, at most; the prompt needs 57,
    and gets in before the others have their 720 tokens, for which one instance has room too. With
    360, clients on a busy machine were too late: they had read the 97th when it was to be sent."""
    others = bodies(2, 260, 720)
    (long,) = bodies(1, 1800, 8)
    expected = unmoved(pair, client, [*others, long])
    story = Story(client)
    streams = begun(pair, others)
    streams.append(Completion(pair, long))
    assert streams[-1].wait_tokens(1)
    assert not any(stream.ended for stream in streams[:-1]), "it waited until one had ended"
    assert [stream.result() for stream in streams] == expected
    one, other, _ = story.events("dispatched")
    assert {one.instance_id, other.instance_id} == {*ids_of(client)}, "one on each"
    moves = story.moves("queue head")
    assert moves, story.events("migrated", "not_moved")
    assert story.events("evicted", "failed") == []
    text = done(pair, "requests", str(moves[0].request_id)).stdout
    assert f"migrated from {moves[0].labels['from']} to {moves[0].instance_id} (queue head)" in text


def test_an_urgent_request_gets_its_instance_to_itself(
    pair: Cluster, client: ControlClient
) -> None:
    """Its neighbours leave: their load and its own, 4 blocks, are all that the level allows. That
    its steps become shorter is shown on emulated engines (`test_steering`), by their own clock:
    here they share a small machine's processor with the engine that the neighbours went to."""
    wanted = [*bodies(1, 40, 900), *bodies(4, 33, 350)]
    expected = unmoved(pair, client, wanted)
    story = Story(client)
    drain(client, "i-1")
    # On a busy machine some are over before all have begun.
    (urgent,) = begun(pair, [wanted[0] | {"priority": -1}])
    neighbours = [Completion(pair, body) for body in wanted[1:]]
    wait_for(lambda: num_running(client, "i-0") >= 3, "neighbours to run beside it")
    undrain(client, "i-1")
    wait_for(lambda: num_running(client, "i-0") == 1, "the neighbours to leave")
    assert urgent.status(client).instance_id == "i-0"
    assert story.moves("headroom", to="i-1"), "they were moved, and did not merely end"
    assert [stream.result() for stream in (urgent, *neighbours)] == expected
    assert story.events("evicted", "failed") == []


def test_scaling_and_draining_under_load(pair: Cluster, client: ControlClient) -> None:
    """A third instance gets work at once, others are emptied by moves, and no text differs."""
    wanted = bodies(6, 34, 180, 15)
    (long,) = bodies(1, 35, 1400)
    *expected, expected_of_long = unmoved(pair, client, [*wanted, long])
    story = Story(client)

    def ask(index: int) -> None:
        assert Completion(pair, wanted[index]).result() == expected[index]

    with Load(len(wanted), ask) as load:
        # By new requests or by moves, whichever is first. That moves fill an empty instance, the
        # test of an overloaded one shows, in which no new requests come.
        (new,) = json_of(pair, "scale", "+1", "--wait")["added"]
        wait_for(lambda: num_running(client, new), f"{new} to have work")

        # The short ones may all end before the drain moves them; the long one does not.
        (moving,) = begun(pair, [long])
        moved = moving.status(client)
        place = moved.instance_id
        assert place is not None
        drain(client, place)  # a process of its own may begin too late: 10 s on a busy machine
        done(pair, "status", f"--wait=drained={place}", "--timeout", "60")
        assert moved.id in {event.request_id for event in story.moves("drain")}
        wait_for(lambda: num_used_blocks(client, place) == 0, "its blocks to be free")
        done(pair, "uncordon", place)
        wait_for(lambda: num_running(client, place), f"{place} to serve again")

        gone = json_of(pair, "scale", "-1", "-y", "--wait", "--deadline", "60")
        assert [drain["state"] for drain in gone["draining"]] == ["removed"]
        assert len(ids_of(client)) == 2
        assert load.check() >= len(wanted)
        assert moving.result() == expected_of_long
    assert story.events("failed") == []
