"""What ends a trial of a grammar: real processes, with a compiler that does what it is told."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from controller.adapters.vllm.grammars import trials as grammar_process
from controller.adapters.vllm.grammars.trials import (
    TOO_COSTLY,
    Grammar,
    GrammarProcess,
    ProcessGoneError,
    TooBusyError,
    TrialLimits,
    Verdict,
)
from tests.unit.endpoint.gate_support import until

pytestmark = pytest.mark.process

MIB = 1024 * 1024
SETUP = {"tokenizer": "words", "disable_any_whitespace": False, "num_threads": 1}
ENOUGH = TrialLimits(cpu_s=20.0, wall_s=20.0, max_bytes=64 * MIB)
GOOD = Verdict(num_bytes=7)


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrammarProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("fake_xgrammar")))
    found = GrammarProcess(SETUP)
    await found.start()
    yield found
    found.close()
    assert not [
        p for p in psutil.Process().children() if str(grammar_process.PROGRAM) in p.cmdline()
    ]


def trial(
    process: GrammarProcess, text: str, limits: TrialLimits = ENOUGH
) -> asyncio.Task[Verdict]:
    return asyncio.create_task(process.try_grammar(Grammar("ebnf", text), limits))


def forks(process: GrammarProcess) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


SAID = "raise [02:46:26] /project/cpp/grammar.cc:3567: no such rule: a"


async def test_what_a_trial_tells(process: GrammarProcess) -> None:
    assert await trial(process, "ok") == GOOD
    assert await trial(process, "x" * 4 * MIB) == GOOD, "more than a socket holds at once"
    assert await trial(process, SAID) == Verdict(error="no such rule: a")
    verdict = await process.try_grammar(Grammar("poem", "x"), ENOUGH)
    assert "poem" in (verdict.error or "")
    assert await trial(process, "burn", replace(ENOUGH, cpu_s=0.1)) == TOO_COSTLY
    with pytest.raises(TooBusyError):
        await trial(process, "sleep", replace(ENOUGH, wall_s=0.1))
    await until(lambda: not forks(process))


async def test_tokens_that_take_too_long_or_longer_and_longer_end_it(
    process: GrammarProcess,
) -> None:
    """The grammar compiles at once, and the trial has much time, but at most 0.25 s for one token.
    A trial of a second of CPU time, at the priority of its process, took 20 s beside busy ones."""
    patient = replace(ENOUGH, wall_s=120.0)
    assert await trial(process, "end-after 3") == GOOD
    assert await trial(process, "burn-after 5") == TOO_COSTLY
    assert await trial(process, "slow 1.4", patient) == TOO_COSTLY
    assert await trial(process, "slow 1", patient) == GOOD
    await until(lambda: not forks(process))


async def test_memory_or_a_crash_ends_it_alone(process: GrammarProcess) -> None:
    other = trial(process, "sleep")
    await until(lambda: len(forks(process)) == 1)
    assert await trial(process, "crash") == TOO_COSTLY
    assert await trial(process, f"take {32 * MIB}") == GOOD
    assert await trial(process, f"take {96 * MIB}") == TOO_COSTLY
    memory = psutil.Process(process.pid).memory_info().rss
    assert memory < 64 * MIB, "a trial's memory stays"
    await until(lambda: len(forks(process)) == 1)
    other.cancel()


async def is_begun(process: GrammarProcess, tmp_path: Path) -> tuple[asyncio.Task[Verdict], int]:
    """A trial that goes on, and the process that runs it."""
    said = tmp_path / "pid"
    asking = trial(process, f"say {said}")
    await until(lambda: said.exists() and said.read_text())
    return asking, int(said.read_text())


async def test_whoever_leaves_takes_it_along(process: GrammarProcess, tmp_path: Path) -> None:
    asking, pid = await is_begun(process, tmp_path)
    assert psutil.pid_exists(pid)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: not psutil.pid_exists(pid))
    for delay_s in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01):
        asking = trial(process, "sleep")
        await asyncio.sleep(delay_s)
        asking.cancel()
    await until(lambda: not forks(process))
    assert await trial(process, "ok") == GOOD


async def test_the_process_dies(process: GrammarProcess) -> None:
    """Trials under way are told so, and the next trial gets another process."""
    before = process.pid
    with pytest.raises(ProcessGoneError):
        await trial(process, "kill-parent")
    assert await trial(process, "ok") == GOOD
    assert process.pid != before


async def test_a_process_that_hangs_is_replaced(
    process: GrammarProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = psutil.Process(process.pid)
    hanging.suspend()
    with monkeypatch.context() as short:
        short.setattr(grammar_process, "START_S", 0.1)
        with pytest.raises(ProcessGoneError, match="does not answer"):
            await trial(process, "ok", replace(ENOUGH, wall_s=0.1))
    assert await trial(process, "ok") == GOOD
    assert not hanging.is_running()


async def test_it_ends_with_its_frontend(
    process: GrammarProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the frontend is killed: its end of the control socket closes, and so do those of the
    trials."""
    made: list[socket.socket] = []
    pair = socket.socketpair

    def noted() -> tuple[socket.socket, socket.socket]:
        found = pair()
        made.append(found[0])
        return found

    process.close()
    monkeypatch.setattr(socket, "socketpair", noted)
    await process.start()
    asking, pid = await is_begun(process, tmp_path)
    child = psutil.Process(process.pid)
    made[0].close()  # the control socket
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    asking.cancel()
    await until(lambda: not psutil.pid_exists(pid))


async def test_its_descriptors_do_not_stay(process: GrammarProcess) -> None:
    assert await trial(process, "ok") == GOOD
    before = psutil.Process().num_fds()
    for _ in range(20):
        assert await trial(process, "ok") == GOOD
    await until(lambda: psutil.Process().num_fds() <= before)
    assert psutil.Process(process.pid).num_fds() < 16
