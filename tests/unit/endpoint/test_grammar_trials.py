"""Which requests wait for which when grammars are tried, with fake trials."""

import asyncio

import pytest

from controller.adapters.vllm.grammars import trials as grammar_trials
from controller.adapters.vllm.grammars.trials import (
    MAX_COMPILED_BYTES,
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
from tests.unit.endpoint.gate_support import until

SHORT, LONG = TrialLimits(1.0, 4.0, 1 << 20), TrialLimits(10.0, 40.0, 1 << 20)


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
        return Verdict(num_bytes=5) if float(number) <= limits.cpu_s else TOO_COSTLY

    async def finish(self, *texts: str) -> None:
        """Finishes one trial of each of these grammars."""
        for text in texts:
            await until(lambda text=text: text in self.under_way)
            event = self.under_way[text]
            event.set()
            await until(lambda text=text, event=event: self.under_way.get(text) is not event)


@pytest.fixture
def process() -> PlayedProcess:
    return PlayedProcess()


@pytest.fixture
def trials(process: PlayedProcess) -> GrammarTrials:
    return GrammarTrials(process, Queue(SHORT, 2, 4), Queue(LONG, 1, 2))


def check(trials: GrammarTrials, text: str, kind: str = "ebnf") -> asyncio.Task[float]:
    return asyncio.create_task(trials.check(Grammar(kind, text)))


async def outcome(task: asyncio.Task[float]) -> tuple[int, str, int]:
    """The status, the message, and the time after which the client may try again."""
    try:
        await task
    except GrammarRefusedError as refused:
        return refused.status, str(refused), refused.retry_after_s
    return 200, "", 1


COSTLY = "takes more than 10 s of CPU time or 1 MiB"


@pytest.mark.parametrize(
    ("text", "played", "tried_s", "status", "says"),
    [
        ("takes-long 1.1", {}, [1.0, 10.0], 200, ""),
        ("takes-too-long 10.1", {}, [1.0, 10.0], 400, COSTLY),
        ("wrong", {}, [1.0], 400, "the grammar cannot be compiled: no rule a"),
        (f"large {MAX_COMPILED_BYTES}", {}, [1.0], 200, ""),
        (f"large {MAX_COMPILED_BYTES + 1}", {}, [1.0], 400, "32 MiB when it is compiled"),
        ("busy-for-a-moment 0.1", {"busy_below_s": 1.0}, [1.0, 10.0], 200, ""),
        ("busy 0.1", {"busy_below_s": 10.0}, [1.0, 10.0], 503, "too busy"),
        ("the-process-dies-once 0.1", {"num_deaths": 1}, [1.0, 1.0], 200, ""),
        ("it-dies-again 0.1", {"num_deaths": 2}, [1.0, 1.0], 503, "no grammar can be compiled"),
    ],
)
async def test_what_a_trial_says_is_remembered_unless_it_says_nothing_of_the_grammar(
    trials: GrammarTrials,
    process: PlayedProcess,
    text: str,
    played: dict[str, float],
    tried_s: list[float],
    status: int,
    says: str,
) -> None:
    vars(process).update(played)
    asking = check(trials, text)
    await process.finish(*[text] * (len(tried_s) - int(played.get("num_deaths", 0))))
    first = await outcome(asking)
    assert (first[0], first[2]) == (status, 5 if says == "too busy" else 1)
    assert says in first[1]
    assert process.tried == [(text, cpu_s) for cpu_s in tried_s]
    process.busy_below_s = 0.0
    asking = check(trials, text)
    if status == 503:
        await process.finish(text)
        assert (await outcome(asking))[0] == 200
    else:
        assert await outcome(asking) == first
        assert len(process.tried) == len(tried_s)


async def test_requests_under_one_grammar_share_its_trial(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    asking = [check(trials, "a 0.1") for _ in range(5)]
    await until(lambda: trials.num_waiting == 5)
    await process.finish("a 0.1")
    await asyncio.gather(*asking)
    assert trials.num_waiting == 0
    another_kind = check(trials, "a 0.1", "regex")
    await process.finish("a 0.1")
    await another_kind
    assert len(process.tried) == 2


async def test_costly_ones_do_not_keep_others_waiting_and_whoever_leaves_gives_its_place_up(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    costly = [check(trials, f"a 5{i}") for i in range(3)]
    await process.finish(*(f"a 5{i}" for i in range(3)))
    await until(lambda: [limit for _, limit in process.tried].count(10.0) == 1)
    good = check(trials, "b 0.1")
    await process.finish("b 0.1")
    await good
    assert not any(task.done() for task in costly)
    for task in costly[:2]:
        task.cancel()
    await process.finish("a 52")
    assert (await outcome(costly[2]))[0] == 400


@pytest.mark.parametrize(("cpu_s", "num_places"), [("0.1", 6), ("5", 3)])
async def test_so_many_may_wait(
    trials: GrammarTrials, process: PlayedProcess, cpu_s: str, num_places: int
) -> None:
    *texts, last = [f"a{i} {cpu_s}" for i in range(num_places + 1)]
    asking = [check(trials, text) for text in texts]
    one_too_many = check(trials, last)
    if cpu_s == "5":
        await process.finish(*texts, last)  # the costly ones wait in the second queue
    status, says, _ = await outcome(one_too_many)
    assert (status, says.endswith("send it again")) == (429, True)
    await process.finish(*texts)
    await asyncio.gather(*asking)
    if cpu_s == "0.1":
        again = check(trials, last)  # that it was refused is not remembered
        await process.finish(last)
        await again


async def test_a_trial_ends_with_the_last_that_waits(
    trials: GrammarTrials, process: PlayedProcess
) -> None:
    first, second = check(trials, "a 0.1"), check(trials, "a 0.1")
    await until(lambda: process.under_way)
    first.cancel()
    await asyncio.wait({first})
    assert process.cancelled == []
    second.cancel()
    third = check(trials, "a 0.1")  # it comes as the last leaves
    await asyncio.wait({second})
    await process.finish("a 0.1")
    await third
    third = check(trials, "b 0.1")
    await until(lambda: process.under_way)
    third.cancel()
    await until(lambda: process.cancelled == ["a 0.1", "b 0.1"])


async def test_what_is_remembered_is_bounded(
    trials: GrammarTrials, process: PlayedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "MAX_VERDICTS", 2)
    for text in ("a 0", "b 0", "a 0", "c 0", "a 0", "b 0"):
        asking = check(trials, text)
        await until(lambda text=text, asking=asking: asking.done() or text in process.under_way)
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
        assert (await outcome(task))[:2] == (503, "the cluster stopped")
    assert trials.num_waiting == 0
    await until(lambda: not process.under_way)
