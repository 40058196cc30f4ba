"""Tool calls that were cut, in answers that become Anthropic's."""

import json
from types import SimpleNamespace
from typing import Any

from controller.adapters.vllm.endpoint.anthropic_calls import leave_out_cut_calls


class Converter:
    """As vLLM's: it decodes the arguments of all calls."""

    def messages_full_converter(self, answer: Any) -> list[Any]:
        calls = answer.choices[0].message.tool_calls
        return [json.loads(call.function.arguments) for call in calls]


def converted(*arguments: str) -> list[Any]:
    calls = [SimpleNamespace(function=SimpleNamespace(arguments=each)) for each in arguments]
    choice = SimpleNamespace(message=SimpleNamespace(tool_calls=calls))
    serving = Converter()
    leave_out_cut_calls(serving)
    return serving.messages_full_converter(SimpleNamespace(choices=[choice]))


def test_whole_calls_stay() -> None:
    assert converted('{"a": 1}', "{}") == [{"a": 1}, {}]


def test_cut_calls_are_left_out() -> None:
    for cut in ("", "{", '{"a": "x', '{"a": 1', "[" * 5000, "[1]", "3"):
        assert converted('{"a": 1}', cut) == [{"a": 1}], cut


def test_a_model_without_chats() -> None:
    leave_out_cut_calls(None)
