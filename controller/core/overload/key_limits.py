"""What one API key may use of the whole cluster, and when a request of it is refused.

A key is known by its hash (`api.settings.key_file.key_id`), never by itself.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.core.scheduler_events import DispatchRequested, RejectCode
from controller.core.settings import KeyLimits

WINDOW_S = 60.0
MOST_RETRY_S = 60


OwnLimits = Mapping[str, Mapping[str, int]]
"""By the hash of a key, those fields of `KeyLimits` that it has of its own."""
NO_KEYS: OwnLimits = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Refusal:
    code: RejectCode
    retry_after_s: int


def refusal(
    asked: DispatchRequested,
    limits: KeyLimits,
    num_live_elsewhere: int = 0,
    num_tokens_elsewhere: int = 0,
) -> Refusal | None:
    """Why this request of a key is refused; None: it is not. `elsewhere`: at other frontends.

    A key may overdraw its tokens by the requests that it has when it reaches the limit, since
    nobody knows how long an output will be. It may come again when as many tokens are older than
    a minute as it used too many, if it used them evenly.
    """
    most, num_live = limits.live_requests, asked.num_live_of_key + num_live_elsewhere
    if most and num_live > most:
        return Refusal(RejectCode.LIVE_LIMIT, 1)
    most, num_used = limits.tokens_per_minute, asked.num_tokens_of_key + num_tokens_elsewhere
    if most and num_used >= most:
        wait_s = math.ceil(WINDOW_S * (num_used - most + 1) / num_used)
        return Refusal(RejectCode.TOKEN_LIMIT, min(MOST_RETRY_S, wait_s))
    return None
