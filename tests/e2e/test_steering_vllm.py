"""What `test_steering` shows on emulated instances, on real engines with few blocks: here the texts
must equal those of runs in which nothing moved."""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.models import RequestStatus
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.moving import Read, Stream, control
from tests.e2e.steering import (
    Load,
    Story,
    done,
    ids_of,
    json_of,
    num_running,
    num_used_blocks,
    undrain,
)

NUM_BLOCKS = 64
"""Of 32 tokens of 4,096 bytes each."""
CONFIG = f"""
[cluster]
instances = 2

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
TARGET_BLOCKS = 4
NUM_STEPS = 60
_names = (f"steer-{number}-" for number in itertools.count())
Bodies = Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
def pair(base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    config = tmp_path_factory.mktemp("steering") / "c.toml"
    config.write_text(CONFIG)
    cluster = Cluster(base_env, name="pair", up_args=("--config", str(config)))
    cluster.start()
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.clean_up()


@pytest.fixture
def client(pair: Cluster) -> Iterator[ControlClient]:
    with control(pair) as client:
        yield client


class Timed(Stream):
    """Knows when each of its tokens came."""

    def __init__(self, cluster: Cluster, body: dict[str, Any]) -> None:
        self.times_s: list[float] = []
        super().__init__(cluster, "/v1/completions", body, next(_names))

    def _take(self, chunk: dict[str, Any]) -> None:
        super()._take(chunk)
        self.times_s.append(time.monotonic())

    def status(self, client: ControlClient) -> RequestStatus:
        return client.request(self.live(client)[0].id)

    def step_s(self) -> float:
        """The median of the next steps."""
        begin = len(self.times_s)
        self.wait_tokens(self.num_tokens + NUM_STEPS)
        times_s = self.times_s[begin:]
        assert len(times_s) >= NUM_STEPS // 2, "it ended too early"
        return statistics.median(b - a for a, b in itertools.pairwise(times_s))


def bodies(count: int, num_prompt: int, num_output: int) -> Bodies:
    """Greedy and seeded by turns, no two alike."""
    return [
        {
            "prompt": [300 + num_prompt + 10 * index] * num_prompt,
            "max_tokens": num_output,
            "ignore_eos": True,
            "temperature": index % 2,
            "seed": index,
        }
        for index in range(count)
    ]


def unmoved(cluster: Cluster, bodies: Bodies) -> list[list[Read]]:
    """As they are where nothing moves."""
    done(cluster, "set", "migration.enabled=false")
    found = [stream.result() for stream in [Timed(cluster, body) for body in bodies]]
    done(cluster, "set", "migration.enabled=true")
    return found


def begun(cluster: Cluster, bodies: Bodies) -> list[Timed]:
    """All of them running."""
    streams = [Timed(cluster, body) for body in bodies]
    for stream in streams:
        stream.wait_tokens(1)
    return streams


def test_an_overloaded_instance_is_relieved_before_it_evicts(
    pair: Cluster, client: ControlClient
) -> None:
    """Six requests on one instance want 81 of its 64 blocks in the end; the other one is empty."""
    wanted = bodies(6, 32, 400)
    expected = unmoved(pair, wanted)
    story = Story(client)
    done(pair, "drain", "i-1", "-y")
    busy = begun(pair, wanted)
    assert {stream.status(client).instance_id for stream in busy} == {"i-0"}
    undrain(client, "i-1")
    assert [stream.result() for stream in busy] == expected
    assert story.moves("balance", to="i-1")
    assert story.events("evicted", "failed") == []


def test_a_long_prompt_that_fits_nowhere_gets_in_because_others_are_moved(
    pair: Cluster, client: ControlClient
) -> None:
    """Two requests on each instance leave 34 of its 64 blocks free; the prompt needs 40."""
    others = bodies(4, 450, 200)
    (long,) = bodies(1, 1270, 8)
    expected = unmoved(pair, [*others, long])
    story = Story(client)
    streams = begun(pair, others)
    wait_for(
        lambda: [num_running(client, each) for each in ids_of(client)] == [2, 2], "two on each"
    )
    streams.append(Timed(pair, long))
    assert streams[-1].wait_tokens(1)
    assert not any(stream.ended for stream in streams[:-1]), "it waited until one had ended"
    assert [stream.result() for stream in streams] == expected
    moves = story.moves("queue head")
    assert moves, story.events("migrated", "not_moved")
    assert story.events("evicted", "failed") == []
    text = done(pair, "explain", str(moves[0].request_id)).stdout
    assert f"migrated from {moves[0].labels['from']} to {moves[0].instance_id} (queue head)" in text


def test_the_steps_of_an_urgent_request_become_faster(pair: Cluster, client: ControlClient) -> None:
    """Its neighbours leave: their load and its own, 4 blocks, are all that the level allows."""
    wanted = [*bodies(1, 40, 900), *bodies(6, 33, 200)]
    expected = unmoved(pair, wanted)
    story = Story(client)
    done(pair, "drain", "i-1", "-y")
    urgent, *neighbours = begun(pair, [wanted[0] | {"priority": -1}, *wanted[1:]])
    before_s = urgent.step_s()
    assert num_running(client, "i-0") == 7
    undrain(client, "i-1")
    wait_for(lambda: num_running(client, "i-0") == 1, "the neighbours to leave")
    assert urgent.status(client).instance_id == "i-0"
    assert story.moves("headroom", to="i-1")
    after_s = urgent.step_s()
    assert after_s < before_s, f"{1000 * before_s:.1f} ms, then {1000 * after_s:.1f} ms"
    assert [stream.result() for stream in (urgent, *neighbours)] == expected
    assert story.events("evicted", "failed") == []


def test_scaling_and_draining_under_load(pair: Cluster, client: ControlClient) -> None:
    """A third instance fills by moves, others are emptied by moves, and no text differs."""
    wanted = bodies(6, 34, 500)
    expected = unmoved(pair, wanted)
    story = Story(client)

    def ask(index: int) -> None:
        assert Timed(pair, wanted[index]).result() == expected[index]

    with Load(len(wanted), ask) as load:
        # Three requests are now below the threshold, two above: the third instance gets two.
        thresholds = ("migration.source_below_steps", "migration.destination_above_steps")
        done(pair, "set", *(f"{key}=600" for key in thresholds))
        (new,) = json_of(pair, "scale", "+1", "--wait")["added"]
        wait_for(lambda: story.moves("balance", to=new), f"{new} to be filled by moves")
        done(pair, "set", *(f"{key}=96" for key in thresholds))

        drained = done(pair, "drain", "i-0", "-y", "--deadline", "60", "-m", "maintenance")
        assert "i-0: safe to delete" in drained.stderr
        assert story.moves("drain")
        assert num_used_blocks(client, "i-0") == 0
        done(pair, "undrain", "i-0")
        wait_for(lambda: num_running(client, "i-0"), "i-0 to serve again")

        gone = json_of(pair, "scale", "-1", "-y", "--wait", "--deadline", "60")
        assert [drain["state"] for drain in gone["draining"]] == ["removed"]
        assert len(ids_of(client)) == 2
        assert load.check() >= len(wanted)
    assert story.events("failed") == []
