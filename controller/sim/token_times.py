"""When the requests of one batch get their tokens, without a look at each request in each step.

All that decode get theirs at the same moments. So those are noted once per batch, and a request is
told only of its first token in the batch and, when it leaves, of what it has seen.
"""

from controller.sim.pauses import Gaps
from controller.sim.request_run import RequestRun


class TokenTimes:
    def __init__(self) -> None:
        self._gaps = Gaps()
        self._last_s = 0.0
        self._joined: list[RequestRun] = []
        """Requests that decode from the next step on."""

    def join(self, run: RequestRun, now_s: float) -> None:
        run.decoding_since_s = now_s
        self._joined.append(run)

    def prefilled(self, run: RequestRun, now_s: float) -> None:
        """The request gets the token that its prefill ends with, and joins."""
        run.token(now_s)
        self.join(run, now_s)

    def decoded(self, end_s: float) -> None:
        """A step in which all decoding requests got a token ended then."""
        self._gaps.add(end_s, end_s - self._last_s)
        self._last_s = end_s
        if self._joined:
            for run in self._joined:
                run.token(end_s)
                run.decoding_since_s = end_s
            self._joined.clear()

    def decoded_on(self, end_s: float, longest_s: float) -> None:
        """After one such step there were others, the longest of which took so long; the last one
        ended then."""
        self._gaps.add(end_s, longest_s)
        self._last_s = end_s

    def leave(self, run: RequestRun) -> None:
        """The request leaves the batch after the step that has just ended. Nothing happens to one
        that does not decode."""
        since_s = run.decoding_since_s
        if since_s is None:
            return
        if run in self._joined:
            self._joined.remove(run)
        else:
            run.longest_pause_s = max(run.longest_pause_s, self._gaps.longest_since(since_s))
            run.last_token_s = self._last_s
        run.decoding_since_s = None
