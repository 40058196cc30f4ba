"""Instead of xgrammar in the process of trials: a grammar's text says what its compiling does, or
what following it does."""

import os
import signal
import time
from typing import Any

import numpy as np

STOP, ONE, OTHER = range(3)


class TokenizerInfo(str):
    vocab_size = 40

    @staticmethod
    def deserialize_json(text: str) -> "TokenizerInfo":
        return TokenizerInfo(text)


class Row(np.ndarray[Any, Any]):
    def numpy(self) -> np.ndarray[Any, Any]:
        return self


def allocate_token_bitmask(num_rows: int, vocab_size: int) -> list[Row]:
    return [np.zeros(-(-vocab_size // 32), np.int32).view(Row) for _ in range(num_rows)]


class StructuralTagItem:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields


class Compiled:
    memory_size_bytes = 7

    def __init__(self, text: str) -> None:
        self.doing, _, self.what = text.partition(" ")


class GrammarMatcher:
    """Of a text of tokens ONE and OTHER; "burn-after 5" does not come back from the fifth, and each
    token of "slow 1.4" takes 1.4 times the CPU time of the one before it, beginning with 1 ms."""

    stop_token_ids = (STOP,)

    def __init__(self, compiled: Compiled) -> None:
        self._grammar = compiled
        self._num_accepted = 0

    def fill_next_token_bitmask(self, bitmask: list[Row]) -> None:
        ends = self._grammar.doing == "end-after" and self._num_accepted == int(self._grammar.what)
        bitmask[0][0] = 1 << STOP if ends else 1 << STOP | 1 << ONE | 1 << OTHER

    def accept_token(self, token: int) -> None:
        assert token in (ONE, OTHER)
        self._num_accepted += 1
        while self._grammar.doing == "burn-after" and self._num_accepted == int(self._grammar.what):
            pass
        if self._grammar.doing == "slow":
            ends_s = time.thread_time() + 0.001 * float(self._grammar.what) ** self._num_accepted
            while time.thread_time() < ends_s:
                pass


class GrammarCompiler:
    def __init__(self, tokenizer: str, max_threads: int, cache_enabled: bool) -> None:
        assert (tokenizer, max_threads, cache_enabled) == ("words", 1, True)

    def compile_grammar(self, text: str) -> Compiled:
        doing, _, what = text.partition(" ")
        match doing:
            case "burn":
                while True:
                    pass
            case "sleep":
                time.sleep(60)
            case "say":  # its own id, so that a test can look for it
                with open(what, "w") as file:  # noqa: PTH123
                    file.write(str(os.getpid()))
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                time.sleep(60)
            case "take":
                bytearray(int(what))
            case "raise":
                raise RuntimeError(what)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill-parent":
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(0.1)
                os._exit(0)
        return Compiled(text)
