"""Sends cases in rounds beside a canary, and finds the culprit of what a round has shown.

What an answer shows belongs to its case. A stall, a late answer or a traceback in a log belongs
to one of those that ran meanwhile: each is sent again alone. From time to time all clients leave,
and the endpoint must come to rest.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tools.canary import Canary, Gap
from tools.fuzz.case import Case
from tools.fuzz.exchange import Answer, require_app, send
from tools.fuzz.families import draw
from tools.fuzz.findings import Findings
from tools.fuzz.judge import Fault, judge
from tools.fuzz.shrink import shrink
from tools.fuzz.watch import Watch

SETTLE_S = 0.3
"""A stall that a case causes may begin after its answer."""
SILENCE_S = 120.0
"""So long without a token, and the endpoint is dead."""
SAMPLE_S = 5.0


class EndpointDeadError(Exception):
    """Nothing more can be learnt."""


@dataclass(frozen=True, slots=True)
class Plan:
    url: str
    seed: int
    seconds: float
    families: tuple[str, ...]
    deadline_s: float = 30.0
    stall_s: float = 1.0
    """A longer gap of the canary, less the control's, is a stall."""
    rest_every_s: float = 300.0
    round_size: int = 24
    num_clients: int = 6


class Sent(NamedTuple):
    number: int
    case: Case
    answer: Answer


@dataclass
class Figures:
    """`seen_once`: stalls and tracebacks of rounds of which no case did it again alone."""

    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seen_once: list[str] = field(default_factory=list)
    longest: Gap | None = None
    breaks: list[str] = field(default_factory=list)
    num_sent: int = 0


