"""What dies, and what is promised about it (the cluster's own processes, killed for real)."""

import itertools
import json
import os
import signal
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

import psutil
import pytest

from tools.client_stream import Stream
from tools.cluster import Cluster, is_empty, wait_for

WORDS = "([a-z]{2,9} ){300,800}x"
NUM_STREAMS = 8
LONG = 3000
LONG_STREAM = 1200
"""About 10 s: on a busy machine all of them run at once for some of them."""

GREEDY: dict[str, Any] = {"temperature": 0}
KINDS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 5, "presence_penalty": 1.1, "frequency_penalty": 0.7},
    {"temperature": 1.0, "seed": 1, "structured_outputs": {"regex": WORDS}},
)


class Completion(Stream):
    """Not read by the OpenAI client: on a busy machine the event loop that read eight of them with
    it was up to 26 s late, and what was to be killed had done its work."""

    _numbers = itertools.count()

    def __init__(
        self, cluster: Cluster, index: int, max_tokens: int, kind: dict[str, Any] = GREEDY
    ) -> None:
        body = {
            "prompt": f"number {index} of",
            "max_tokens": max_tokens,
            "ignore_eos": "structured_outputs" not in kind,
        }
        name = f"faults-{next(Completion._numbers)}-"
        super().__init__(cluster, "/v1/completions", body | kind, name)

    def reason(self) -> str | None:
        """Why it ended. It ends without an error."""
        (read,) = self.result()
        return read.finish_reason


def killed_while_all_run(cluster: Cluster, role: str, num_streams: int) -> dict[str, Any] | None:
    """The first instance or frontend, killed at once: until their clients have seen tokens of all,
    the first may be over."""
    status = cluster.status()
    if sum(each["num_running_reqs"] for each in status["instances"]) < num_streams:
        return None
    victim: dict[str, Any] = status[role][0]
    os.kill(victim["pid"], signal.SIGKILL)
    return victim


def begin(
    cluster: Cluster,
    max_tokens: int,
    kinds: Sequence[dict[str, Any]] = (GREEDY,),
    num_streams: int = NUM_STREAMS,
) -> list[Completion]:
    return [
        Completion(cluster, index, max_tokens, kinds[index % len(kinds)])
        for index in range(num_streams)
    ]


def begin_and_kill(
    cluster: Cluster,
    role: str,
    max_tokens: int,
    kinds: Sequence[dict[str, Any]] = (GREEDY,),
    num_streams: int = NUM_STREAMS,
) -> tuple[list[Completion], dict[str, Any]]:
    """Begins streams, and kills the first instance or frontend while all of them run. On a busy
    machine one may be over before the last has begun: then other ones are begun."""
    while True:
        streams = begin(cluster, max_tokens, kinds, num_streams)
        victim = wait_for(
            lambda begun=streams: (  # type: ignore[misc]
                killed_while_all_run(cluster, role, num_streams) or any(x.ended for x in begun)
            ),
            "all to run, or one to end",
        )
        if isinstance(victim, dict):
            return streams, victim
        for each in streams:
            each.result()
        cluster.wait_quiet()


def test_killed_instance_s_streams_go_on_elsewhere_and_it_comes_back(cluster: Cluster) -> None:
    """Each stream is whole, and the one that it is when nothing dies."""
    undisturbed = [each.result() for each in begin(cluster, LONG_STREAM, KINDS)]
    cluster.wait_quiet()
    streams, victim = begin_and_kill(cluster, "instances", LONG_STREAM, KINDS)
    assert victim["num_running_reqs"] == NUM_STREAMS // 2, "the burst did not spread"
    wait_for(lambda: cluster.status()["state"] == "degraded", "its death", 5)
    after = cluster.instance(victim["id"])
    assert (after["state"], after["num_running_reqs"]) == ("restarting", None)

    # New requests go where there is an instance.
    assert Completion(cluster, 99, 10).reason() == "length"
    for index, (stream, alone) in enumerate(zip(streams, undisturbed, strict=True)):
        assert stream.result() == alone, KINDS[index % len(KINDS)]
    events = json.loads(cluster.run("events", "--kind", "replayed", "-o", "json").stdout)["events"]
    assert all(event["cause_id"].startswith(f"lost-{victim['id']}-") for event in events)
    assert len(events) == victim["num_running_reqs"]
    assert max(event["numbers"]["downtime_s"] for event in events) < 10.0

    cluster.wait_state("ready")
    again = cluster.instance(victim["id"])
    assert again["incarnation"] == victim["incarnation"] + 1
    assert again["num_restarts"] == victim["num_restarts"] + 1
    cluster.wait_quiet()


def test_killed_frontend_frees_its_requests_blocks(cluster: Cluster) -> None:
    cluster.wait_quiet()
    streams, _ = begin_and_kill(cluster, "frontends", LONG, num_streams=2)
    wait_for(lambda: all(each.ended for each in streams), "the ends of all streams")
    assert all(isinstance(each.error, OSError | HTTPException) for each in streams)
    free = "their blocks to be free, before they end by themselves"
    wait_for(lambda: all(map(is_empty, cluster.status()["instances"])), free, 15)
    cluster.wait_state("ready")
    assert Completion(cluster, 1, 10).reason() == "length"


@pytest.mark.full
def test_a_killed_rank_ends_its_idle_instance_which_comes_back(base_env: dict[str, str]) -> None:
    """Two ranks on the CPU, with a prefill cut in two: vLLM cannot turn a seed's generator back
    there, in whichever process."""
    engine = ("tensor_parallel_size=2", "max_num_batched_tokens=64", "max_num_seqs=8")
    options = [word for each in engine for word in ("--engine-arg", each)]
    cluster = Cluster(base_env, name="ranks", up_args=("-n", "1", *options))
    seeded = {"prompt": "two ranks of one engine " * 20, "temperature": 1.0, "seed": 7}
    with cluster.running():
        (tokens,) = Completion(cluster, 0, 20, seeded).result()
        (before,) = cluster.status()["instances"]
        ranks = psutil.Process(before["pid"]).children(recursive=True)
        (second,) = (each for each in ranks if each.name().startswith("VLLM::Worker_TP1"))
        second.kill()
        wait_for(lambda: cluster.status()["state"] == "degraded", "its death", 20)  # 4 to 5 s
        cluster.wait_state("ready")
        (after,) = cluster.status()["instances"]
        assert after["incarnation"] == before["incarnation"] + 1
        assert not any(each.is_running() for each in ranks)
        assert Completion(cluster, 0, 20, seeded).result() == [tokens]
