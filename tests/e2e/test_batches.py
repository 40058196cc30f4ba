"""A batch over the death of the frontend that runs it, and of the controller."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from controller.api.token_sequence import start
from tests.e2e.emulated import CONFIG
from tools.cluster import Cluster, running_with, wait_for
from tools.emulated_answers import first_wrong

NUM_LINES = 200
NUM_TOKENS = 80


@pytest.fixture(scope="module")
def cluster(
    base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    env = base_env | {"LLUMCTL_CLUSTER_FRONTENDS": "2", "LLUMCTL_CLUSTER_INSTANCES": "2"}
    with running_with(CONFIG, tmp_path_factory.mktemp("batches"), env, "batches") as found:
        yield found


def prompt(number: int) -> list[int]:
    return [300 + number] * (10 + number % 20)


def body(number: int) -> dict[str, Any]:
    more = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return {"model": "embedded", "prompt": prompt(number), **more}


def runner_pid(cluster: Cluster, batch_id: str) -> int:
    """The frontend that holds the batch's lock; 0 if none does."""
    lock = cluster.state_dir / "batches" / "runs" / f"{batch_id}.lock"
    for each in cluster.status()["frontends"]:
        if any(file.resolve() == lock for file in Path(f"/proc/{each['pid']}/fd").iterdir()):
            return int(each["pid"])
    return 0


def test_each_line_is_answered_once_though_its_frontend_and_the_controller_die(
    cluster: Cluster,
) -> None:
    text = "".join(
        json.dumps(
            {"custom_id": f"c{n}", "method": "POST", "url": "/v1/completions", "body": body(n)}
        )
        + "\n"
        for n in range(NUM_LINES)
    )
    with openai.OpenAI(**cluster.openai_options | {"max_retries": 5}) as client:
        file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        written = cluster.state_dir / "batches" / "files"

        def num_answered() -> int:
            files = [each for each in written.iterdir() if each.name != file.id]
            return sum(each.read_bytes().count(b'"custom_id"') for each in files)

        wait_for(lambda: num_answered() > NUM_LINES // 10, "some answers")
        victim = wait_for(lambda: runner_pid(cluster, batch.id), "the batch's frontend")
        controller = cluster.controller_pid
        os.kill(victim, signal.SIGKILL)
        os.kill(controller, signal.SIGKILL)
        assert num_answered() < NUM_LINES, "it was over before anything died"
        wait_for(lambda: not psutil.pid_exists(victim), "its death")
        batch = wait_for(
            lambda: (b := client.batches.retrieve(batch.id)).status == "completed" and b,
            "the batch",
        )
        assert batch.request_counts is not None
        assert batch.request_counts.completed == NUM_LINES
        assert batch.error_file_id is None
        assert batch.output_file_id is not None
        lines = client.files.content(batch.output_file_id).text.splitlines()
    answers = [json.loads(line) for line in lines]
    assert sorted(each["custom_id"] for each in answers) == sorted(
        f"c{n}" for n in range(NUM_LINES)
    )
    for each in answers:
        number = int(each["custom_id"][1:])
        (choice,) = each["response"]["body"]["choices"]
        assert len(choice["token_ids"]) == NUM_TOKENS
        assert first_wrong(start(prompt(number)), choice["token_ids"]) is None, number
    cluster.wait_quiet()
