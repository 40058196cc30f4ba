"""What a frontend tells the controller of a prompt's beginning, so that requests that begin alike
can go where that is in the prefix cache.

A few hashes, which name the prompt up to the end of each of its leading blocks; no text and no
tokens. They stay in the memory of the controller and the frontends: recordings have hashes of their
own, under a key. It hashes nothing while the controller does not ask.
"""

from collections.abc import Sequence
from hashlib import blake2b

from controller.core.record.prefix_hashes import prefix_hashes

HASH_TOKENS = 256
"""Coarser than an engine's blocks: a cached beginning that is shorter saves less than a step."""
MAX_HASHES = 64
"""16,384 tokens, which take 0.4 ms of the event loop and 0.6 KB of the message."""


class PromptPrefixes:
    def __init__(self) -> None:
        self._on = False

    def switch(self, on: bool) -> None:
        self._on = on

    def of(self, token_ids: Sequence[int], *apart: str | None) -> tuple[int, ...]:
        """Prompts with other values in `apart` (a cache salt, an adapter) share no cached blocks,
        and no hashes. Empty while it is switched off."""
        if not self._on:
            return ()
        key = b"" if not any(apart) else blake2b(repr(apart).encode(), digest_size=64).digest()
        leading = token_ids[: HASH_TOKENS * MAX_HASHES]
        return tuple(int.from_bytes(each) for each in prefix_hashes(key, leading, HASH_TOKENS))
