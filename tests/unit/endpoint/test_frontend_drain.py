"""The end of a frontend's drain, without vLLM's app."""

import asyncio
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from controller.adapters.vllm.endpoint.frontend import CUT, HostedModel, OpenAIFrontend
from controller.adapters.vllm.grammars.trials import (
    Grammar,
    GrammarRefusedError,
    GrammarTrials,
    TrialLimits,
    Verdict,
)


class EndlessTrials:
    async def try_grammar(self, _grammar: Grammar, _limits: TrialLimits) -> Verdict:
        await asyncio.Event().wait()
        raise AssertionError


def frontend(router: Any) -> Any:
    """A frontend that serves, as far as its drain can see."""
    served = OpenAIFrontend.__new__(OpenAIFrontend)
    served._server = SimpleNamespace(should_exit=False)
    served._gate = SimpleNamespace(closed=False)
    served._keep_alive = SimpleNamespace(ends=False)
    served._batches = None
    served._copies = SimpleNamespace(close=lambda: None)
    model = HostedModel.__new__(HostedModel)
    model.grammars = GrammarTrials(EndlessTrials())
    model.router = router
    served.models = [model]
    return served


async def test_at_the_deadline_a_request_whose_grammar_is_tried_is_answered_503() -> None:
    served = frontend(SimpleNamespace(num_live_reqs=0, live_request_ids=[]))
    waits = asyncio.create_task(served.models[0].grammars.check(Grammar("ebnf", "root ::= a")))
    await asyncio.sleep(0)
    assert served.models[0].grammars.num_waiting == 1
    await served._drain(0.05)
    with pytest.raises(GrammarRefusedError, match=CUT) as refused:
        await waits
    assert refused.value.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert served._server.should_exit


async def test_a_drain_that_fails_says_so_and_ends_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = frontend(None)
    await served._drain(5.0)
    assert served._server.should_exit
    (record,) = caplog.records
    assert record.exc_info is not None
