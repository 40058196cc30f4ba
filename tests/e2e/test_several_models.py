"""Two models in one cluster under load: one is scaled, one loses an instance by an operator and one
by a kill, and one is overloaded. Every token is right, each request runs on its own model, and the
limits of one model do not touch the other."""

import os
import signal
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import stdio_client

from controller.api.client import ControlClient
from controller.api.wire.status import ModelStatus
from tests.e2e.emulated import Answer
from tests.e2e.steering import Load, Story, done, instance, own_cluster
from tests.e2e.test_mcp import Agent, server
from tools.client_stream import Stream
from tools.cluster import Cluster, running_with, wait_for

EMULATED = """
[cluster]
engine = "emulated"

[models.large]
model = "embedded"
instances = 2
emulated = { profile = "a10-llama-7b", speed = 2.0 }

[models.small]
model = "embedded"
instances = 2
emulated = { profile = "h100-llama-8b", num_blocks = 300 }
holding = { max_held_reqs = 4 }
"""
REAL = """
[models.large]
model = "embedded"
instances = 2

[models.small]
model = "embedded-small"
instances = 2
holding = { max_held_reqs = 4 }
"""
LIVE = "endpoint.max_live_requests"
cluster = own_cluster(EMULATED, "models")


@pytest.fixture
def client(cluster: Cluster) -> Iterator[ControlClient]:
    with cluster.control() as client:
        yield client


def model(client: ControlClient, name: str) -> ModelStatus:
    return next(each for each in client.status().models if each.name == name)


def models_of_dispatches(story: Story) -> set[tuple[str, str]]:
    """The model of each request, which is in its client's id, and where it went."""
    return {
        (name, event.instance_id)
        for event in story.events("dispatched", "migrated", "replayed")
        for name in ("large", "small")
        if event.request_id and event.instance_id and f"-{name}-" in event.request_id
    }


def changes_under_load(
    cluster: Cluster, client: ControlClient, ask: Callable[[str, int], None]
) -> None:
    """`ask`: makes one request of a model and checks its answer."""
    story = Story(client)
    of = {each.id: each.model for each in client.status().instances}
    assert list(of.values()) == ["large", "large", "small", "small"]
    with Load(8, lambda k: ask("large" if k % 2 else "small", k)) as load:
        wait_for(lambda: all(e.num_running_reqs for e in client.status().instances), "load on all")
        done(cluster, "scale", "small=3", "--wait")
        done(cluster, "drain", "i-0", "-y")
        pid = instance(client, "i-2").pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: instance(client, "i-2").pid not in (None, pid), "another process")
        wait_for(lambda: instance(client, "i-2").state == "active", "it serves again")
        done(cluster, "undrain", "i-0")
        assert load.check() > 8
    of = {each.id: each.model for each in client.status().instances}
    assert of["i-4"] == "small"
    assert (model(client, "large").num_serving, model(client, "small").num_serving) == (2, 3)
    ran = models_of_dispatches(story)
    assert {name for name, _ in ran} == {"large", "small"}
    assert [each for each in ran if of[each[1]] != each[0]] == []
    done(cluster, "scale", "small=2", "-y", "--wait")


def test_each_model_is_scaled_drained_and_killed_without_the_other(
    cluster: Cluster, client: ControlClient
) -> None:
    def ask(name: str, number: int) -> None:
        Answer(cluster, 64 + number, 200, model=name, name=f"-{name}-").check()

    changes_under_load(cluster, client, ask)


def test_the_limits_of_one_do_not_touch_the_other(cluster: Cluster, client: ControlClient) -> None:
    def statuses(name: str, count: int) -> list[int]:
        streams = [
            Stream(
                cluster,
                "/v1/completions",
                {"model": name, "prompt": [400 + k] * 2000, "max_tokens": 400},
                f"full-{name}-{k}-",
            )
            for k in range(count)
        ]
        for each in streams:
            each.join(60)
        return [each.http_status for each in streams]

    told = statuses("small", 24)
    assert HTTPStatus.TOO_MANY_REQUESTS in told, "no more than four wait at the controller"
    assert set(statuses("large", 12)) == {HTTPStatus.OK}
    with cluster.control() as found:
        refused = found.status()
    assert sum(each.num_refused for each in refused.refused) == told.count(429)
    assert model(client, "large").num_held_reqs == 0


def ask_large(cluster: Cluster, number: int, headers: dict[str, str] | None = None) -> str:
    """Asks `large` for an answer, and returns the name of the model that gave it."""
    body = {"model": "large", "prompt": [500 + number] * 50, "max_tokens": 20, "ignore_eos": True}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == HTTPStatus.OK, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 20
    return str(answer.json()["model"])


def test_a_share_of_the_requests_goes_to_the_other_model(
    cluster: Cluster, client: ControlClient
) -> None:
    story = Story(client)
    done(cluster, "set", "traffic.split=large=50, small=50", "--model", "large")
    wait_for(lambda: ask_large(cluster, 0) == "small", "the rule is in force")
    found = [ask_large(cluster, k) for k in range(30)]
    assert set(found) == {"large", "small"}
    assert len({ask_large(cluster, k, {"X-Session-Id": "one"}) for k in range(6)}) == 1

    def counted() -> dict[str, int]:
        return {each.model: each.num_reqs for each in model(client, "large").split}

    wait_for(lambda: all(counted()[each] >= found.count(each) for each in found), "the counts")
    assert "split  large: large 50" in done(cluster, "status").stdout
    done(cluster, "set", "traffic.split=small=1", "--model", "large")
    wait_for(lambda: sum(counted().values()) == 0, "a new rule is counted anew")
    assert {ask_large(cluster, k) for k in range(4)} == {"small"}
    wait_for(lambda: counted() == {"small": 4}, "the counts")
    done(cluster, "undo", "-y")
    assert set(counted()) == {"large", "small"}
    done(cluster, "set", "traffic.split=none", "--model", "large")
    wait_for(lambda: {ask_large(cluster, k) for k in range(20)} == {"large"}, "no rule")
    of = {each.id: each.model for each in client.status().instances}
    ran = [of[e.instance_id] for e in story.events("dispatched") if e.instance_id]
    assert set(ran) == {"large", "small"}