class Fuzzer:
    def __init__(self, plan: Plan, watch: Watch, findings: Findings) -> None:
        self.plan, self.watch, self.findings = plan, watch, findings
        self.figures = Figures()
        parts = urlsplit(plan.url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._canaries = ExitStack()
        self._canary: Canary
        self._next = 0

    async def run(self) -> None:
        sampling = asyncio.create_task(self._sample())
        try:
            await self._sing()
            await require_app(self._host, self._port, self.plan.deadline_s)
            end_s = time.monotonic() + self.plan.seconds
            self.watch.new_tracebacks()  # of the start
            while time.monotonic() < end_s:
                until_s = min(end_s, time.monotonic() + self.plan.rest_every_s)
                while time.monotonic() < until_s:
                    await self._round()
                await self._rest()
                await self._sing()
        except EndpointDeadError as error:
            self.findings.add(Fault("died", str(error)), None, self._next)
        finally:
            sampling.cancel()
            self._canaries.close()
        for fault in self.watch.grown():
            self.findings.add(fault, None)

    async def replay(self, case: Case) -> tuple[Answer, list[Fault]]:
        """Alone, beside the canary."""
        await self._sing()
        try:
            self.watch.new_tracebacks()
            return await self._alone(case)
        finally:
            self._canaries.close()

    # -- a round -------------------------------------------------------------------------

    async def _round(self) -> None:
        began_s = time.monotonic()
        numbers = range(self._next, self._next + self.plan.round_size)
        self._next = numbers.stop
        places = asyncio.Semaphore(self.plan.num_clients)

        async def one(number: int) -> Sent:
            async with places:
                case = await asyncio.to_thread(draw, self.plan.seed, number, self.plan.families)
                return Sent(number, case, await self._send(case))

        sent = await asyncio.gather(*map(one, numbers))
        self.figures.num_sent += len(sent)
        await asyncio.sleep(SETTLE_S)
        gap = self._canary.longest(began_s)
        tracebacks = self.watch.new_tracebacks()
        for each in sent:
            self.figures.outcomes[each.case.family][_outcome(each.answer)] += 1
            for fault in judge(each.case, each.answer):
                if fault.kind != "late":
                    await self._found(fault, each)
        if self.figures.longest is None or gap.stall_s > self.figures.longest.stall_s:
            self.figures.longest = gap
        late = [each for each in sent if each.answer.late]
        if gap.stall_s > self.plan.stall_s:
            await self._seek("stall", f"a gap of {gap}", _during(sent, gap))
        elif late:
            await self._seek("late", late[0].case.path, late)
        for line in dict.fromkeys(tracebacks):
            if self.findings.is_new(Fault("traceback", line)):
                await self._seek("traceback", line, sent)
            else:
                self.findings.add(Fault("traceback", line), None, sent[0].number)
        await self._take_breaks()

    async def _send(self, case: Case) -> Answer:
        return await send(case, self._host, self._port, self.plan.deadline_s)

    async def _found(self, fault: Fault, sent: Sent) -> None:
        small = None
        if self.findings.is_new(fault):

            async def does_the_same(case: Case) -> bool:
                found = judge(case, await self._send(case))
                return fault.signature in [each.signature for each in found]

            small = await shrink(sent.case, does_the_same)
        self.findings.add(fault, sent.case, sent.number, sent.answer, small)

    async def _seek(self, kind: str, what: str, suspects: Sequence[Sent]) -> None:
        """Sends each alone; those that do it again are findings."""
        is_found = False
        for sent in suspects:
            answer, faults = await self._alone(sent.case)
            for fault in faults:
                if fault.kind in (kind, "late"):
                    is_found = True
                    self.findings.add(fault, sent.case, sent.number, answer, seen_first=what)
        if not is_found:
            numbers = [sent.number for sent in suspects]
            self.figures.seen_once.append(f"{kind}: {what}; cases {numbers}")

    async def _alone(self, case: Case) -> tuple[Answer, list[Fault]]:
        await self._wait_singing()
        began_s = time.monotonic()
        answer = await self._send(case)
        await asyncio.sleep(SETTLE_S)
        await self._wait_singing()
        gap = self._canary.longest(began_s)
        faults = judge(case, answer)
        if gap.stall_s > self.plan.stall_s:
            faults.append(Fault("stall", f"a gap of {gap} by {case.name}: {case.path}"))
        faults += [Fault("traceback", line) for line in dict.fromkeys(self.watch.new_tracebacks())]
        return answer, faults

    # -- the canary, and rest ------------------------------------------------------------

    async def _sing(self) -> None:
        self._canary = self._canaries.enter_context(Canary(self.plan.url))
        await self._wait_singing()

    async def _wait_singing(self) -> None:
        try:
            await asyncio.to_thread(self._canary.wait_singing, SILENCE_S)
        except TimeoutError as error:
            raise EndpointDeadError(str(error)) from None

    async def _take_breaks(self) -> None:
        broken, self._canary.breaks[:] = list(self._canary.breaks), []
        for _, why in broken:
            self.figures.breaks.append(why)
            self.findings.add(Fault("canary broken", why), None, self._next)

    async def _rest(self) -> None:
        await asyncio.to_thread(self._canaries.close)
        for fault in await asyncio.to_thread(self.watch.rest):
            self.findings.add(fault, None, self._next)

    async def _sample(self) -> None:
        while True:
            await asyncio.to_thread(self.watch.sample)
            await asyncio.sleep(SAMPLE_S)


def _during(sent: Sequence[Sent], gap: Gap) -> list[Sent]:
    """Those that ran within the gap or just before it, the shortest first: a long one is there in
    every gap."""
    found = [
        each
        for each in sent
        if each.answer.start_s < gap.end_s and each.answer.end_s > gap.start_s - SETTLE_S
    ]
    return sorted(found, key=lambda each: each.answer.taken_s)


def _outcome(answer: Answer) -> str:
    if answer.left:
        return "left"
    if answer.late:
        return "late"
    if answer.status is None:
        return "none"
    return f"{answer.status // 100}xx" if answer.is_whole else "cut"


def summary(figures: Figures) -> dict[str, Any]:
    return {
        "num_sent": figures.num_sent,
        "outcomes": {name: dict(count) for name, count in sorted(figures.outcomes.items())},
        "longest_gap": str(figures.longest),
        "seen_once": figures.seen_once,
        "canary_breaks": figures.breaks,
    }
