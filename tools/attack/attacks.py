"""What a stranger can do to an endpoint: one function per attack, run again and again.

Each counts what came of its requests in `Target.outcomes`: a status, or how none came.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from llumctl.lab.bench_client import Answer as Kept
from llumctl.lab.bench_client import Connection, Endpoint, ExchangeError
from tools.fuzz.case import HOST, Case, encode, head, post
from tools.fuzz.exchange import Answer, send

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
DEADLINE_S = 60.0
USER = {"role": "user", "content": "tell me of the river"}
# ZMTP 3.1: signature, version, mechanism CURVE, and as-server, filled to 64 bytes.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
# A command whose length, 8 GiB, stands in 8 bytes.
LARGE_FRAME = b"\x06" + (8 << 30).to_bytes(8, "big")


@dataclass
class Target:
    """`inboxes`: ports of the members, which are not for strangers."""

    host: str
    port: int
    inboxes: tuple[int, ...] = ()
    scale: float = 1.0
    """Of the number of requests and connections; small ones for tests."""
    outcomes: Counter[str] = field(default_factory=Counter)
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://{self.host}:{self.port}")

    def num(self, count: int) -> int:
        return max(1, round(count * self.scale))

    async def send(self, case: Case) -> Answer:
        answer = await send(case, self.host, self.port, DEADLINE_S)
        self.outcomes[outcome(answer)] += 1
        return answer

    async def send_all(self, cases: Iterable[Case]) -> None:
        await asyncio.gather(*(self.send(case) for case in cases))


def outcome(answer: Answer) -> str:
    if answer.left:
        return "left"
    if answer.late:
        return f"none in {DEADLINE_S:.0f} s"
    if answer.status is None:
        return "closed without an answer"
    return str(answer.status) if answer.is_whole else f"{answer.status}, cut"


def text(**fields: Any) -> Case:
    return post(
        "", "", TEXT, encode({"model": "embedded", "prompt": "x", "max_tokens": 4} | fields)
    )


def chat(**fields: Any) -> Case:
    body = {"model": "embedded", "messages": [USER], "max_tokens": 4}
    return post("", "", CHAT, encode(body | fields))


def schema(found: object, **fields: Any) -> Case:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}
    return chat(response_format=form, **fields)


async def long_patterns(target: Target) -> None:
    """220 bytes whose validation took a frontend 38 s."""
    many = {f"p{n}": {"type": "string", "pattern": "[a-z]{1,300}[0-9]{1,300}"} for n in range(300)}
    patterns = (
        "[a-z]{1,10000}",
        "[a-z]{1,4000}[0-9]{1,4000}",
        "([a-z]{1,99}){1,99}",
        "[^a]{0,30000}",
    )
    await target.send_all(
        [
            *(schema({"type": "string", "pattern": pattern}) for pattern in patterns),
            *(text(structured_outputs={"regex": pattern}) for pattern in patterns),
            schema({"type": "object", "properties": many}),
        ]
    )


async def slow_compiles(target: Target) -> None:
    """Their clients leave before the engine is done with them."""
    count = target.dice.choice((100, 300, 500))
    patterned = {f"^k{n}[a-z]{{1,40}}$": {"type": "string"} for n in range(count)}
    words = [f"{n} " + "long word " * 5000 for n in range(40)]
    parts = {f"p{n}": {"enum": [f"{n}-{m}" for m in range(60)]} for n in range(100)}
    cases = (
        schema({"type": "object", "patternProperties": patterned}),
        schema({"enum": words}),
        text(structured_outputs={"choice": words}),
        schema({"type": "object", "properties": parts, "minProperties": 50}),
        text(
            structured_outputs={"grammar": "root ::= " + " | ".join(f'"{w[:90]}"' for w in words)}
        ),
    )
    await target.send_all(replace(case, leaves_after_s=3.0) for case in cases)


async def deep_arguments(target: Target) -> None:
    """Brackets within a string, tools that are none: what ended in a 500."""
    named = {"type": "function", "function": {"name": "f"}}
    calls = [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": "[" * 100_000 + "]" * 100_000},
        }
    ]
    await target.send_all(
        [
            chat(messages=[USER, {"role": "assistant", "tool_calls": calls}]),
            chat(tools=[{"type": "function"}], tool_choice=named),
            chat(tools=[{"type": "no such"}], tool_choice=named),
            chat(tools=[{}], tool_choice=named),
            chat(tools=[named], tool_choice={"type": "function", "function": {}}),
        ]
    )


async def large_bodies(target: Target) -> None:
    """Millions of values: within the limit of bytes, beyond that of an event loop."""
    bodies = (
        b'"prompt": [' + b"1," * 950_000 + b"1]",
        b'"prompt": [' + b"[1]," * 500_000 + b"[1]]",
        b'"prompt": "x", "x": [' + b"{}," * 650_000 + b"1]",
        b'"prompt": "' + b"word " * 400_000 + b'"',
        b'"prompt": "x", "stop": [' + b'"a",' * 500_000 + b'"a"]',
    )
    for body in bodies:
        await target.send(post("", "", TEXT, b'{"model": "embedded", ' + body + b"}"))


async def strangers(target: Target) -> None:
    """Connections to the members' inboxes that claim frames of 8 GiB and send as they may."""

    async def one(port: int, opening: bytes) -> None:
        try:
            _, writer = await asyncio.open_connection(target.host, port)
        except OSError:
            target.outcomes["refused"] += 1
            return
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(8.0):
                writer.write(opening)
                for _ in range(64):
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                    await asyncio.sleep(0.05)
        target.outcomes["sent"] += 1
        writer.transport.abort()

    openings = (GREETING + LARGE_FRAME, LARGE_FRAME, b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"")
    num_each = target.num(150)
    await asyncio.gather(
        *(
            one(port, openings[n % 2 if n % 8 else n % 5])
            for port in target.inboxes
            for n in range(num_each)
        )
    )


