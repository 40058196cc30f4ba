"""vLLM's errors name flags; ours name the flags that work here."""

import json

import pytest

from controller.adapters.vllm.endpoint.answers import error_body, in_our_words


def test_tools_without_a_parser_say_how_to_get_one() -> None:
    theirs = (
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    )
    ours = json.loads(error_body(400, theirs))["error"]["message"]
    assert ours == (
        '"auto" tool choice requires endpoint.tool_call_parser'
        " (llumctl up --tool-call-parser hermes) to be set"
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "must be at most --max-logprobs.",
            "must be at most engine.max_logprobs (llumctl up --engine-arg max_logprobs=...).",
        ),
        (
            "set --trust-request-chat-template first",
            "set trust_request_chat_template, which llumctl does not take, first",
        ),
        ("--reasoning-parser", "endpoint.reasoning_parser (llumctl up --reasoning-parser qwen3)"),
        ("a --no-such-flag and x--max-logprobs", "a --no-such-flag and x--max-logprobs"),
        ("nothing of that", "nothing of that"),
    ],
)
def test_flags_are_told_as_they_are_typed_here(theirs: str, ours: str) -> None:
    assert in_our_words(theirs) == ours
