"""What dies, and what is promised about it (the cluster's own processes, killed for real)."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai
import psutil

from tests.e2e.cluster import Cluster, is_empty, wait_for

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
    {"temperature": 1.0, "seed": 1, "extra_body": {"structured_outputs": {"regex": WORDS}}},
)


@dataclass
class Reader:
    """One streaming client: what it has read, and how its stream ended."""

    num_chunks: int = 0
    errors: int = 0
    error: str = ""
    finish_reason: str | None = None
    text: str = ""

    async def read(
        self,
        client: openai.AsyncOpenAI,
        index: int,
        max_tokens: int,
        kind: dict[str, Any] = GREEDY,
    ) -> None:
        extra = {"ignore_eos": "structured_outputs" not in kind.get("extra_body", {})}
        try:
            chunks = await client.completions.create(
                model="embedded",
                prompt=f"number {index} of",
                max_tokens=max_tokens,
                stream=True,
                **kind | {"extra_body": extra | kind.get("extra_body", {})},
            )
            async for chunk in chunks:
                self.num_chunks += 1
                self.text += chunk.choices[0].text
                self.finish_reason = chunk.choices[0].finish_reason or self.finish_reason
        except openai.APIError as error:
            self.errors += 1
            self.error = str(error)


def num_running(instances: list[dict[str, Any]]) -> int:
    return sum(each["num_running_reqs"] for each in instances)


def killed_while_all_run(cluster: Cluster) -> dict[str, Any] | None:
    """The first instance, killed at once: a busy event loop would be seconds late."""
    instances = cluster.status()["instances"]
    if num_running(instances) < NUM_STREAMS:
        return None
    victim: dict[str, Any] = instances[0]
    os.kill(victim["pid"], signal.SIGKILL)
    return victim


async def until(condition: Any, what: str, timeout_s: float = 60.0) -> Any:
    return await asyncio.to_thread(wait_for, condition, what, timeout_s)


Readers = tuple[list[Reader], list[asyncio.Task[None]]]


def begin_readers(
    client: openai.AsyncOpenAI, max_tokens: int, kinds: Sequence[dict[str, Any]] = (GREEDY,)
) -> Readers:
    readers = [Reader() for _ in range(NUM_STREAMS)]
    tasks = [
        asyncio.create_task(reader.read(client, index, max_tokens, kinds[index % len(kinds)]))
        for index, reader in enumerate(readers)
    ]
    return readers, tasks


async def start_readers(
    client: openai.AsyncOpenAI,
    max_tokens: int,
    kinds: Sequence[dict[str, Any]] = (GREEDY,),
    kill: int | None = None,
) -> Readers:
    """`kill`: a process that is killed once all streams flow; by a thread, as the event loop that
    reads them was up to 26 s late on a busy machine."""
    readers, tasks = begin_readers(client, max_tokens, kinds)

    def all_flow() -> bool:
        flow = all(r.num_chunks > 3 or r.errors for r in readers)
        if flow and kill is not None:
            os.kill(kill, signal.SIGKILL)
        return flow

    await until(all_flow, "all streams to flow")
    assert kill is not None or [r.error for r in readers if r.errors] == []
    return readers, tasks


async def test_killed_instance_s_streams_go_on_elsewhere_and_it_comes_back(
    cluster: Cluster, async_client: openai.AsyncOpenAI
) -> None:
    """Each stream is whole, and the one that it is when nothing dies."""
    undisturbed, tasks = await start_readers(async_client, LONG_STREAM, KINDS)
    await asyncio.gather(*tasks)
    await asyncio.to_thread(cluster.wait_quiet)
    readers, tasks = begin_readers(async_client, LONG_STREAM, KINDS)
    victim = await until(lambda: killed_while_all_run(cluster), "all to run")
    assert victim["num_running_reqs"] == NUM_STREAMS // 2, "the burst did not spread"
    degraded = await until(
        lambda: (s := cluster.status())["state"] == "degraded" and s, "its death", 5
    )
    after = next(i for i in degraded["instances"] if i["id"] == victim["id"])
    assert after["state"] == "restarting"
    assert after["freeness_steps"] is None
    assert after["num_running_reqs"] is None

    # New requests go where there is an instance.
    late = Reader()
    await late.read(async_client, 99, 10)
    assert (late.error, late.finish_reason) == ("", "length")
    await asyncio.gather(*tasks)
    for index, (reader, alone) in enumerate(zip(readers, undisturbed, strict=True)):
        assert (reader.errors, reader.error) == (0, "")
        assert reader.finish_reason == alone.finish_reason
        assert reader.text == alone.text, KINDS[index % len(KINDS)]
    events = json.loads(cluster.run("events", "--kind", "replayed", "-o", "json").stdout)
    replayed = [e for e in events["events"] if e["cause_id"].startswith(f"lost-{victim['id']}-")]
    assert len(replayed) == victim["num_running_reqs"]
    pauses = sorted(event["numbers"]["downtime_s"] for event in replayed)
    assert pauses[-1] < 10.0

    back = await until(
        lambda: (s := cluster.status())["state"] == "ready" and s, "the restart", 120
    )
    again = next(i for i in back["instances"] if i["id"] == victim["id"])
    assert again["incarnation"] == victim["incarnation"] + 1
    assert again["num_restarts"] == victim["num_restarts"] + 1
    assert again["pid"] != victim["pid"]
    await asyncio.to_thread(cluster.wait_quiet)


async def test_dead_controller_fails_no_request_and_comes_back(
    cluster: Cluster, async_client: openai.AsyncOpenAI
) -> None:
    ours = ("migration.max_moves=3", "scheduler.policy=vllm-dp")
    revision = json.loads(cluster.run("set", *ours, "-o", "json").stdout)["revision"]
    listening = [c for c in psutil.net_connections("tcp") if c.laddr.port == cluster.control_port]
    pid = next(c.pid for c in listening if c.status == "LISTEN")
    assert pid is not None
    readers, tasks = await start_readers(async_client, 600, kill=pid)

    # Scheduler-bypass: the frontend dispatches by itself meanwhile.
    late = Reader()
    await late.read(async_client, 99, 10)
    assert (late.error, late.finish_reason) == ("", "length")
    await asyncio.gather(*tasks)
    assert all((r.errors, r.finish_reason) == (0, "length") for r in readers)

    # The new one learns from its members what runs: same incarnations, nothing restarted.
    back = await until(
        lambda: (
            (d := cluster.run("status", "-o", "json")).returncode == 0
            and '"state": "ready"' in d.stdout
        ),
        "the controller",
    )
    assert back
    assert all(i["state"] == "active" for i in cluster.status()["instances"])
    assert cluster.status()["policy"] == "vllm-dp"
    theirs = ("migration.max_moves=4", "scheduler.policy=llumnix")
    changed = cluster.run("set", *theirs, "--if-revision", str(revision), "-o", "json")
    assert '"previous": 3' in changed.stdout, changed.stderr
    await asyncio.to_thread(cluster.wait_quiet)


async def test_frozen_instance_is_not_chosen_and_comes_back(
    cluster: Cluster, async_client: openai.AsyncOpenAI
) -> None:
    frozen, _ = cluster.status()["instances"]
    os.kill(frozen["pid"], signal.SIGSTOP)
    try:
        await until(
            lambda: cluster.instance(frozen["id"])["state"] == "stalled", "the stall to show"
        )
        readers = [Reader() for _ in range(4)]
        await asyncio.gather(*(r.read(async_client, i, 10) for i, r in enumerate(readers)))
        assert all(r.finish_reason == "length" for r in readers)
    finally:
        os.kill(frozen["pid"], signal.SIGCONT)
    back = await until(
        lambda: (i := cluster.instance(frozen["id"]))["state"] == "active" and i, "the thaw"
    )
    assert back["incarnation"] == frozen["incarnation"]


async def test_killed_frontend_frees_its_requests_blocks(
    cluster: Cluster, async_client: openai.AsyncOpenAI
) -> None:
    pid = cluster.status()["frontends"][0]["pid"]
    readers, tasks = await start_readers(async_client, LONG, kill=pid)
    await asyncio.gather(*tasks)
    assert all((r.errors, r.finish_reason) == (1, None) for r in readers)
    # At 3 ms a token at best they would go on for longer than the wait below.
    assert max(r.num_chunks for r in readers) < LONG // 2, "they may have ended by themselves"
    await until(
        lambda: all(map(is_empty, cluster.status()["instances"])), "their blocks to be free", 5
    )
    await until(lambda: cluster.status()["state"] == "ready", "the frontend's restart", 120)
    again = Reader()
    await again.read(async_client, 1, 10)
    assert again.finish_reason == "length"
