"""What a client sees when an instance dies under its stream, with replays and without.

An instance of a cluster under load is killed again and again. With replays the cluster continues
the lost requests. Without them (`replay.max_replays=0`) each client gets an error at once and sends
its request again, from the beginning or with the tokens that it has at the end of the prompt. A
pause is the longest time between two tokens of a lost stream that were new to the client.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import count, pairwise
from typing import Any

import httpx
from rich import box
from rich.table import Table

from benchmarks import results
from benchmarks.engine_plan import EnginePlan, emulated_plan, make_plan
from benchmarks.servers import LlumctlServer, ServerError, control_of, running, until
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.interrupts import stops_interrupt
from controller.api.operations.on_cluster import SetSettings, SettingsPatch
from controller.api.wire import SettingValue
from controller.api.wire.requests import RequestState
from controller.api.wire.status import ClusterState

# The client: its stream is lost with its instance, and it only waits, or sends the request again

SEND_AGAIN_S = 0.05
"""The wait after an answer without a token. The next answer usually comes from a live instance."""


class Strategy(StrEnum):
    """What the client does when its stream breaks off."""

    REPLAY = "replay"
    """The client does nothing: the cluster continues the request."""
    AGAIN = "again"
    """The client sends the request again, and waits until it has as many tokens as before."""
    APPENDED = "appended"
    """The client sends the request again, with its tokens at the end of the prompt."""


@dataclass
class Client:
    """A client with one request of `num_outputs` tokens. `came_s`: when each new token came, by
    time.perf_counter()."""

    name: str
    model: str
    prompt: Sequence[int]
    num_outputs: int
    strategy: Strategy
    tokens: list[int] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)
    num_attempts: int = 0
    error: str = ""
    """The error of the last attempt."""

    def body(self) -> dict[str, Any]:
        """The body of the next attempt."""
        had = len(self.tokens) if self.strategy is Strategy.APPENDED else 0
        return {
            "model": self.model,
            "prompt": [*self.prompt, *self.tokens[:had]],
            "max_tokens": self.num_outputs - had,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }

    async def run(self, http: httpx.AsyncClient) -> None:
        """Runs until the client has all its tokens. With replays an error is the end."""
        while len(self.tokens) < self.num_outputs:
            if self.num_attempts and self.strategy is Strategy.REPLAY:
                return
            self.num_attempts += 1
            self.error = ""
            num_before = len(self.tokens)
            try:
                await self._attempt(http)
            except httpx.HTTPError as error:
                self.error = type(error).__name__
            if len(self.tokens) == num_before:
                await asyncio.sleep(SEND_AGAIN_S)

    async def _attempt(self, http: httpx.AsyncClient) -> None:
        known = 0 if self.strategy is not Strategy.APPENDED else len(self.tokens)
        headers = {"X-Request-Id": self.name}
        async with http.stream(
            "POST", "/v1/completions", json=self.body(), headers=headers
        ) as answer:
            if answer.status_code != httpx.codes.OK:
                self.error = (await answer.aread()).decode(errors="replace")[:200]
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    self.error = str(chunk["error"])[:200]
                    return
                for choice in chunk["choices"]:
                    known = self._take(choice.get("token_ids") or [], known)

    def _take(self, token_ids: Sequence[int], known: int) -> int:
        """`known`: how many tokens of this attempt's answer came before. Returns the new number."""
        new = token_ids[max(0, len(self.tokens) - known) :]
        self.tokens += new
        self.came_s += [time.perf_counter()] * len(new)
        return known + len(token_ids)

    def longest_pause(self, since_s: float) -> tuple[float, int]:
        """The longest time between two new tokens of which the second came after `since_s`, and how
        many tokens the client had meanwhile. Raises ValueError if there is none."""
        gaps = (
            (after - before, number)
            for number, (before, after) in enumerate(pairwise(self.came_s), start=1)
            if after > since_s
        )
        return max(gaps)


# The clusters and the command

