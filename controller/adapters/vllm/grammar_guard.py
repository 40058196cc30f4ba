"""Ends a request whose structured output takes its engine too long, before it takes longer.

What a grammar costs grows with the text, so a first slow step comes well before a hopeless
one. Called slow by the thread's own CPU time: a busy machine is no reason. A single call
that never returns is beyond this guard; for regular expressions and schemas the frontend
refuses what could do that (constraint_checks.py).

Touch points (vllm 0.32): v1/structured_output/__init__.py `_create_grammar`;
v1/structured_output/backend_types.py `StructuredOutputGrammar`. A grammar that accepts no
token ends its request with `FinishReason.ERROR` (v1/core/sched/scheduler.py).
"""

import logging
import time
from collections.abc import Callable
from typing import Any

MAX_CALL_S = 0.5

log = logging.getLogger(__name__)


def install(manager: Any) -> None:
    """Watch every grammar that this StructuredOutputManager makes from now on."""
    create = manager._create_grammar

    def guarded(request: Any) -> Any:
        return watch(create(request), request.request_id)

    manager._create_grammar = guarded


def watch(grammar: Any, request_id: str, clock: Callable[[], float] = time.thread_time) -> Any:
    """The same grammar; after a call of more than MAX_CALL_S it accepts nothing any more."""
    fill, accept = grammar.fill_bitmask, grammar.accept_tokens
    longest_s = 0.0

    def timed(call: Callable[..., Any], *args: Any) -> Any:
        nonlocal longest_s
        started_s = clock()
        result = call(*args)
        longest_s = max(longest_s, clock() - started_s)
        return result

    def watched_accept(owner: str, tokens: list[int]) -> bool:
        accepted = timed(accept, owner, tokens)
        if longest_s > MAX_CALL_S:
            log.warning("%s: a step of its grammar took %.1f s; ended", request_id, longest_s)
            return False
        return bool(accepted)

    grammar.fill_bitmask = lambda bitmask, index: timed(fill, bitmask, index)
    grammar.accept_tokens = watched_accept
    return grammar
