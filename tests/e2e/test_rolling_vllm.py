"""All real engines are restarted, one after the other, with other arguments, with some with which
they cannot start, and in another Python environment with another vLLM, under 16 streams of four
kinds: not a token of one is another than in a run in which nothing moved."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from controller.api.client import ControlClient
from tests.e2e import steering
from tests.e2e.steering import Load, Story, change
from tools.client_stream import Read, Stream
from tools.cluster import Cluster
from tools.python_environment import other_environment

CONFIG = """
[cluster]
instances = 3

[engine]
max_model_len = 2000
enable_prefix_caching = false
"""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0},
    "penalised": {"temperature": 1.0, "frequency_penalty": 1.5, "presence_penalty": 1.0},
    "guided": {"temperature": 1.0, "structured_outputs": {"regex": r"([a-z]{3,9} ){40,400}"}},
}
NUM_STREAMS = 16
_names = map("rolling-{}-".format, itertools.count())  # threads may share it, unlike a generator


cluster = steering.own_cluster(CONFIG, "rolling")
client = steering.controlled
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),  # 3 starts of a real engine, one after the other, under load
]


def stream(cluster: Cluster, index: int) -> Stream:
    """Four of each kind, no two alike."""
    kind = list(KINDS)[index % len(KINDS)]
    body = {
        "prompt": [300 + 10 * index] * (40 + index),
        "max_tokens": 300 + 10 * index,
        "seed": index,
        "ignore_eos": kind != "guided",
        **KINDS[kind],
    }
    return Stream(cluster, "/v1/completions", body, next(_names))


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> list[list[Read]]:
    """Of each kind of stream, in a run in which nothing moves."""
    with cluster.control() as client:
        change(client, {"migration.enabled": False})
        streams = [stream(cluster, index) for index in range(NUM_STREAMS)]
        found = [each.result() for each in streams]
        change(client, {"migration.enabled": True})
    return found


@contextmanager
def undisturbed(cluster: Cluster, expected: list[list[Read]]) -> Iterator[None]:
    """Under 16 streams, of which not one is altered or fails."""

    def ask(index: int) -> None:
        found = stream(cluster, index).result()
        assert found == expected[index], list(KINDS)[index % len(KINDS)]

    with Load(NUM_STREAMS, ask) as load:
        yield
        assert load.check() >= NUM_STREAMS


def test_all_start_with_other_arguments_and_no_token_differs(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]]
) -> None:
    story = Story(client)
    arguments = ("--engine-arg", "max_num_seqs=24", "--engine-arg", "max_num_batched_tokens=1024")
    with undisturbed(cluster, expected):
        told = cluster.run("restart", "--rolling", "-y", *arguments, timeout_s=700.0)
        assert told.returncode == 0, told.stderr
    instances = client.status().instances
    assert {(each.max_running_reqs, each.generation) for each in instances} == {(24, 1)}
    assert len(story.moves("drain")) >= 3, "they left by moves"
    assert story.events("failed", "rolling_failed") == []
    assert len(story.events("rolling_stepped")) == 3


def test_one_that_cannot_start_with_them_gets_its_old_ones_and_no_token_differs(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]]
) -> None:
    story, before = Story(client), client.status().instances
    with undisturbed(cluster, expected):
        arguments = ("--engine-arg", "num_gpu_blocks_override=2")
        told = cluster.run("restart", "--rolling", "-y", *arguments, timeout_s=700.0)
        assert told.returncode == 1, told.stderr
        assert "it starts again with the arguments that it had" in told.stderr
        cluster.wait_state("ready")
    (failed,) = story.events("rolling_failed")
    after = {each.id: each for each in client.status().instances}
    for each in before:
        found = after[each.id]
        assert (found.generation, found.max_running_reqs) == (each.generation, 24)
        assert (found.pid == each.pid) == (each.id != failed.instance_id)
    assert story.events("failed") == []


def test_an_upgrade_of_vllm_replays_what_cannot_move_and_cuts_no_stream_of_an_openai_client(
    cluster: Cluster, client: ControlClient, expected: list[list[Read]], tmp_path: Path
) -> None:
    """Requests do not move between two versions of vLLM. In float32 the recomputed tokens are the
    same."""
    story = Story(client)
    python = str(other_environment(tmp_path, "+next", with_vllm=True))

    def ask(index: int) -> None:
        kind = list(KINDS)[index % len(KINDS)]
        with openai.OpenAI(**cluster.openai_options) as endpoint:
            chunks = endpoint.completions.create(
                model="embedded",
                prompt=[300 + 10 * index] * (40 + index),
                max_tokens=300 + 10 * index,
                seed=index,
                stream=True,
                extra_body={"ignore_eos": kind != "guided", **KINDS[kind]},
            )
            choices = [choice for chunk in chunks for choice in chunk.choices]
        (read,) = expected[index]
        assert "".join(each.text for each in choices) == read.text, kind
        assert choices[-1].finish_reason == read.finish_reason, kind

    with Load(NUM_STREAMS, ask) as load:
        told = cluster.run("restart", "--rolling", "-y", "--python", str(tmp_path), timeout_s=700.0)
        assert told.returncode == 0, told.stderr
        assert load.check() >= NUM_STREAMS
    for each in client.status().instances:
        assert each.fingerprint.endswith("+next"), each.fingerprint
        assert psutil.Process(each.pid).exe() == str(Path(python).resolve())
    assert story.events("failed", "rolling_failed") == []
    assert story.moves("drain"), "the first ones left by moves"
    (last,) = {each.labels["from"] for each in story.events("replayed")}
    assert last == client.status().instances[-1].id
    pauses_s = sorted(each.numbers["downtime_s"] for each in story.events("replayed"))
    sys.stdout.write(f"{len(pauses_s)} replays, pauses: {pauses_s}\n")
