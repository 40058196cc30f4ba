"""Requests that continue on another real engine from their outputs: their readers cannot tell."""

import threading

import pytest
from conftest import STEP_TOKENS
from test_vllm_moves import KINDS, unmoved

from controller.core.migration.refusals import MoveRefusal, why
from tests.contract.moving import Readers, Told, evict, message

SEEDED = {"temperature": 1.0, "seed": 7}


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_cannot_tell(readers: Readers, kind: str) -> None:
    """The request's engines die at its first token, in the middle, and one token before its end."""
    here, there = readers.engines
    options = {"max_tokens": 60} | KINDS[kind]
    alone = unmoved(readers, "r", **options)
    readers.add("beside", **SEEDED)
    readers.add("r", **options)
    half, last = len(alone.tokens) // 2, len(alone.tokens) - 1
    for num_tokens, to in ((1, there), (half, here), (half + 1, here), (last, there)):
        readers.run("r", num_tokens)
        readers.replay("r", to)
    readers.finish()
    told = readers.told["r"]
    assert told.tokens == alone.tokens
    assert told.logprobs == alone.logprobs
    assert told.prompt_logprobs == alone.prompt_logprobs
    assert told.finish_reason == alone.finish_reason
    assert len(told.prefill_stats) == 1, "of its first instance"


@pytest.mark.parametrize("kind", ["greedy", "seeded", "penalties"])
def test_a_prefill_that_takes_several_steps(readers: Readers, kind: str) -> None:
    """vLLM draws in each of the steps, and takes the draw back. A request that was replayed moves,
    while it waits and then, and is replayed as any other."""
    here, there = readers.engines
    options = {"max_tokens": 30, "num_prompt_tokens": 2 * STEP_TOKENS + 5} | KINDS[kind]
    alone = unmoved(readers, "r", **options)
    readers.add("r", **options)
    readers.run("r", 11)
    readers.replay("r", here)
    readers.move("r", there)
    readers.run("r", 20)
    evict(there, "r")
    readers.run("r", 24)
    readers.move("r", here, num_stages=1)
    readers.run("r", 27)
    readers.replay("r", there)
    assert readers.finish()["r"] == alone.tokens


def test_what_an_engine_cannot_go_on_with(readers: Readers) -> None:
    engine, _ = readers.engines
    readers.add("r")
    readers.run("r", 2)
    again = engine.prepare(readers.messages["r"], 0)
    with pytest.raises(ValueError, match=why(MoveRefusal.NOT_TAKEN)):
        engine.moves.reenter(again, readers.told["r"].tokens, None)
    other = engine.prepare(message("o", readers.model_path, guided={"regex": "[a-z]{30}"}), 0)
    compiling = engine.moves.compiling(other)
    compiling.exception(timeout=60)
    with pytest.raises(ValueError, match="does not accept"):
        engine.moves.reenter(other, [5, 6], None)
    full = engine.prepare(message("f", readers.model_path), 0)
    with pytest.raises(ValueError, match="context"):
        engine.moves.reenter(full, [400] * (engine.max_model_len - 40), None)
    assert readers.told["r"].finish_reason is None
    readers.finish()


def test_an_abort_of_an_earlier_attempt_leaves_the_grammar_of_the_next_one(
    readers: Readers,
) -> None:
    """An instance drops its part of a request that comes again, while the request's grammar waits
    for the compiler. The grammar was cancelled with that, and the client got a 400."""
    engine, _ = readers.engines
    readers.messages["r"] = message(
        "r", readers.model_path, max_tokens=4, guided={"regex": "[a-z]{30}"}
    )
    readers.told["r"] = Told()
    executor, go_on = engine._core.structured_output_manager.executor, threading.Event()
    busy = [executor.submit(go_on.wait, 60) for _ in range(executor._max_workers)]
    try:
        again = engine.prepare(readers.messages["r"], 0)
        engine.abort(["r"])
        engine.add(again)
        readers.step(engine)
    finally:
        go_on.set()
        for each in busy:
            each.result(60)
    readers.finish()
    assert readers.told["r"].finish_reason == "length"
