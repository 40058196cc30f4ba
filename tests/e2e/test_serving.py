"""What a stock OpenAI client gets from a cluster."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from tools.client_stream import Stream
from tools.cluster import PATIENCE_S, Cluster, wait_for

MODEL = "embedded"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_streamed_chat_equals_the_whole_answer(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list().data] == [MODEL]
    messages = [{"role": "user", "content": "tell me of the river"}]
    ask = {"model": MODEL, "messages": messages, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**ask).choices[0]
    chunks = list(client.chat.completions.create(**ask, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert len(chunks) > 10


def test_stop_string_ends_the_text_before_it(cluster: Cluster, client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "the time of", "max_tokens": 60, "temperature": 0}
    answer = client.completions.create(**ask)
    assert answer.usage is not None
    assert 10 < answer.usage.completion_tokens <= 60
    text = answer.choices[0].text
    stop = text.split()[5]
    choice = client.completions.create(**ask, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == text[: text.index(stop)]
    cluster.wait_quiet()


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {"name": "person", "schema": PERSON, "strict": True}
    choice = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "who are you?"}],
        max_tokens=300,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": schema},
    ).choices[0]
    assert choice.finish_reason == "stop"
    person = json.loads(choice.message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_responses_and_tokenize(cluster: Cluster, client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="hello", max_output_tokens=16)
    assert answer.output_text
    text = "naïve Ω 漢字 🦊"
    with httpx.Client(base_url=cluster.url, timeout=PATIENCE_S) as http:
        asked = {"model": MODEL, "prompt": text, "add_special_tokens": False}
        tokens = http.post("/tokenize", json=asked).json()["tokens"]
        back = http.post("/detokenize", json={"model": MODEL, "tokens": tokens}).json()
    assert back["prompt"] == text


def test_64_streams_at_once(cluster: Cluster) -> None:
    body = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}
    bodies = [body | {"prompt": f"number {index} of"} for index in range(64)]
    streams = [Stream(cluster, "/v1/completions", b, f"at-once-{b['prompt']}") for b in bodies]
    answers = [each for stream in streams for each in stream.result()]
    assert {len(each.token_ids) for each in answers} == {48}
    assert len({each.text for each in answers}) > 60
    status = cluster.wait_quiet()
    assert all(i["num_steps"] > 0 for i in status["instances"]), "one instance got nothing"


def test_client_that_leaves_frees_its_blocks(cluster: Cluster, client: openai.OpenAI) -> None:
    chunks = client.completions.create(
        model=MODEL, prompt="one", max_tokens=7000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(chunks))
    wait_for(
        lambda: sum(i["num_running_reqs"] for i in cluster.status()["instances"]) == 1,
        "the request to run",
    )
    chunks.close()
    cluster.wait_quiet()


@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("/v1/completions", {"max_tokens": 0}, 400),
        ("/v1/completions", {"priority": 7}, 400),
        ("/v1/completions", {"model": "other"}, 404),
        ("/v1/completions", {"prompt": "word " * 9000}, 400),
        ("/scale_elastic_ep", {}, 404),  # of vLLM's own server, for its own scaling
    ],
)
def test_bad_requests_are_refused_by_name(
    cluster: Cluster, path: str, change: dict[str, object], status: int
) -> None:
    body = {"model": MODEL, "prompt": "one", "max_tokens": 4} | change
    answer = httpx.post(f"{cluster.url}{path}", json=body, timeout=PATIENCE_S)
    assert answer.status_code == status
    assert len(answer.content) < 8192
    if path.startswith("/v1"):
        assert answer.json()["error"]["message"]


@pytest.mark.full
def test_vllms_own_load_generator_finds_no_fault(
    cluster: Cluster, base_env: dict[str, str]
) -> None:
    """`vllm bench serve`, as vLLM ships it."""
    folder = next(Path(base_env["XDG_CACHE_HOME"]).glob("llumctl/models/embedded-*"))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.vllm_bench_serve", cluster.url, "--tokenizer", folder],
        cwd=Path(__file__).parents[2],
        env=base_env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 of 32 requests completed, 0 failed" in done.stdout
