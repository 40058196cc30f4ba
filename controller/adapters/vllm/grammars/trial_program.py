"""The process in which grammars are tried: each is compiled and followed for a few tokens in a fork
of this process, within limits.

This is a program (trials.py starts it), so that it needs neither vLLM nor the rest of this package:
265 MB and 2.5 s of CPU time instead of 552 MB and 7 s. The process itself compiles nothing. For
each grammar it forks, which takes milliseconds, and the kernel ends the fork:

- by SIGPROF when it has used its CPU time, or MAX_STEP_S at one token; by SIGALRM when its time is
  over;
- by failing its allocations beyond the limit;
- by SIGIO when the frontend closes its end of the socket, because the client has left.

So no grammar outlives its limits or its client, whatever the compiler does with it, and nothing of
it stays in memory. If a fork ends without an answer, its grammar was too costly.

The control socket brings the setup (a length in 8 bytes, then JSON), then one byte for each
grammar, with a socket attached. That socket brings the grammar as JSON, until the parent shuts its
side down, and takes the verdict back as JSON.

A grammar that compiles at once may take a minute at a token: `((.{1,300}[^a])?)+` compiles in 0.01
s, and its 24th token takes 2.7 s. So a grammar is also followed along a text that it allows, drawn
with a fixed seed. A text that somebody chose on purpose may be slower; grammar_guard.py ends such a
request.

Touch points (xgrammar 0.2.8): `TokenizerInfo.deserialize_json`, `GrammarCompiler` and
`GrammarMatcher` as vLLM 0.32 calls them (v1/structured_output/backend_xgrammar.py
`compile_grammar`, `XgrammarGrammar`).
"""

import fcntl
import gc
import json
import os
import random
import re
import resource
import select
import signal
import socket
import statistics
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

LENGTH = struct.Struct("!Q")
# With this niceness a fork gets a third of the CPU share of an engine that runs on the CPU.
NICENESS = 5
# A fork that gets no grammar for this long ends.
READ_TIMEOUT_S = 60.0
MAX_STEP_S = 0.25
"""The CPU time that a token may take, for its bitmask and for its acceptance each."""
WALK_TOKENS = 64
# The walk along a text ends once its tokens have taken this long. A good grammar takes up to 10 ms
# a token; 64 such tokens would take more than the 0.5 s of a short trial.
WALK_S = 0.25
GROWING = 2
"""If a token takes more than this many times the median, the grammar gets slower with its text.
Such a grammar is followed beyond WALK_S, until a token takes more than MAX_STEP_S.
`(([a-z]{0,50}){0,50}){0,50}` takes 2, 13, 137 and 242 ms for its tokens; without this rule the load
of the machine decided whether WALK_S or MAX_STEP_S ended its trial."""
# Matches the place in the compiler's source with which its messages begin.
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def serve(control: socket.socket) -> None:
    """Serves until the parent closes the control socket."""
    setup = json.loads(_read(control, *LENGTH.unpack(_read(control, LENGTH.size))))
    import numpy  # noqa: F401 - so that forks have both
    import xgrammar

    tokenizer = xgrammar.TokenizerInfo.deserialize_json(setup["tokenizer"])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets forks that have ended
    gc.freeze()  # so that a collection in a fork does not copy the pages that it shares
    while True:
        sign, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sign:
            return
        if os.fork() == 0:
            try:
                control.close()
                _try(socket.socket(fileno=sockets[0]), tokenizer, setup)
            finally:
                os._exit(0)
        os.close(sockets[0])


def _try(parent: socket.socket, tokenizer: Any, setup: dict[str, Any]) -> None:
    signal.setitimer(signal.ITIMER_REAL, READ_TIMEOUT_S)
    pieces = []
    while piece := parent.recv(1 << 16):
        pieces.append(piece)
    grammar = json.loads(b"".join(pieces))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)  # the compiler's warnings quote the grammar
    os.nice(NICENESS)
    _limit(grammar["cpu_s"], grammar["wall_s"], grammar["max_bytes"])
    _end_with(parent)
    try:
        verdict: Mapping[str, float | str]
        verdict = try_grammar(grammar["kind"], grammar["text"], tokenizer, setup)
    except MemoryError:
        return
    except Exception as error:
        if "bad_alloc" in str(error):
            return
        verdict = {"error": _PLACE.sub("", str(error)).strip()[:1000]}
    fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) & ~os.O_ASYNC)
    parent.sendall(json.dumps(verdict).encode())