def test_copies_go_to_the_other_model_and_are_compared(
    cluster: Cluster, client: ControlClient
) -> None:
    done(cluster, "set", "traffic.mirror=small=100", "--model", "large")
    asked = [ask_large(cluster, k) for k in range(10)]
    assert set(asked) == {"large"}

    def is_compared() -> bool:
        (found,) = model(client, "large").mirrors
        return found.num_compared == found.num_copies >= 9  # one may have come before the rule

    wait_for(is_compared, "the copies are compared")
    (found,) = model(client, "large").mirrors
    assert (found.num_failed, found.tokens, found.copy_tokens) == (0, 20, 20)
    assert found.ttft_s
    assert found.copy_ttft_s
    levels = {each.level for each in client.requests().requests if "-copy" in each.client_id}
    assert levels == {"background"}
    done(cluster, "set", "traffic.mirror=none", "--model", "large")
    wait_for(lambda: not model(client, "large").mirrors, "no rule")


def test_the_endpoint_lists_them_and_names_them_to_whoever_asks_for_another(
    cluster: Cluster, client: ControlClient
) -> None:
    with httpx.Client(base_url=cluster.url) as http:
        listed = http.get("/v1/models").json()["data"]
        assert [each["id"] for each in listed] == ["large", "small"]
        assert http.get("/v1/models/small").json()["id"] == "small"
        for name in ("large", "small"):
            Answer(cluster, 32, 5, model=name, name=f"named-{name}-").check()
        found = [
            each for each in client.requests(limit=1000).requests if "named-" in each.client_id
        ]
        assert {each.model for each in found} == {"large", "small"}
        assert all(f"named-{each.model}-" in each.client_id for each in found)
        for body in ({"model": "other"}, {}, {"model": None}):
            told = http.post("/v1/completions", json={"prompt": "a"} | body)
            assert told.status_code == HTTPStatus.NOT_FOUND
            assert "large, small" in told.json()["error"]["message"]
        series = http.get("/metrics").text
        for name in ("large", "small"):
            assert f'model_name="{name}"' in series
            assert f'llumctl_requests_ended_total{{level="normal",model="{name}"' in series
    page = done(cluster, "scale", "3", "-y", code=2).stderr
    assert "large, small" in page
    assert done(cluster, "status", "--model", "small", "-o", "name").stdout.split() == [
        e.id for e in client.status().instances if e.model == "small"
    ]
    done(cluster, "scale", "small=3", "-y")
    done(cluster, "undo", "-y")
    wait_for(
        lambda: [each.model for each in client.status().instances].count("small") == 2,
        "the end of the third instance",
    )


async def test_an_agent_names_the_model_of_its_order(cluster: Cluster) -> None:
    async with (
        stdio_client(server(cluster, "--orders")) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        agent = Agent(session)
        nowhere = await agent.call("plan_set", changes={"migration.max_moves": 2}, reason="a test")
        assert nowhere["try"].endswith("model = large")
        wanted = {"changes": {"migration.max_moves": 2}, "model": "small", "reason": "a test"}
        plan = await agent.call("plan_set", **wanted)
        await agent.call("confirm", token=plan["token"])

        async def max_moves(name: str) -> object:
            listed = (await agent.call("settings", model=name))["settings"]
            return next(each["value"] for each in listed if each["key"] == "migration.max_moves")

        assert (await max_moves("large"), await max_moves("small")) == (4, 2)
        back = await agent.call("plan_undo", reason="enough")
        assert back["order"].startswith("small: ")
        await agent.call("confirm", token=back["token"])
        assert await max_moves("small") == 4
        # All models have one value of a setting of their frontends.
        plan = await agent.call("plan_set", changes={LIVE: 99}, reason="a test")
        await agent.call("confirm", token=plan["token"])
        killed = cluster.controller_pid
        os.kill(killed, signal.SIGKILL)
        cluster.wait_state("ready")
        assert cluster.controller_pid != killed
        for name in ("large", "small"):
            listed = (await agent.call("settings", model=name))["settings"]
            assert next(each["value"] for each in listed if each["key"] == LIVE) == 99


@pytest.mark.full
def test_two_embedded_models_say_what_each_says_alone(
    base_env: dict[str, str], tmp_path: Path
) -> None:
    with running_with(REAL, tmp_path, base_env, "two") as two, two.control() as client:

        def answer(name: str, number: int) -> list[int]:
            body = {
                "model": name,
                "prompt": f"Story {number} of the old house:",
                "max_tokens": 150,
                "temperature": 0,
                "ignore_eos": True,
            }
            stream = Stream(two, "/v1/completions", body, f"of-{name}-{number}-")
            (read,) = stream.result()
            return read.token_ids

        alone = {(name, k): answer(name, k) for name in ("large", "small") for k in range(8)}
        assert alone["large", 1] != alone["small", 1]

        def ask(name: str, number: int) -> None:
            assert answer(name, number) == alone[name, number]

        changes_under_load(two, client, ask)
