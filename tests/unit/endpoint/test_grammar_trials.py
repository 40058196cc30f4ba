"""Which requests wait for which when grammars are tried, with fake trials."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import pytest

from controller.adapters.vllm.grammars import trials as grammar_trials
from controller.adapters.vllm.grammars.trials import (
    TOO_COSTLY,
    Grammar,
    GrammarRefusedError,
    GrammarTrials,
    ProcessGoneError,
    Queue,
    TooBusyError,
    TrialLimits,
    Verdict,
)

SHORT, LONG = TrialLimits(1.0, 4.0, 1 << 20), TrialLimits(10.0, 40.0, 1 << 20)
GOOD = Verdict(num_bytes=5)


class PlayedProcess:
    """A grammar's text says how much CPU time it takes. A trial ends when the test says so."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, float]] = []
        self.under_way: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []
        self.num_deaths = 0
        self.busy_below_s = 0.0
        """Trials with no more CPU time than this run out of time."""

    async def try_grammar(self, grammar: Grammar, limits: TrialLimits) -> Verdict:
        self.tried.append((grammar.text, limits.cpu_s))
        if self.num_deaths:
            self.num_deaths -= 1
            raise ProcessGoneError("killed")
        event = self.under_way[grammar.text] = asyncio.Event()
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.cancelled.append(grammar.text)
            raise
        finally:
            del self.under_way[grammar.text]
        if limits.cpu_s <= self.busy_below_s:
            raise TooBusyError
        word, _, number = grammar.text.partition(" ")
        if word == "wrong":
            return Verdict(error="no rule a")
        if word == "large":
            return Verdict(num_bytes=int(number))
        return GOOD if float(number) <= limits.cpu_s else TOO_COSTLY

    async def finish(self, text: str) -> None:
        """Finishes one trial of this grammar."""
        await until(lambda: text in self.under_way)
        event = self.under_way[text]
        event.set()
        await until(lambda: self.under_way.get(text) is not event)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def process() -> PlayedProcess:
    return PlayedProcess()


@pytest.fixture
def trials(process: PlayedProcess) -> GrammarTrials:
    return GrammarTrials(process, Queue(SHORT, 2, 4), Queue(LONG, 1, 2))


def check(trials: GrammarTrials, text: str, kind: str = "ebnf") -> asyncio.Task[None]:
    return asyncio.create_task(trials.check(Grammar(kind, text)))


async def refusal_of(task: asyncio.Task[None]) -> tuple[HTTPStatus, str]:
    with pytest.raises(GrammarRefusedError) as found:
        await task
    return found.value.status, str(found.value)


async def test_a_good_one_is_tried_once(trials: GrammarTrials, process: PlayedProcess) -> None:
    asking = [check(trials, "a 0.1") for _ in range(5)]
    await until(lambda: trials.num_waiting == 5)
    await process.finish("a 0.1")
    await asyncio.gather(*asking)
    assert trials.num_waiting == 0
    await check(trials, "a 0.1")
    assert process.tried == [("a 0.1", 1.0)]


async def test_the_same_text_of_another_kind(trials: GrammarTrials, process: PlayedProcess) -> None:
    for kind in ("regex", "lark"):
        asking = check(trials, "a 0.1", kind)
        await process.finish("a 0.1")
        await asking
    assert len(process.tried) == 2


async def test_one_that_takes_long(trials: GrammarTrials, process: PlayedProcess) -> None:
    asking = check(trials, "a 5")
    await process.finish("a 5")
    await process.finish("a 5")
    await asking
    assert process.tried == [("a 5", 1.0), ("a 5", 10.0)]


async def test_one_that_takes_too_long(trials: GrammarTrials, process: PlayedProcess) -> None:
    for has_been_tried in (False, True):
        asking = check(trials, "a 50")
        for _ in () if has_been_tried else (SHORT, LONG):
            await process.finish("a 50")
        status, why = await refusal_of(asking)
        assert status == 400
        assert "more than 10 s of CPU time or 1 MiB" in why
    assert len(process.tried) == 2