def try_grammar(kind: str, text: str, tokenizer: Any, setup: dict[str, Any]) -> dict[str, float]:
    """Compiles the grammar as an engine will, and follows it. Returns the size of the compiled
    grammar in bytes, and the CPU time of a token. Raises whatever the compiler raises."""
    import xgrammar

    # The compiler has a cache, although it is empty: without a cache it works differently.
    compiler = xgrammar.GrammarCompiler(
        tokenizer, max_threads=setup["num_threads"], cache_enabled=True
    )
    match kind:
        case "json":
            compact = setup["disable_any_whitespace"]
            compiled = compiler.compile_json_schema(
                text, any_whitespace=not compact, separators=(",", ":") if compact else None
            )
        case "regex":
            compiled = compiler.compile_regex(text)
        case "lark":
            compiled = compiler.compile_lark(text)
        case "ebnf":
            compiled = compiler.compile_grammar(text)
        case "structural_tag":
            compiled = compiler.compile_structural_tag(*_structural_tag(text))
        case _:
            raise ValueError(f"no grammar is of kind {kind}")
    step_s = _walk(xgrammar.GrammarMatcher(compiled), tokenizer.vocab_size)
    return {"num_bytes": compiled.memory_size_bytes, "step_s": step_s}


def _walk(matcher: Any, vocab_size: int) -> float:
    """Follows the grammar along a text that it allows. Returns the median of the tokens' CPU times,
    which the slow first calls of a fork do not change. A token that takes more than MAX_STEP_S ends
    this process."""
    import numpy as np
    import xgrammar

    draw = random.Random(0)
    stop_ids = list(matcher.stop_token_ids)
    bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)
    bits = bitmask[0].numpy().view(np.uint8)
    steps_s: list[float] = []
    while len(steps_s) < WALK_TOKENS and (sum(steps_s) < WALK_S or _is_growing(steps_s)):
        began_s = time.thread_time()
        signal.setitimer(signal.ITIMER_PROF, MAX_STEP_S)
        matcher.fill_next_token_bitmask(bitmask)
        steps_s.append(time.thread_time() - began_s)
        # The text is continued for as long as the grammar allows, because costs grow with the text.
        allowed = np.unpackbits(bits, count=vocab_size, bitorder="little")
        allowed[stop_ids] = 0
        going_on = np.flatnonzero(allowed)
        if not going_on.size:
            break
        began_s = time.thread_time()
        signal.setitimer(signal.ITIMER_PROF, MAX_STEP_S)
        matcher.accept_token(int(draw.choice(going_on)))
        steps_s[-1] += time.thread_time() - began_s
    return statistics.median(steps_s)


def _is_growing(steps_s: list[float]) -> bool:
    return steps_s[-1] > GROWING * statistics.median(steps_s)


def _structural_tag(text: str) -> tuple[Any, ...]:
    import xgrammar

    tag = json.loads(text)
    if "structures" not in tag:
        return (text,)
    items = [
        xgrammar.StructuralTagItem(
            begin=found["begin"], schema=json.dumps(found["schema"]), end=found["end"]
        )
        for found in tag["structures"]
    ]
    return items, tag["triggers"]


def _limit(cpu_s: float, wall_s: float, max_bytes: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, wall_s)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    limit = _data_bytes() + max_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _data_bytes() -> int:
    """How much memory of its own this process already has."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    raise OSError("no VmData in /proc/self/status")


def _end_with(parent: socket.socket) -> None:
    """Makes the kernel end this process when the parent closes its end of the socket."""
    fcntl.fcntl(parent, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(parent, fcntl.F_SETFL, fcntl.fcntl(parent, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(parent, 0)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(0)


def _read(source: socket.socket, num_bytes: int) -> bytes:
    found = bytearray()
    while len(found) < num_bytes:
        piece = source.recv(num_bytes - len(found))
        if not piece:
            raise SystemExit  # the parent is gone
        found += piece
    return bytes(found)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # this process ends with its parent
    serve(socket.socket(fileno=int(sys.argv[1])))
