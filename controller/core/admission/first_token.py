"""When the first token of a request would come on each instance.

An instance computes its prompts one after the other. So a new prompt is begun once those that it
has are computed, and its cached beginning takes no time. Meanwhile more of it can be copied: from
the instance's host cache, or from what another instance has over the link between them.
"""

from collections.abc import Iterator, Sequence

from controller.core.admission.policies import Prompt
from controller.core.load.freeness import Room
from controller.core.settings import HoldingConfig
from controller.core.value import value


def first_token_s(rooms: Sequence[Room], prompt: Prompt, now_s: float) -> list[float]:
    """For each room, in how many seconds the prompt would be computed there and one step more would
    be over. It is written without function calls, as with 1,024 instances these lines are most of a
    decision. `copies` and `_with` are the same for one room."""
    times_s = []
    num_tokens, num_cached, in_host = prompt.num_tokens, prompt.num_cached, prompt.num_in_host
    num_source, free_s, source_id = 0, 0.0, ""
    if (source := prompt.source) is not None:
        num_source, free_s, source_id = source.num_tokens, source.free_s, source.instance_id
    free_s, num_rest, both = max(free_s, now_s), num_tokens - num_source, num_tokens + num_source
    for room in rooms:
        found, speed = num_cached.get(room.instance_id, 0), room.speed
        left = num_tokens - found
        time_s = left * (speed.token_s + speed.pair_s * (num_tokens + found)) + room.decode_step_s
        backlog_s = room.ready_s - now_s
        if backlog_s > 0:
            time_s += backlog_s
        if found < num_source and room.copy_token_s and source_id not in room.corrupt_links:
            begins_s = (room.fetched_s if room.fetched_s > free_s else free_s) - now_s
            begins_s += (num_source - found) * room.copy_token_s
            if backlog_s > begins_s:
                begins_s = backlog_s
            rest_s = num_rest * (speed.token_s + speed.pair_s * both) + room.decode_step_s
            if begins_s + rest_s < time_s:
                time_s = begins_s + rest_s
        if in_host and room.load_token_s:
            held = in_host.get(room.instance_id, 0)
            if found < held:
                begins_s = room.loaded_s - now_s if room.loaded_s > now_s else 0.0
                begins_s += (held - found) * room.load_token_s
                if backlog_s > begins_s:
                    begins_s = backlog_s
                rest_s = speed.token_s + speed.pair_s * (num_tokens + held)
                rest_s = (num_tokens - held) * rest_s + room.decode_step_s
                if begins_s + rest_s < time_s:
                    time_s = begins_s + rest_s
        times_s.append(time_s)
    return times_s


@value
class PrefixCopy:
    """The copy of the first `num_tokens` tokens of a prompt, as far as an instance lacks them, from
    what `instance_id` has: another instance, or the same one with its host cache. `arrives_s`: in
    how many seconds it would be over."""

    instance_id: str
    num_tokens: int
    arrives_s: float


def copies(room: Room, prompt: Prompt, now_s: float) -> Iterator[PrefixCopy]:
    """What the instance can copy of a prompt."""
    num_cached = prompt.num_cached.get(room.instance_id, 0)
    source = prompt.source
    if source is not None and room.copy_token_s and source.instance_id not in room.corrupt_links:
        begins_s = max(room.fetched_s, source.free_s, now_s) - now_s
        num_lacking = source.num_tokens - num_cached
        arrives_s = begins_s + num_lacking * room.copy_token_s
        if num_lacking > 0:
            yield PrefixCopy(source.instance_id, source.num_tokens, arrives_s)
    num_held = prompt.num_in_host.get(room.instance_id, 0)
    if num_held > num_cached and room.load_token_s:
        begins_s = max(room.loaded_s, now_s) - now_s
        arrives_s = begins_s + (num_held - num_cached) * room.load_token_s
        yield PrefixCopy(room.instance_id, num_held, arrives_s)


def _with(room: Room, prompt: Prompt, copy: PrefixCopy, now_s: float) -> float:
    """The time to the first token after this copy."""
    begins_s = max(room.backlog_s(now_s), copy.arrives_s)
    return begins_s + room.speed.time_s(copy.num_tokens, prompt.num_tokens) + room.decode_step_s


def copy_for(room: Room, prompt: Prompt, config: HoldingConfig, now_s: float) -> PrefixCopy | None:
    """What the instance should copy before it computes the prompt; None if computing all of it is
    about as soon."""
    found = [(_with(room, prompt, copy, now_s), copy) for copy in copies(room, prompt, now_s)]
    if not found:
        return None
    time_s, best = min(found, key=lambda each: each[0])
    num_cached = prompt.num_cached.get(room.instance_id, 0)
    compute_s = room.speed.time_s(num_cached, prompt.num_tokens) + room.decode_step_s
    gain_s = compute_s + room.backlog_s(now_s) - time_s
    return best if gain_s > config.slack_tokens * room.speed.token_s else None
