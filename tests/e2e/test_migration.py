"""Requests that move while they are read: their readers cannot tell."""

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.operations.on_requests import Abort, AbortRequest
from tools.client_stream import Read, Stream
from tools.cluster import Cluster, running_with

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NUMBERS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 60},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 90, "maxItems": 120},
    },
    "required": ["name", "ages"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "strict": True,
        "description": "Writes numbers down.",
        "parameters": NUMBERS,
    },
}
MESSAGES = [{"role": "user", "content": "tell me of the quiet river and its stones"}]
SAMPLING: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": "the time of", "temperature": 0}),
    "seeded": (COMPLETIONS, {"prompt": "one", "temperature": 1.1, "seed": 11, "top_p": 0.9}),
    "penalties": (COMPLETIONS, {"prompt": "one", "temperature": 0, "repetition_penalty": 1.3,
                                "presence_penalty": 0.5, "frequency_penalty": 0.5}),
    "logprobs and stop": (COMPLETIONS, {"prompt": "the time of", "temperature": 0.7, "seed": 4,
                                        "logprobs": 3, "stop": ["qqqq", "zzzz"]}),
    "n=2": (COMPLETIONS, {"prompt": "two of", "temperature": 0.9, "seed": 3, "n": 2}),
    "chat with logprobs": (CHAT, {"messages": MESSAGES, "temperature": 1.0, "seed": 5,
                                  "logprobs": True, "top_logprobs": 2}),
    "json schema": (CHAT, {"messages": MESSAGES, "temperature": 1.0, "seed": 2,
                           "response_format": {"type": "json_schema",
                                               "json_schema": {"name": "p", "schema": NUMBERS}}}),
    "tool call": (CHAT, {"messages": MESSAGES, "temperature": 1.0, "seed": 6,
                         "tools": [TOOL], "tool_choice": "required"}),
}  # fmt: skip
GUIDED = {"response_format", "tools"}
"""They end by themselves."""
ORDINARY = ("logprobs and stop", "n=2", "tool call")
"""The other kinds move in the contract tests, and in `make test-full`."""
NUM_TOKENS = 300
NUM_BLOCKS = 280
NUM_MOVERS = 6
MAX_TRIES = 5
AT = {
    "once": [15],
    "there and back": [15, 120],
    "every 20 tokens": list(range(20, NUM_TOKENS, 20)),
}
_names = map("moving-{}-".format, itertools.count())
"""No name is the beginning of another; no generator, so that any thread may take the next."""


def read(
    cluster: Cluster, path: str, body: dict[str, Any], moves_at: list[int], *, num_moves: int = 0
) -> list[Read]:
    """One request, moved when it has so many tokens; at least `num_moves` of the moves, counted
    per sequence, must have happened. On a busy machine it may be over before its reader has read so
    many: then it is sent again, and must say the same again."""
    if not GUIDED & body.keys():
        body = {"max_tokens": NUM_TOKENS, "ignore_eos": True} | body
    body = body | {"max_tokens": NUM_TOKENS}
    found: list[Read] = []
    tries: list[list[str]] = []
    while not tries or (tries[-1].count("migrated") < num_moves and len(tries) < MAX_TRIES):
        stream = Stream(cluster, path, body, next(_names))
        tries.append(_moved(cluster, stream, moves_at))
        result = stream.result()
        assert not found or result == found, tries
        found = result
    assert tries[-1].count("migrated") >= num_moves, tries
    return found


def _moved(cluster: Cluster, stream: Stream, moves_at: list[int]) -> list[str]:
    """The outcomes of its moves until it ends."""
    outcomes: list[str] = []
    with cluster.control() as client:
        for count in moves_at:
            if not stream.wait_tokens(count):
                break
            found = ["refused"]
            while "refused" in found and not stream.ended:  # for the moment: others move too
                found = [report.outcome for report in stream.move(client)]
                outcomes += found
    # The last of them may find that its request has ended meanwhile.
    assert set(outcomes) <= {"migrated", "ended", "refused"}, outcomes
    return outcomes


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ORDINARY else pytest.mark.full) for kind in SAMPLING],
)
def test_moved_equals_unmoved(cluster: Cluster, kind: str) -> None:
    """One that stays where it is and some that move, at the same time."""
    path, body = SAMPLING[kind]
    with ThreadPoolExecutor(1 + len(AT)) as clients:
        unmoved = clients.submit(read, cluster, path, body, [])
        moved = {
            when: clients.submit(read, cluster, path, body, moves_at, num_moves=1)
            for when, moves_at in AT.items()
        }
    assert all(choice.token_ids for choice in unmoved.result())
    if kind == "tool call":
        (choice,) = unmoved.result()
        assert choice.calls[0]["name"] == "note"
        assert '"ages"' in choice.calls[0]["arguments"]
    for when, found in moved.items():
        assert found.result() == unmoved.result(), when


