"""A model that runs on two attached servers only, beside one with an instance of the cluster's own:
bodies and streams pass through, a server is drained, one dies before its answer begins and one in
the middle of it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any

import httpx

from controller.api.client import ControlClient
from controller.api.errors import EXIT_REFUSED
from tests.e2e import steering
from tests.e2e.steering import done, instance, num_running
from tests.e2e.test_attached import free_port, listens
from tools.cluster import Cluster, wait_for

CONFIG = """
[cluster]
engine = "emulated"

[models.hosted]
model = "embedded"

[models.words]
instances = 0
"""
PATH = "/v1/chat/completions"
OPTIONS = ("--model", "words", "--capacity", "100000", "--other-model")

cluster = steering.own_cluster(CONFIG, "forwarding")
client = steering.controlled


@contextmanager
def server(name: str, port: int, first_s: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "FAKE_STEP_S": "0.02", "FAKE_FIRST_S": str(first_s)}
    command = [sys.executable, "-m", "tools.fake_chat_server", name, str(port)]
    process = subprocess.Popen(command, env=env)
    try:
        wait_for(lambda: listens(port), f"server {name}")
        yield process
    finally:
        process.kill()
        process.wait()


class Answer(threading.Thread):
    """A request that is streamed, and what has come of its answer: the words, or the error."""

    def __init__(self, cluster: Cluster, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._url, self._body = f"{cluster.url}{PATH}", body(max_tokens, stream=True)
        self.status = 0
        self.words: list[str] = []
        self.error: dict[str, Any] = {}
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
            self.status = answer.status_code
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                self.error = event.get("error", {})
                self.words += [each["delta"]["content"] for each in event.get("choices", ())]

    def all_words(self) -> list[str]:
        self.join(60)
        assert not self.is_alive()
        return self.words


def body(max_tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "count"}]
    return {"model": "words", "messages": messages, "max_tokens": max_tokens, **more}


def counted(by: str, num_words: int) -> list[str]:
    return [f"{by}-{number} " for number in range(num_words)]


def is_from_one(words: list[str]) -> bool:
    return words == counted(words[0][0], len(words))


def test_a_model_on_attached_servers_only(cluster: Cluster, client: ControlClient) -> None:
    ports = {"a": free_port(), "b": free_port()}
    with ExitStack() as stack:
        a, b = (stack.enter_context(server(name, port)) for name, port in ports.items())
        urls = [f"http://127.0.0.1:{port}" for port in ports.values()]
        done(cluster, "attach", *urls, *OPTIONS)
        ids = {each.attached.url: each.id for each in client.status().instances if each.attached}
        on_a, on_b = (ids[url] for url in urls)
        passes_through(cluster)
        drains(cluster, client, on_a, on_b)
        dies_in_an_answer(cluster, client, on_a, a)
        refused = done(cluster, "scale", "words=2", code=EXIT_REFUSED)
        assert "attached servers only" in refused.stderr
        # The next server at this address takes long until its first word.
        with server("a", ports["a"], first_s=60) as slow:
            wait_for(lambda: instance(client, on_a).state == "active", "the server's return")
            dies_before_an_answer(cluster, client, on_a, on_b, slow)
        assert b.poll() is None


def passes_through(cluster: Cluster) -> None:
    streamed = Answer(cluster, 5)
    assert len(streamed.all_words()) == 5
    assert is_from_one(streamed.words)
    asked = body(3, unknown=[1, {"kept": None}], priority=-1)
    whole = httpx.post(f"{cluster.url}{PATH}", json=asked).json()
    name = whole["model"].removeprefix("model-of-")
    assert whole["choices"][0]["message"]["content"] == "".join(counted(name, 3))
    refused = httpx.post(f"{cluster.url}/v1/embeddings", json={"model": "words"})
    assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY
    assert refused.json()["error"]["message"] == "there is no input"
    listed = httpx.get(f"{cluster.url}/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["hosted", "words"]


def drains(cluster: Cluster, client: ControlClient, on_a: str, on_b: str) -> None:
    answers = [Answer(cluster, 60) for _ in range(6)]
    wait_for(lambda: num_running(client, on_a) and num_running(client, on_b), "load on both")
    steering.drain(client, on_a)
    answers.append(Answer(cluster, 5))
    assert answers[-1].all_words() == counted("b", 5)
    for answer in answers[:-1]:
        assert len(answer.all_words()) == 60
        assert is_from_one(answer.words)
    assert {answer.words[0][0] for answer in answers} == {"a", "b"}
    steering.undrain(client, on_a)
    wait_for(lambda: instance(client, on_a).state == "active", "the end of the drain")


def dies_in_an_answer(
    cluster: Cluster, client: ControlClient, on_a: str, process: subprocess.Popen[bytes]
) -> None:
    answers = [Answer(cluster, 150) for _ in range(6)]
    wait_for(lambda: all(len(each.words) > 5 for each in answers), "answers that have begun")
    assert num_running(client, on_a)
    process.kill()
    for answer in answers:
        answer.all_words()
        assert is_from_one(answer.words)
        if answer.words[0].startswith("a"):
            assert answer.error["code"] == HTTPStatus.SERVICE_UNAVAILABLE
            assert "an answer that has begun" in answer.error["message"]
        else:
            assert (len(answer.words), answer.error) == (150, {})
    assert {answer.words[0][0] for answer in answers} == {"a", "b"}


def dies_before_an_answer(
    cluster: Cluster,
    client: ControlClient,
    on_a: str,
    on_b: str,
    process: subprocess.Popen[bytes],
) -> None:
    story = steering.Story(client)
    done(cluster, "cordon", on_b)
    answers = [Answer(cluster, 4) for _ in range(3)]
    wait_for(lambda: num_running(client, on_a) == 3, "requests on the slow server")
    done(cluster, "uncordon", on_b)
    process.kill()
    assert [answer.all_words() for answer in answers] == [counted("b", 4)] * 3
    assert len(story.events("replayed")) == 3
