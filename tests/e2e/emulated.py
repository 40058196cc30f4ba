"""Emulated instances under load: a cluster of six, and answers whose every token is checked."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.token_sequence import start
from tests.e2e.steering import done, ids_of
from tools.client_stream import Stream
from tools.cluster import Cluster, wait_for
from tools.emulated_answers import first_wrong

NUM_INSTANCES = 6
NUM_BLOCKS = 129
"""Of 16 tokens: 127 that requests may use, 1 that is vLLM's null block, 1 of the watermark."""
CONFIG = f"""
[cluster]
engine = "emulated"
instances = {NUM_INSTANCES}

[emulated]
speed = 2.0
num_blocks = {NUM_BLOCKS}

[[priority]]
name = "normal"
rank = 0

[[priority]]
name = "high"
rank = 1
target_load_tokens = 640
"""
TARGET_BLOCKS = 40


@pytest.fixture(scope="module")
def shared(six: Cluster) -> Cluster:
    """The fixture `cluster` of a module."""
    return six


class Answer(Stream):
    """An answer of so many tokens to a prompt of so many, which is no other's or that of `like`."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        cluster: Cluster,
        num_prompt: int,
        num_output: int,
        *,
        like: "Answer | None" = None,
        name: str = "",
        **extra: Any,
    ) -> None:
        """`name`: what its client's id contains, beside its number."""
        number = next(Answer._numbers)
        self.prompt: list[int] = like.prompt if like else [300 + number] * num_prompt
        self.num_output = num_output
        body = {"prompt": self.prompt, "max_tokens": num_output, "ignore_eos": True, **extra}
        super().__init__(cluster, "/v1/completions", body, f"answer-{number}-{name}")

    def check(self) -> None:
        (read,) = self.result()
        assert len(read.token_ids) == self.num_output, self.name
        assert first_wrong(start(self.prompt), read.token_ids) is None, self.name

    def wait_ended(self) -> None:
        wait_for(lambda: self.ended, f"the end of {self.name}")


def check(answers: Iterable[Answer]) -> None:
    for each in answers:
        each.check()


def one_on_each(cluster: Cluster, client: ControlClient, num_output: int = 900) -> list[Answer]:
    """Running on instances with NUM_BLOCKS: none fits beside another. Each takes 10 s at least,
    unless `num_output` says less."""
    found = [Answer(cluster, 1000, num_output) for _ in ids_of(client)]
    wait_for(lambda: all(each.num_tokens for each in found), "one on each")
    return found


def held(cluster: Cluster, client: ControlClient, count: int) -> list[Answer]:
    """Of an instance's size, so that they wait at the controller until one is empty."""
    found = [Answer(cluster, 1900, 5) for _ in range(count)]
    wait_for(lambda: client.status().num_held_reqs == count, f"{count} held requests")
    return found


def check_cut(cluster: Cluster, answers: Iterable[Answer], *how: str) -> None:
    """By `down` before they end: the client of each is told, and nothing is left."""
    done(cluster, "down", *how)
    for each in answers:
        each.wait_ended()
        assert each.error is not None, f"{each.name} has ended"
        assert "stop" in str(each.error).lower(), (each.name, each.error)
    assert not cluster.leftovers()
