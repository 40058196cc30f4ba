"""What a stock OpenAI client gets from a cluster."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest

from tools.cluster import PATIENCE_S, Cluster, wait_for

MODEL = "embedded"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL]


def test_completion_is_deterministic_and_counted(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "the time of", "max_tokens": 40, "temperature": 0}
    first, second = (client.completions.create(**ask) for _ in range(2))
    assert first.choices[0].text == second.choices[0].text
    assert len(first.choices[0].text.split()) > 10
    assert first.usage is not None
    assert first.usage.completion_tokens <= 40


def test_streamed_chat_equals_the_whole_answer(client: openai.OpenAI) -> None:
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "tell me of the river"}],
        "max_tokens": 60,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**ask).choices[0]
    chunks = list(client.chat.completions.create(**ask, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert len(chunks) > 10


def test_stop_string_ends_the_text_before_it(cluster: Cluster, client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "the time of", "max_tokens": 60, "temperature": 0}
    text = client.completions.create(**ask).choices[0].text
    stop = text.split()[5]
    choice = client.completions.create(**ask, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == text[: text.index(stop)]
    cluster.wait_quiet()


def test_logprobs(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=12,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    ).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert len(content) == 12
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(t.logprob for t in token.top_logprobs)
        assert token.logprob <= 0


def test_seed_fixes_a_sample(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        return (
            client.completions.create(
                model=MODEL, prompt="one", max_tokens=30, temperature=1.5, seed=seed
            )
            .choices[0]
            .text
        )

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(5)}) > 1


def test_two_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="one", max_tokens=20, temperature=1.0, n=2, seed=5
    )
    assert [c.index for c in answer.choices] == [0, 1]
    assert answer.choices[0].text != answer.choices[1].text


def test_json_schema(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "who are you?"}],
        max_tokens=300,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        },
    ).choices[0]
    assert choice.finish_reason == "stop"
    person = json.loads(choice.message.content or "")
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)


def test_responses_and_tokenize(cluster: Cluster, client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="hello", max_output_tokens=16)
    assert answer.output_text
    text = "naïve Ω 漢字 🦊"
    tokens = httpx.post(
        f"{cluster.url}/tokenize",
        json={"model": MODEL, "prompt": text, "add_special_tokens": False},
        timeout=PATIENCE_S,
    ).json()["tokens"]
    asked = {"model": MODEL, "tokens": tokens}
    back = httpx.post(f"{cluster.url}/detokenize", json=asked, timeout=PATIENCE_S).json()
    assert back["prompt"] == text


async def test_64_streams_at_once(cluster: Cluster, async_client: openai.AsyncOpenAI) -> None:

    async def stream(index: int) -> tuple[str, int]:
        text, num_tokens = "", 0
        chunks = await async_client.completions.create(
            model=MODEL,
            prompt=f"number {index} of",
            max_tokens=48,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        async for chunk in chunks:
            text += chunk.choices[0].text if chunk.choices else ""
            num_tokens = chunk.usage.completion_tokens if chunk.usage else num_tokens
        return text, num_tokens

    answers = await asyncio.gather(*(stream(i) for i in range(64)))
    assert {tokens for _, tokens in answers} == {48}
    assert len({text for text, _ in answers}) > 60
    status = cluster.wait_quiet()
    assert all(i["num_steps"] > 0 for i in status["instances"]), "one instance got nothing"


async def test_client_that_leaves_frees_its_blocks(
    cluster: Cluster, async_client: openai.AsyncOpenAI
) -> None:
    chunks = await async_client.completions.create(
        model=MODEL, prompt="one", max_tokens=7000, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in chunks:
        break
    wait_for(
        lambda: sum(i["num_running_reqs"] for i in cluster.status()["instances"]) == 1,
        "the request to run",
    )
    await chunks.close()
    cluster.wait_quiet()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"max_tokens": 0}, 400),
        ({"temperature": -1}, 400),
        ({"priority": 7}, 400),
        ({"model": "other"}, 404),
        ({"prompt": "word " * 9000}, 400),
        ({"n": 0}, 400),
    ],
)
def test_bad_requests_are_refused_by_name(
    cluster: Cluster, change: dict[str, object], status: int
) -> None:
    body = {"model": MODEL, "prompt": "one", "max_tokens": 4} | change
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert len(answer.content) < 8192


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


def test_vllms_own_scaling_routes_are_not_served(cluster: Cluster) -> None:
    answer = httpx.post(f"{cluster.url}/scale_elastic_ep", json={}, timeout=PATIENCE_S)
    assert answer.status_code == 404


def test_high_priority_is_accepted(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="one", max_tokens=4, extra_body={"priority": -1}
    )
    assert answer.choices[0].text


def test_unknown_model_error_is_openai_shaped(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="one")
