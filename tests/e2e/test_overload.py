"""More than the cluster takes, as OpenAI's clients see it: who is refused, with which status and
when to come again; the limits of API keys over two frontends; and that refusals take no memory.

On emulated instances, with late binding.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from openai import APIStatusError, AsyncOpenAI

from controller.api.client import ControlClient
from tests.e2e import steering
from tests.e2e.steering import change, done
from tools.cluster import Cluster, running_with

CONFIG = """
[cluster]
engine = "emulated"
instances = 2

[endpoint]
api_key_file = "{keys}"

[emulated]
speed = 1.0
num_blocks = 129

[scheduler]
policy = "llumnix+"

[holding]
max_held_reqs = 6
room_to_grow_tokens = 0
making_room = false

[migration]
enabled = false

[[priority]]
name = "normal"
rank = 0

[[priority]]
name = "high"
rank = 1
"""
KEYS = ("sk-first", "sk-second")
FULL = 1600
"""Such a prompt fills an instance: 100 of its 127 blocks."""
HELD = 480
"""30 blocks: they fit on neither."""
NUM_STEPS = 250
"""The full ones run for 10 s or so, in which all clients of a test come."""


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("overload")
    keys = folder / "keys"
    keys.write_text("\n".join(KEYS))
    keys.chmod(0o600)
    env = base_env | {"LLUMCTL_CLUSTER_FRONTENDS": "2"}
    with running_with(CONFIG.format(keys=keys), folder, env, "overload") as cluster:
        yield cluster


client = steering.steered


class Asked:
    """One streamed request of OpenAI's client, which does not try again by itself."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        num_prompt: int,
        num_output: int,
        key: str = KEYS[0],
        level: str = "normal",
    ) -> None:
        self.num_chunks, self.status, self.retry_after_s, self.message = 0, 0, 0, ""
        api = AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=key, max_retries=0)
        asked = {
            "prompt": [7] * num_prompt,
            "max_tokens": num_output,
            "extra_headers": {"X-Llumctl-Priority": level, "X-Request-Id": name},
        }
        self.task = asyncio.create_task(self._ask(api, asked))

    async def _ask(self, api: AsyncOpenAI, asked: dict[str, Any]) -> None:
        try:
            stream = await api.completions.create(
                model="embedded", stream=True, extra_body={"ignore_eos": True}, **asked
            )
            async for _ in stream:
                self.num_chunks += 1
            self.status = 200
        except APIStatusError as error:
            self.status, self.message = error.status_code, error.message
            self.retry_after_s = int(error.response.headers["retry-after"])
        finally:
            await api.close()


async def until_held(client: ControlClient, number: int) -> None:
    while (await asyncio.to_thread(client.status)).num_held_reqs != number:
        await asyncio.sleep(0.02)


async def fill(cluster: Cluster) -> list[Asked]:
    """Nothing more fits on either instance."""
    running = [Asked(cluster, f"full-{i}", FULL, NUM_STEPS, KEYS[1]) for i in range(2)]
    while not all(each.num_chunks for each in running):
        await asyncio.sleep(0.02)
    return running


async def test_the_newest_of_the_lowest_level_is_refused_first(
    cluster: Cluster, client: ControlClient
) -> None:
    async with asyncio.timeout(90):
        running = await fill(cluster)
        normal = []
        for number in range(6):
            normal.append(Asked(cluster, f"normal-{number}", HELD, 5, KEYS[number % 2]))
            await until_held(client, number + 1)
        refused = Asked(cluster, "one-too-many", HELD, 5)
        await refused.task
        assert refused.status == 429
        high = []
        for number in range(3):
            high.append(Asked(cluster, f"high-{number}", HELD, 5, KEYS[0], "high"))
            victim = normal[5 - number]
            await victim.task
            assert (victim.status, victim.num_chunks) == (429, 0), "the newest that is held"
            assert not any(each.task.done() for each in (*normal[: 5 - number], *high))
        for each in (refused, *normal[3:]):
            assert 1 <= each.retry_after_s <= 60
            assert "too many requests wait" in each.message
        served = (*running, *normal[:3], *high)
        await asyncio.gather(*(each.task for each in served))
        assert all(each.status == 200 and each.num_chunks for each in served)
    found = {(each.reason, each.level): each.num_refused for each in client.status().refused}
    assert found == {("overloaded", "normal"): 4}
    rejected = [each for each in client.events().events if each.kind == "rejected"]
    assert 1 <= len(rejected) <= 2, "they are summed up"


async def test_a_key_has_its_live_requests_over_all_frontends(
    cluster: Cluster, client: ControlClient
) -> None:
    change(client, {"limits.live_requests": 3})
    async with asyncio.timeout(60):
        crowd = [Asked(cluster, f"crowd-{i}", 32, 60) for i in range(12)]
        others = [Asked(cluster, f"other-{i}", 32, 60, KEYS[1]) for i in range(2)]
        await asyncio.gather(*(each.task for each in (*crowd, *others)))
    served = [each for each in crowd if each.status == 200]
    refused = [each for each in crowd if each.status == 429]
    assert len(served) + len(refused) == 12
    assert 1 <= len(served) <= 3
    assert {each.retry_after_s for each in refused} == {1}
    assert all("rate limit" in each.message for each in refused)
    assert {each.status for each in others} == {200}
    async with asyncio.timeout(30):  # until each frontend has heard of the ends at the others
        for number in itertools.count():
            again = [Asked(cluster, f"again-{number}-{i}", 32, 5) for i in range(3)]
            await asyncio.gather(*(each.task for each in again))
            if {each.status for each in again} == {200}:
                break


WARM_UP = 2_000
"""Behind these a frontend remembers as many requests that ended as it ever does."""
NUM_REFUSED = 10_000
MAX_GROWN_BYTES = 4 << 20


@pytest.mark.timeout(1200)
@pytest.mark.full
async def test_refused_requests_take_no_memory(cluster: Cluster, client: ControlClient) -> None:
    """Of the controller or a frontend."""
    body = {"model": "embedded", "prompt": [7] * 64, "max_tokens": 4, "stream": True}
    statuses: Counter[int] = Counter()

    async def crowd(number: int) -> None:
        async with httpx.AsyncClient(
            base_url=cluster.url,
            headers={"Authorization": f"Bearer {KEYS[0]}"},
            limits=httpx.Limits(max_connections=20),
            timeout=60,
        ) as http:
            for _ in range(number // 100):
                asked = (http.post("/v1/completions", json=body) for _ in range(100))
                statuses.update(answer.status_code for answer in await asyncio.gather(*asked))

    pids = [cluster.controller_pid, *(each.pid for each in client.status().frontends)]
    members = [psutil.Process(pid) for pid in pids]
    assert len(members) == 3
    change(client, {"limits.live_requests": 1, "limits.tokens_per_minute": 1})
    await crowd(WARM_UP)
    before = [process.memory_info().rss for process in members]
    await crowd(NUM_REFUSED)
    grown = [p.memory_info().rss - rss for p, rss in zip(members, before, strict=True)]
    assert statuses[429] >= NUM_REFUSED
    assert max(grown) < MAX_GROWN_BYTES, grown


async def test_down_serves_what_is_held_within_its_grace(cluster: Cluster) -> None:
    running = await fill(cluster)
    with cluster.control() as client:
        held = [Asked(cluster, f"held-{number}", HELD, 5) for number in range(2)]
        await until_held(client, 2)
    await asyncio.to_thread(done, cluster, "down", "--timeout", "100")
    await asyncio.gather(*(each.task for each in (*running, *held)))
    assert {each.status for each in (*running, *held)} == {200}
    assert not cluster.leftovers()
