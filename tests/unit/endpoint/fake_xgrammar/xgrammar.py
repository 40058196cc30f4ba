"""Instead of xgrammar in the process of trials: a grammar's text says what its compiling does."""

import os
import signal
import time
from typing import Any


class TokenizerInfo:
    @staticmethod
    def deserialize_json(text: str) -> str:
        return text


class StructuralTagItem:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields


class Compiled:
    memory_size_bytes = 7


class GrammarMatcher:
    def __init__(self, compiled: Compiled) -> None: ...


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
        return Compiled()
