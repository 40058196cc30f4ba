"""Tool calls in answers of Anthropic's API, and tools that must be called."""

import json
from types import SimpleNamespace
from typing import Any

from controller.adapters.vllm.endpoint.answers import mend_calls, without_cut_call


class Converter:
    """Like vLLM's, it decodes the arguments of all calls."""

    parser_cls = None

    def messages_full_converter(self, answer: Any) -> tuple[list[Any], str, str]:
        (choice,) = answer.choices
        inputs = [json.loads(call.function.arguments) for call in choice.message.tool_calls]
        return inputs, choice.message.content, choice.finish_reason

    def to_chat_completion_request(self, request: Any, *, merge: bool = False) -> Any:
        assert merge
        tools = [SimpleNamespace(function=SimpleNamespace(strict=each)) for each in request.strict]
        return SimpleNamespace(tools=tools)


def test_calls_that_are_cut_or_of_another_shape() -> None:
    for arguments, content, finish_reason, converted in (
        (['{"a": 1}', "{}"], None, "tool_calls", ([{"a": 1}, {}], None, "tool_calls")),
        (['{"a": 1}', ""], None, "length", ([{"a": 1}], None, "length")),
        (['{"a": 1}', "[" * 5000], None, "length", ([{"a": 1}], None, "length")),
        # arguments that are no object are shown, and no call is promised
        (["[1]"], "so:", "tool_calls", ([], "so:\n[1]", "stop")),
        (["3", '{"a": 1}'], None, "tool_calls", ([{"a": 1}], "3", "tool_calls")),
    ):
        calls = [SimpleNamespace(function=SimpleNamespace(arguments=each)) for each in arguments]
        message = SimpleNamespace(tool_calls=calls, content=content)
        choice = SimpleNamespace(message=message, finish_reason=finish_reason)
        serving = Converter()
        mend_calls(serving)
        assert serving.messages_full_converter(SimpleNamespace(choices=[choice])) == converted


def test_a_tool_that_must_be_called_is_strict_unless_it_says_otherwise() -> None:
    mend_calls(None)  # a model without chats
    for choice in ("any", "auto", None):
        serving = Converter()
        mend_calls(serving)
        tool_choice = None if choice is None else SimpleNamespace(type=choice)
        request = SimpleNamespace(tool_choice=tool_choice, strict=[None, False, True])
        chat = serving.to_chat_completion_request(request, merge=True)
        first = True if choice == "any" else None
        assert [tool.function.strict for tool in chat.tools] == [first, False, True]


def test_of_calls_one_after_the_other_those_before_the_cut_one_are_kept() -> None:
    for text, kept in (
        ("<c>{1}</c><c>{2}</c><c>{3", "<c>{1}</c><c>{2}</c>"),
        ("<c>{1}</c><c>{2}</c>", "<c>{1}</c><c>{2}</c>"),
        ("<c>{1", "<c>{1"),
        ('[{"a": 1}, {"b": "é"}, {"c', '[{"a": 1}, {"b": "é"}]'),
        ('[{"a": 1} ,\n{"b": 2', '[{"a": 1}]'),
        ('[{"a": 1}', '[{"a": 1}]'),
        ("[" * 9000, "[" * 9000),
    ):
        assert without_cut_call(text, "<c>", "</c>") == kept