PATIENCE_S = 120.0
ON_THEIR_WAY = 20
"""At most so many tokens were on their way when the instance died. A client that gets more has
recovered."""
LIVE = (RequestState.WAITING, RequestState.RUNNING, RequestState.EVICTED)
WORDS = {
    Strategy.REPLAY: "replayed by the cluster",
    Strategy.AGAIN: "sent again",
    Strategy.APPENDED: "sent again with what came",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One lost stream. `num_had`: how many tokens its client had during the pause."""

    strategy: Strategy
    kill: int
    num_prompt: int
    num_had: int
    pause_s: float
    error: str = ""
    """Why the stream did not continue, if it ended."""

    @property
    def num_again(self) -> int:
        """How many tokens were computed a second time."""
        return self.num_prompt + self.num_had

    @property
    def num_one_by_one(self) -> int:
        """How many of these were decoded one by one."""
        return self.num_had if self.strategy is Strategy.AGAIN else 0


class Kills:
    def __init__(
        self,
        plan: EnginePlan,
        control: ControlClient,
        http: httpx.AsyncClient,
        options: argparse.Namespace,
    ) -> None:
        self._plan, self._control, self._http = plan, control, http
        self._options = options
        self._numbers = count()

    async def measure(self, strategy: Strategy) -> list[Sample]:
        changes: dict[str, SettingValue] = {
            "replay.max_replays": 3 if strategy is Strategy.REPLAY else 0
        }
        patch = SettingsPatch(changes=changes, reason="bench-recovery")
        await asyncio.to_thread(self._control.send, SetSettings(patch))
        dice = random.Random(self._options.seed)  # the same moments for each strategy
        samples: list[Sample] = []
        for kill in range(self._options.kills):
            samples += await self._kill(strategy, kill, dice)
            print(f"  {strategy}: {kill + 1} of {self._options.kills} kills", flush=True)
        return samples

    async def _kill(self, strategy: Strategy, kill: int, dice: random.Random) -> list[Sample]:
        options = self._options
        await _until(self._is_ready, "all instances to serve")
        clients = [self._client(strategy) for _ in range(options.streams)]
        tasks = [asyncio.create_task(each.run(self._http)) for each in clients]
        try:
            after = dice.randrange(options.outputs // 8, options.outputs // 2)
            await _until(lambda: all(len(c.tokens) >= after for c in clients), "all to run")
            lost = await asyncio.to_thread(self._strike, kill, clients)
            killed_s = time.perf_counter()
            enough = {each.name: len(each.tokens) + ON_THEIR_WAY for each in lost}
            await _until(
                lambda: all(len(c.tokens) >= enough[c.name] or _has_failed(c) for c in lost),
                "the lost streams to go on",
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [_sample(strategy, kill, each, killed_s) for each in lost]

    def _strike(self, kill: int, clients: Sequence[Client]) -> list[Client]:
        """Kills an instance, another one each time; returns the clients whose requests it had."""
        instances = self._control.status().instances
        victim = instances[kill % len(instances)]
        there = [each.client_id for each in self._control.requests(victim.id, LIVE).requests]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        return [each for each in clients if any(each.name in name for name in there)]

    def _client(self, strategy: Strategy) -> Client:
        number = next(self._numbers)
        prompt = self._plan.prompt(number, self._options.prompt)
        name, model = f"recovery-{number}-", self._plan.served_model_name
        return Client(name, model, prompt, self._options.outputs, strategy)

    def _is_ready(self) -> bool:
        return self._control.status().state is ClusterState.READY


def _has_failed(client: Client) -> bool:
    return client.strategy is Strategy.REPLAY and bool(client.error)


def _sample(strategy: Strategy, kill: int, client: Client, killed_s: float) -> Sample:
    if _has_failed(client):
        had = len(client.tokens)
        return Sample(strategy, kill, len(client.prompt), had, float("inf"), client.error)
    pause_s, num_had = client.longest_pause(killed_s)
    return Sample(strategy, kill, len(client.prompt), num_had, pause_s)


async def _until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(until, condition, what, PATIENCE_S)


async def measure(
    plan: EnginePlan,
    control: ControlClient,
    options: argparse.Namespace,
    samples: list[Sample],
) -> None:
    """Adds the samples of each strategy to `samples`."""
    url = f"http://127.0.0.1:{plan.port}"
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=PATIENCE_S, limits=limits, trust_env=False
    ) as http:
        kills = Kills(plan, control, http, options)
        for strategy in Strategy:
            samples += await kills.measure(strategy)


def main() -> int:
    options = _options()
    console = results.make_console()
    emulated = options.engine == "emulated"
    num_instances = options.instances or (4 if emulated else 2)
    plan = emulated_plan(num_instances) if emulated else make_plan(num_instances)
    # No request moves: it leaves its instance only when that dies.
    cluster = LlumctlServer(plan, settings={"migration.enabled": False}, emulated=emulated)
    samples: list[Sample] = []
    code = 0
    try:
        with (
            stops_interrupt(),
            running(cluster),
            control_of(plan.cluster, PATIENCE_S) as control,
        ):
            asyncio.run(measure(plan, control, options, samples))
    except KeyboardInterrupt:
        console.print("interrupted; nothing runs any more")
        return 130
    except ServerError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    except (TimeoutError, LlumctlError, httpx.HTTPError) as error:
        console.print(f"[red]cut short: {error}[/red]")
        code = 1
    console.print(_table(samples))
    figures = {"options": vars(options), "samples": [asdict(each) for each in samples]}
    console.print(f"written to {results.write('recovery', figures)}")
    return code or int(any(each.error for each in samples))


def _table(samples: Sequence[Sample]) -> Table:
    title = "streams that were lost with their instance: medians"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("strategy")
    for column in (
        *("kills", "streams", "ended", "pause, s", "max"),
        *("tokens again", "max", "one by one"),
    ):
        table.add_column(column, justify="right")
    for strategy in Strategy:
        found = [each for each in samples if each.strategy is strategy]
        if not found:
            continue
        pauses_s = [each.pause_s for each in found]
        again = [each.num_again for each in found]
        table.add_row(
            WORDS[strategy],
            str(len({each.kill for each in found})),
            str(len(found)),
            str(sum(bool(each.error) for each in found)),
            f"{statistics.median(pauses_s):.2f}",
            f"{max(pauses_s):.2f}",
            f"{statistics.median(again):.0f}",
            str(max(again)),
            f"{statistics.median(each.num_one_by_one for each in found):.0f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=("emulated", "vllm"), default="emulated")
    parser.add_argument("--instances", type=int, default=0, help="4 emulated, 2 vllm")
    parser.add_argument("--kills", type=int, default=10, help="for each strategy")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--outputs", type=int, default=400, help="tokens")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
