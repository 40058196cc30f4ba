"""What a dispatch may know of the request that it is for."""

from typing import Self

from controller.core.load.snapshot import Level
from controller.core.scheduler_events import DispatchRequested
from controller.core.value import value


@value
class Newcomer:
    """`session` names the client or conversation; empty: not known.

    Each of `prefix_hashes` names the prompt from its beginning to the end of one more block of
    `prefix_hash_tokens` tokens, the last of which the prompt's end may cut. Empty: not known.
    """

    request_id: str
    level: Level
    num_prompt_tokens: int
    session: str = ""
    prefix_hashes: tuple[int, ...] = ()
    prefix_hash_tokens: int = 0

    @classmethod
    def of(cls, request: DispatchRequested, level: Level) -> Self:
        return cls(
            request.request_id,
            level,
            request.num_prompt_tokens,
            request.session,
            request.prefix_hashes,
            request.prefix_hash_tokens,
        )