async def test_one_that_a_busy_machine_has_no_time_for(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    process.busy_below_s = LONG.cpu_s
    asking = check(trials, "a 0.1")
    for _ in (SHORT, LONG):
        await process.finish("a 0.1")
    with pytest.raises(GrammarRefusedError, match="too busy") as found:
        await asking
    assert (found.value.status, found.value.retry_after_s) == (503, 5)
    process.busy_below_s = 0.0
    asking = check(trials, "a 0.1")  # that is not remembered
    await process.finish("a 0.1")
    await asking


async def test_one_that_had_too_little_time_in_the_short_queue(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    process.busy_below_s = SHORT.cpu_s
    asking = check(trials, "a 0.1")
    for _ in (SHORT, LONG):
        await process.finish("a 0.1")
    await asking


async def test_one_that_is_wrong(trials: GrammarTrials, process: PlayedProcess) -> None:
    asking = check(trials, "wrong")
    await process.finish("wrong")
    assert await refusal_of(asking) == (400, "the grammar cannot be compiled: no rule a")
    assert await refusal_of(check(trials, "wrong")) == (
        400,
        "the grammar cannot be compiled: no rule a",
    )
    assert len(process.tried) == 1


async def test_one_that_compiles_into_too_much(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    text = f"large {grammar_trials.MAX_COMPILED_BYTES + 1}"
    asking = check(trials, text)
    await process.finish(text)
    status, why = await refusal_of(asking)
    assert status == 400
    assert "32 MiB when it is compiled" in why


async def test_costly_ones_do_not_keep_others_waiting(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    costly = [check(trials, f"a 5{i}") for i in range(3)]
    for i in range(3):
        await process.finish(f"a 5{i}")
    await until(lambda: [limit for _, limit in process.tried].count(10.0) == 1)
    good = check(trials, "b 0.1")
    await process.finish("b 0.1")
    await good
    assert not any(task.done() for task in costly)
    for task in costly:
        task.cancel()


async def test_so_many_may_wait(trials: GrammarTrials, process: PlayedProcess) -> None:
    asking = [check(trials, f"a{i} 0.1") for i in range(7)]
    status, why = await refusal_of(asking[-1])
    assert status == HTTPStatus.TOO_MANY_REQUESTS
    assert "send it again" in why
    for i in range(6):
        await process.finish(f"a{i} 0.1")
    await asyncio.gather(*asking[:6])
    again = check(trials, "a6 0.1")  # that it was refused is not remembered
    await process.finish("a6 0.1")
    await again


async def test_so_many_of_the_costly_ones_may_wait(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    asking = [check(trials, f"a{i} 5") for i in range(4)]
    for i in range(4):
        await process.finish(f"a{i} 5")
    assert (await refusal_of(asking[3]))[0] == HTTPStatus.TOO_MANY_REQUESTS
    for i in range(3):
        await process.finish(f"a{i} 5")
    await asyncio.gather(*asking[:3])


async def test_a_trial_ends_with_the_last_that_waits(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    first, second = check(trials, "a 0.1"), check(trials, "a 0.1")
    await until(lambda: process.under_way)
    first.cancel()
    await asyncio.wait({first})
    assert process.cancelled == []
    second.cancel()
    await asyncio.wait({second})
    await until(lambda: process.cancelled == ["a 0.1"])
    third = check(trials, "a 0.1")
    await process.finish("a 0.1")
    await third


async def test_whoever_comes_as_the_last_leaves(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    first = check(trials, "a 0.1")
    await until(lambda: process.under_way)
    first.cancel()
    second = check(trials, "a 0.1")
    await asyncio.wait({first})
    await process.finish("a 0.1")
    await second


async def test_whoever_leaves_gives_its_place_up(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    asking = [check(trials, f"a{i} 0.1") for i in range(6)]
    await until(lambda: len(process.under_way) == 2)
    for task in asking[:5]:
        task.cancel()
    await process.finish("a5 0.1")
    await asking[5]


async def test_the_process_dies_once(trials: GrammarTrials, process: PlayedProcess) -> None:
    process.num_deaths = 1
    asking = check(trials, "a 0.1")
    await process.finish("a 0.1")
    await asking


async def test_the_process_dies_again(trials: GrammarTrials, process: PlayedProcess) -> None:
    process.num_deaths = 2
    assert (await refusal_of(check(trials, "a 0.1")))[0] == HTTPStatus.SERVICE_UNAVAILABLE
    asking = check(trials, "a 0.1")  # that is not remembered
    await process.finish("a 0.1")
    await asking


async def test_what_is_remembered_is_bounded(
    trials: GrammarTrials, process: PlayedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "MAX_VERDICTS", 2)
    for text in ("a 0", "b 0", "a 0", "c 0", "a 0", "b 0"):
        asking = check(trials, text)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not asking.done():
            await process.finish(text)
        await asking
    assert [text for text, _ in process.tried] == ["a 0", "b 0", "c 0", "b 0"]


async def test_when_trials_stop_whoever_waits_and_whoever_comes_is_refused(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    waits = [check(trials, "takes 0.5"), check(trials, "takes 0.6")]
    await until(lambda: process.under_way)
    trials.stop("the cluster stopped")
    for task in (*waits, check(trials, "takes 0.5")):
        assert await refusal_of(task) == (
            HTTPStatus.SERVICE_UNAVAILABLE,
            "the cluster stopped",
        )
    assert trials.num_waiting == 0
    await until(lambda: not process.under_way)