def test_a_moved_request_says_so(cluster: Cluster) -> None:
    body = {"prompt": "a", "max_tokens": 1200, "temperature": 0, "ignore_eos": True}
    stream = Stream(cluster, COMPLETIONS, body, next(_names))
    stream.wait_tokens(5)
    with cluster.control() as client:
        (before,) = stream.live(client)
        (report,) = stream.move(client, verify_kv=True)
        assert report.outcome == "migrated", report
        assert report.downtime_s is not None
        assert report.num_bytes == report.num_blocks * 32 * 4096
        (after,) = stream.live(client)
        assert after.instance_id != before.instance_id == report.from_instance_id
        assert after.num_moves == 1
        kinds = [event.kind for event in client.request(after.id).history]
        assert kinds.count("migrated") == 1
        client.send(Abort(after.id, AbortRequest()))
    cluster.wait_quiet()


TIGHT = f"""
[cluster]
instances = 2

[scheduler]
policy = "llumnix"

[migration]
enabled = false

[engine]
kv_cache_memory_bytes = {(NUM_BLOCKS + 1) * 32 * 4096}
max_num_batched_tokens = 512
enable_prefix_caching = false
"""


@pytest.fixture(scope="module")
def tight(base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Few blocks, small steps, and no prefix cache to find a block in. What does not fit waits at
    the instances, where it is evicted, and not at the controller."""
    with running_with(TIGHT, tmp_path_factory.mktemp("tight"), base_env, "tight") as cluster:
        yield cluster


@pytest.mark.full
def test_many_mixed_requests_move_at_random_with_too_few_blocks(tight: Cluster) -> None:
    """Of 16 requests that together need more blocks than there are, half of them for prompts: room
    is refused, requests are evicted, and no reader can tell, but for the rounding of log
    probabilities. Again until enough have moved, which takes seconds where a request is evicted at
    once, and until chance has brought an eviction and a refusal."""
    kinds = [kind for kind in SAMPLING if kind not in ("n=2", "tool call")]
    bodies = [_long(kinds[index % len(kinds)], seed=index) for index in range(16)]
    unmoved = [stream.result() for stream in [Stream(tight, *b, next(_names)) for b in bodies]]
    outcomes: list[str] = []
    with tight.control() as client, ThreadPoolExecutor(NUM_MOVERS) as movers:
        for first_seed in range(0, MAX_TRIES * NUM_MOVERS, NUM_MOVERS):
            streams = [Stream(tight, *each, next(_names)) for each in bodies]
            seeds = range(first_seed, first_seed + NUM_MOVERS)
            for moved in movers.map(partial(_move_until_all_ended, client, streams), seeds):
                outcomes += moved
            together = [stream.result() for stream in streams]
            for alone, again in zip(unmoved, together, strict=True):
                assert len(alone) == len(again)
                assert all(map(Read.equals_but_for_rounding, alone, again))
            evicted = [r for r in client.requests().requests if r.num_evictions]
            events = client.events(limit=10_000).events
            refused = [event for event in events if event.labels.get("code") == "no_blocks"]
            if outcomes.count("migrated") >= 50 and evicted and refused:
                break
    assert outcomes.count("migrated") >= 50, outcomes
    assert evicted, "there were blocks enough"
    assert refused, "room was never refused"
    status = tight.wait_quiet()
    assert not any(i["num_moves_in"] or i["num_moves_out"] for i in status["instances"])


def _long(kind: str, seed: int) -> tuple[str, dict[str, Any]]:
    """The same question after many words, with a long answer."""
    path, body = SAMPLING[kind]
    words = "the quiet river and its stones " * 130
    if "prompt" in body:
        asked: dict[str, Any] = {"prompt": words + body["prompt"]}
    else:
        asked = {"messages": [{"role": "user", "content": words + MESSAGES[0]["content"]}]}
    answer = {"max_tokens": 480, "ignore_eos": "response_format" not in body, "seed": seed}
    return path, body | asked | answer


def _move_until_all_ended(client: ControlClient, streams: list[Stream], seed: int) -> list[str]:
    dice, outcomes = random.Random(seed), []
    while running := [stream for stream in streams if not stream.ended]:
        outcomes += [report.outcome for report in dice.choice(running).move(client)]
    return outcomes
