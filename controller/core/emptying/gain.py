"""Moves by gain: a request that decodes leaves for an instance where its tokens come sooner.

Relief moves requests where memory is short. This is for the other case: the prompts of one instance
keep its streams waiting, while another instance computes few prompts. Both sides of a move are
times in seconds:

    gain      the tokens that are still expected after the copy * (the token gap here - the gap
              there)
    cost      a quarter of the time over which gaps are predicted, and the prompts that have to be
              computed again there because the request takes the place of what the prefix cache had

The token gap is how long a request that decodes waits for each of its tokens. A step that also
computes prompts takes as long as it may, T; a step that only decodes takes t. The prompts that an
instance has now keep it busy for its backlog W. So of the next seconds the share w, W divided by
that time and at most 1, goes into long steps, a stream gets w / T + (1 - w) / t tokens per second,
and its mean gap is the inverse of that. Only the backlog tells which instance will be slow: prompts
come in bursts, and a history knows of them too late.

How many tokens a request still emits is not known. It is expected to emit as many as it has
emitted, and at least `LEAST_EXPECTED_TOKENS`, up to its limit.

A round pairs the instance with the longest gap with that of the shortest one, and the source sends
one request at a time.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from controller.core.emptying.relief import (
    Candidate,
    MoveReason,
    NotMoved,
    ReliefRules,
    ReliefView,
)
from controller.core.load.snapshot import InstanceSnapshot
from controller.core.migration.refusals import ReliefRefusal
from controller.core.record.event_log import Number
from controller.core.value import value

LEAST_EXPECTED_TOKENS = 100
"""On Mooncake's synthetic trace half of the requests emit fewer than 70 tokens, and those that have
emitted 10 emit 187 more. Without this least number the mean latency is 0.05 s longer (2.87 s)."""
GAP_RATIO = 1.5
"""Requests leave only where the token gap is so many times as long as elsewhere."""
MARGIN = 0.25
"""A move must gain so much of the time over which gaps are predicted, which is 0.5 s by default."""
BUSY_SHARE = 0.1
"""An instance is a source while its backlog is longer than this share of the time over which gaps
are predicted, which is 0.2 s by default, and else a destination. Where all instances have prompts
to compute, moves gain little. On Mooncake's conversations at 8.4/s (simulated, steps of 50 ms, one
seed) the goodput is 0.65 with this rule and 0.57 without it, and 611 requests move instead of
1,569."""
DISPLACED_SHARE = 0.3
"""The share of cached tokens that somebody asks for again. So many of the tokens whose place a
moved request takes count as computed anew."""


def token_gap_s(snapshot: InstanceSnapshot, ahead_s: float, decode_step_s: float = 0.0) -> float:
    """The mean gap between two tokens of a request that decodes on the instance, over the next
    `ahead_s`, in seconds; 0: not known. `decode_step_s`: how long a step takes that only decodes,
    if nothing decodes there now."""
    short_s = snapshot.decode_step_s or decode_step_s
    if not short_s:
        return 0.0
    whole_s = snapshot.prefill_speed.token_s * snapshot.max_step_tokens
    long_s = max(snapshot.step_limit_s or whole_s, short_s)
    share = min(1.0, snapshot.backlog_s / ahead_s)
    return 1.0 / (share / long_s + (1.0 - share) / short_s)


@value
class Gap:
    """An instance with its token gap. `is_busy`: it has prompts to compute for a while, so that
    requests may leave it. Requests go only to instances that are not busy."""

    instance_id: str
    gap_s: float
    is_busy: bool


def gaps(statuses: Iterable[InstanceSnapshot], ahead_s: float) -> list[Gap]:
    """The token gaps of these instances over the next `ahead_s`, the longest first. Where nothing
    decodes, a step counts that takes as long as the shortest one elsewhere."""
    present = list(statuses)
    least_s = min((each.decode_step_s for each in present if each.decode_step_s), default=0.0)
    busy_s = BUSY_SHARE * ahead_s
    found = (
        Gap(each.instance_id, token_gap_s(each, ahead_s, least_s), each.backlog_s > busy_s)
        for each in present
    )
    return sorted(found, key=lambda each: (-each.gap_s, each.instance_id))


@value
class GainInSeconds:
    """What one move gains and costs."""

    num_expected_tokens: float
    copy_time_s: float
    gain_s: float
    cost_s: float

    @property
    def is_worth_it(self) -> bool:
        return self.gain_s > self.cost_s

    def numbers(self) -> Mapping[str, Number]:
        return {
            "expected_tokens": self.num_expected_tokens,
            "expected_copy_time_s": self.copy_time_s,
            "gain_s": self.gain_s,
            "cost_s": self.cost_s,
        }


class GainRules(ReliefRules):
    """The rules of a source whose order is about gain."""

    def __init__(self, view: ReliefView) -> None:
        super().__init__(view)
        step_s, self._ahead_s = view.source.decode_step_s, view.config.gain_ahead_s
        self._gap_s = token_gap_s(view.source, self._ahead_s)
        self._gap_there_s = token_gap_s(view.destination, self._ahead_s, step_s)
        self._gains: dict[str, GainInSeconds] = {}

    def reason(self) -> MoveReason | None:
        """None while a request leaves, and if the gaps do not differ enough any more."""
        is_leaving = len(self._staying) < len(self._view.candidates)
        if is_leaving or not differ(self._gap_s, self._gap_there_s):
            return None
        return MoveReason.GAIN

    def in_turn(self) -> list[Candidate]:
        running = (each for each in self._staying if not each.queued)
        return sorted(running, key=lambda each: (-self._net_s(each), each.request_id))

    def refusal(self, candidate: Candidate) -> NotMoved | None:
        if candidate.refusal is not None:
            return NotMoved(candidate.request_id, candidate.refusal)
        if not (gain := self._gain(candidate)).is_worth_it:
            return NotMoved(candidate.request_id, ReliefRefusal.GAINS_LITTLE, gain.numbers())
        return (
            self._keeps_headroom(candidate)
            or self._lacks_room(candidate)
            or self._moved_lately(candidate)
            or self._moves_often(candidate)
            or self._would_overload(candidate)
        )

    def figures(self, candidate: Candidate) -> Mapping[str, Number]:
        return {
            "token_gap_s": self._gap_s,
            "destination_token_gap_s": self._gap_there_s,
            "request_blocks": candidate.num_blocks,
            "request_tokens": candidate.num_tokens,
            **self._gain(candidate).numbers(),
        }

    def _net_s(self, candidate: Candidate) -> float:
        gain = self._gain(candidate)
        return gain.gain_s - gain.cost_s

    def _gain(self, candidate: Candidate) -> GainInSeconds:
        found = self._gains.get(candidate.request_id)
        if found is None:
            found = self._gains[candidate.request_id] = self._computed_gain(candidate)
        return found

    def _computed_gain(self, candidate: Candidate) -> GainInSeconds:
        num_expected: float = max(candidate.num_outputs, LEAST_EXPECTED_TOKENS)
        if candidate.num_tokens_left is not None:
            num_expected = min(num_expected, candidate.num_tokens_left)
        copy_time_s = self._link.copy_time_s(candidate.num_blocks)
        num_after = max(0.0, num_expected - copy_time_s / self._gap_s)
        if copy_time_s >= self._view.source.backlog_s:
            num_after = 0.0  # the prompts will be computed by then
        return GainInSeconds(
            num_expected,
            copy_time_s,
            num_after * (self._gap_s - self._gap_there_s),
            MARGIN * self._ahead_s + self._displaced_s * candidate.num_tokens,
        )

    @cached_property
    def _displaced_s(self) -> float:
        """What it costs to take the place of one cached token at the destination: the time to
        compute it, times the share of such tokens that somebody would have asked for."""
        return DISPLACED_SHARE * self._view.destination.prefill_speed.token_s


def differ(gap_s: float, there_s: float) -> bool:
    """Whether the gaps of two instances differ so much that a move may be worth it."""
    return 0.0 < there_s * GAP_RATIO < gap_s