async def kept_connections(target: Target) -> None:
    """Waves of short completions over the same connections, about as far apart as the server
    keeps an idle one."""
    message = text(prompt=[1], max_tokens=1)
    request = b"".join(message.pieces())
    kept: list[Connection] = []

    async def one(number: int) -> None:
        try:
            if len(kept) <= number or not kept[number].is_open:
                found = await Connection.open(target.endpoint)
                if len(kept) > number:
                    kept[number] = found
            connection = kept[number] if len(kept) > number else found
            answer = Kept()
            async with asyncio.timeout(DEADLINE_S):
                await connection.exchange(request, answer)
            target.outcomes[str(answer.status)] += 1
        except TimeoutError:
            target.outcomes[f"none in {DEADLINE_S:.0f} s"] += 1
        except ExchangeError as error:
            broken = "closed without an answer" if error.kind == "broken" else error.kind
            target.outcomes[broken] += 1

    num_clients = target.num(400)
    for _ in range(num_clients):
        with contextlib.suppress(ExchangeError):
            kept.append(await Connection.open(target.endpoint))
    for pause_s in (0.0, 0.2, 4.98, 5.0):
        await asyncio.sleep(pause_s * min(1.0, target.scale * 10))
        await asyncio.gather(*map(one, range(num_clients)))
    for connection in kept:
        connection.close()


async def many_choices(target: Target) -> None:
    """n = 128 of 8 prompts, from 8 clients: 8,192 answers."""
    prompts = [f"the river {n}" for n in range(8)]
    await target.send_all(
        text(prompt=prompts, n=target.num(128), max_tokens=2, temperature=1) for _ in range(8)
    )


async def strange_heads(target: Target) -> None:
    """Foreign hosts, hosts twice, long roles, booleans for tokens."""
    body = encode({"model": "embedded", "prompt": [1], "max_tokens": 1})
    for hosts in (
        ("evil.example",),
        (HOST.decode(), "evil.example"),
        (HOST.decode(), HOST.decode()),
        (),
    ):
        own = (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
        opened = head("POST", TEXT, *(("Host", each) for each in hosts), *own)
        await target.send(Case("", "", opened, body))
    await target.send_all(
        [
            chat(messages=[{"role": "x" * (1 << 20), "content": "x"}]),
            chat(messages=[USER | {"name": "x" * (1 << 20)}]),
            text(prompt=[True]),
            text(model="x" * (1 << 20)),
            text(best_of=3),
        ]
    )


async def overload(target: Target) -> None:
    """More streams than there are places, then many that leave midway."""
    long = text(prompt="x " * 200, max_tokens=100, ignore_eos=True, stream=True)
    leaving = replace(long, leaves_after_s=0.5)
    await target.send_all([*[long] * target.num(300), *[leaving] * target.num(600)])


async def slow_clients(target: Target) -> None:
    """Bodies that come drop by drop, heads that never end, readers that do not read."""
    slow = replace(text(user="x" * 300_000), cut_at=tuple(range(0, 300_000, 20_000)), pause_s=0.4)
    endless = Case("", "", head("POST", TEXT, ("Host", HOST.decode()))[:-2], leaves_after_s=6.0)
    silent = Case("", "", b"", leaves_after_s=6.0)
    deaf = replace(text(max_tokens=2000, n=8, ignore_eos=True, stream=True), leaves_after_s=3.0)
    cases = [slow] * target.num(100) + [endless] * target.num(200) + [silent] * target.num(200)
    await target.send_all([*cases, *[deaf] * target.num(20)])


ATTACKS: dict[str, Callable[[Target], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        long_patterns,
        slow_compiles,
        deep_arguments,
        large_bodies,
        strangers,
        kept_connections,
        many_choices,
        strange_heads,
        overload,
        slow_clients,
    )
}
