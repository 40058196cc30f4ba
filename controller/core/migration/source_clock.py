"""When the source of a move repeats what it said, and when it gives up waiting.

A stage that is copied while the request decodes on costs the request nothing, so the source waits
for as long as the bytes need under the bandwidth limit, and longer. The last copy stops the
request, so nothing extends its time. The destination is at fault only if it said nothing, or took
none of the bytes that were there for it.
"""

from controller.core.migration.protocol import MoveTiming
from controller.core.migration.source_terms import SourceState, TimedOut, TookTooLong

LIMIT_SLACK = 2.0
"""A stage may take this many times what it alone would need under the limit: links are shared."""

_S = SourceState
_COPYING = (_S.COPYING, _S.SUSPENDED)


class SourceClock:
    """The clock of one move: the machine sets when something happened last, and gives the time
    with each question."""

    def __init__(self, now_s: float, timing: MoveTiming) -> None:
        self._timing = timing
        self.since_s = now_s
        """When the move came to its state."""
        self.said_s = now_s
        """When the source last said something."""
        self.working_s = float("-inf")
        """When the destination last said that it works on it."""
        self.copy_time_s = 0.0
        """The least time that the copy of this stage takes under the bandwidth limit."""

    @property
    def last_copy_fits(self) -> bool:
        """If it does not fit, the request would be stopped for nothing."""
        return self.copy_time_s <= self._timing.suspended_timeout_s

    def may_forget(self, now_s: float) -> bool:
        return now_s >= self.since_s + self._timing.memory_s

    def should_repeat(self, now_s: float) -> bool:
        return now_s - self.said_s >= self._timing.retry_s

    def should_say_something(self, now_s: float) -> bool:
        """Without a word in time the destination's lease would run out."""
        return now_s - self.said_s >= self._timing.lease_s / 4

    def gives_up(
        self, state: SourceState, now_s: float, stalled_s: float
    ) -> TimedOut | TookTooLong | None:
        """`stalled_s`: how long the destination has taken none of the bytes that were ready."""
        timing = self._timing
        if now_s - self.since_s < self._patience_s(state) or self._is_worked_on(state, now_s):
            return None
        flowing = state in _COPYING and stalled_s < timing.answer_timeout_s / 2
        return TookTooLong() if flowing or state is _S.SUSPENDING else TimedOut()

    def _is_worked_on(self, state: SourceState, now_s: float) -> bool:
        """The destination said lately that its engine is in a long step. That is believed for
        `stage_timeout_s`."""
        if state not in (_S.PRE_ALLOCATING, _S.COMMITTING):
            return False
        heard_lately = now_s - self.working_s < self._timing.answer_timeout_s
        return heard_lately and now_s - self.since_s < self._timing.stage_timeout_s

    def _patience_s(self, state: SourceState) -> float:
        timing = self._timing
        match state:
            case _S.PRE_ALLOCATING | _S.COMMITTING:
                return timing.answer_timeout_s
            case _S.COPYING:
                return timing.stage_timeout_s + LIMIT_SLACK * self.copy_time_s
            case _S.SUSPENDING:
                return timing.stage_timeout_s
            case _S.SUSPENDED:
                return timing.suspended_timeout_s
            case _S.KEPT | _S.ENDED:
                return timing.lease_s
        return float("inf")
