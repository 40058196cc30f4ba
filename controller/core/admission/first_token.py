"""When the first token of a request would come on each instance.

An instance computes its prompts one after the other. So a new prompt is begun once those that it
has are computed, and its cached beginning takes no time. What another instance has cached of it can
be fetched meanwhile over the link between them.
"""

from collections.abc import Sequence

from controller.core.admission.policies import FetchSource, Prompt
from controller.core.load.freeness import Room
from controller.core.settings import HoldingConfig


def first_token_s(rooms: Sequence[Room], prompt: Prompt, now_s: float) -> list[float]:
    """For each room, in how many seconds the prompt would be computed there and one step more would
    be over. It is written without function calls, as with 1,024 instances these lines are most of a
    decision."""
    times_s = []
    num_tokens, num_cached, source = prompt.num_tokens, prompt.num_cached, prompt.source
    num_source, free_s, source_id = 0, 0.0, ""
    if source is not None:
        num_source, free_s, source_id = source.num_tokens, source.free_s, source.instance_id
    free_s, num_rest, both = max(free_s, now_s), num_tokens - num_source, num_tokens + num_source
    for room in rooms:
        found, speed = num_cached.get(room.instance_id, 0), room.speed
        left = num_tokens - found
        time_s = left * (speed.token_s + speed.pair_s * (num_tokens + found)) + room.decode_step_s
        backlog_s = room.ready_s - now_s
        if backlog_s > 0:
            time_s += backlog_s
        # As `_may_fetch` and `_fetched_s`.
        if found < num_source and room.copy_token_s and source_id not in room.corrupt_links:
            begins_s = (room.fetched_s if room.fetched_s > free_s else free_s) - now_s
            begins_s += (num_source - found) * room.copy_token_s
            if backlog_s > begins_s:
                begins_s = backlog_s
            rest_s = num_rest * (speed.token_s + speed.pair_s * both) + room.decode_step_s
            if begins_s + rest_s < time_s:
                time_s = begins_s + rest_s
        times_s.append(time_s)
    return times_s


def _may_fetch(room: Room, source: FetchSource, num_cached: int) -> bool:
    """Whether the instance can fetch something from the source."""
    can = room.copy_token_s > 0 and source.instance_id not in room.corrupt_links
    return can and num_cached < source.num_tokens


def _fetched_s(
    room: Room, prompt: Prompt, source: FetchSource, num_cached: int, now_s: float
) -> float:
    """The time to the first token if the instance fetches what the source has."""
    begins_s = max(room.ready_s - now_s, fetch_s(room, source, num_cached, now_s))
    return begins_s + room.speed.time_s(source.num_tokens, prompt.num_tokens) + room.decode_step_s


def fetch_s(room: Room, source: FetchSource, num_cached: int, now_s: float) -> float:
    """In how many seconds the source's part of a prompt would have arrived at an instance that has
    `num_cached` tokens of it."""
    begins_s = max(room.fetched_s, source.free_s, now_s) - now_s
    return begins_s + (source.num_tokens - num_cached) * room.copy_token_s


def fetch_from(
    room: Room, prompt: Prompt, config: HoldingConfig, now_s: float
) -> FetchSource | None:
    """The source from which the instance should fetch; None if computing is about as soon."""
    source = prompt.source
    num_cached = prompt.num_cached.get(room.instance_id, 0)
    if source is None or not _may_fetch(room, source, num_cached):
        return None
    compute_s = room.speed.time_s(num_cached, prompt.num_tokens) + room.decode_step_s
    compute_s += room.backlog_s(now_s)
    gain_s = compute_s - _fetched_s(room, prompt, source, num_cached, now_s)
    return source if gain_s > config.slack_tokens * room.speed.token_s else None
