"""What the controller knows of the use of API keys: as each frontend said last, and what came to be
asked since.

A frontend's own part is exact in each of its requests (`key_use`); that of the others is as old
as their last word, which counts each of their requests that came here since. So a limit of live
requests is never exceeded while the controller is there, and a place that became free elsewhere is
found free a little later.
"""

from controller.core.overload.key_limits import NO_KEYS, OwnLimits, Refusal, refusal
from controller.core.scheduler_events import DispatchRequested, KeysTold, RejectCode
from controller.core.settings import KeyLimits
from controller.core.value import value


@value
class KeyTotal:
    """Of one key at all frontends. `num_refused` since the controller began."""

    key: str
    num_live: int
    num_tokens: int
    num_refused: int


class _Part:
    """Of one key at one frontend, as in `KeyUsed`."""

    __slots__ = (
        "num_ended",
        "num_ended_tokens",
        "num_live",
        "num_running",
        "num_running_tokens",
        "num_tokens",
    )

    def __init__(self) -> None:
        self.num_live = self.num_tokens = self.num_ended = self.num_ended_tokens = 0
        self.num_running = self.num_running_tokens = 0


class _Ended:
    """What the last requests of a key that ended put out: half of what is known is forgotten after
    so many."""

    __slots__ = ("num_requests", "num_tokens")
    MAX_REQUESTS = 256

    def __init__(self) -> None:
        self.num_requests = self.num_tokens = 0.0

    def add(self, num_requests: int, num_tokens: int) -> None:
        self.num_requests += num_requests
        self.num_tokens += num_tokens
        if self.num_requests >= self.MAX_REQUESTS:
            self.num_requests /= 2
            self.num_tokens /= 2


class KeyTable:
    """`limits` of each key, but for those that it has of its own."""

    def __init__(self, limits: KeyLimits, own: OwnLimits = NO_KEYS) -> None:
        self.limits = limits
        self._own = own
        self._parts: dict[str, dict[str, _Part]] = {}
        """By key, by frontend."""
        self._num_refused: dict[str, dict[RejectCode, int]] = {}
        self._ended: dict[str, _Ended] = {}

    def limits_of(self, key: str) -> KeyLimits:
        return self.limits.of(key, self._own)

    def told(self, told: KeysTold) -> None:
        """Takes a frontend's word."""
        for used in told.keys:
            part = self._part(used.key, told.frontend_id)
            if used.num_ended < part.num_ended:  # the frontend began anew
                part.num_ended = part.num_ended_tokens = 0
            self._ended.setdefault(used.key, _Ended()).add(
                used.num_ended - part.num_ended, used.num_ended_tokens - part.num_ended_tokens
            )
            part.num_live, part.num_tokens = used.num_live, used.num_tokens
            part.num_ended, part.num_ended_tokens = used.num_ended, used.num_ended_tokens
            part.num_running, part.num_running_tokens = used.num_running, used.num_running_tokens

    def mean_output(self, key: str) -> float:
        """Tokens that a request of the key put out lately, in the mean: those that ended, and those
        that run with what they put out so far. 0 before the first token."""
        ended, running = self._ended.get(key, _Ended()), self._parts.get(key, {}).values()
        num_requests = ended.num_requests + sum(part.num_running for part in running)
        num_tokens = ended.num_tokens + sum(part.num_running_tokens for part in running)
        return num_tokens / num_requests if num_requests else 0.0

    def asked(self, request: DispatchRequested) -> Refusal | None:
        """Takes a new request into account; returns why it is refused, if it is."""
        key = request.api_key
        if not key:
            return None
        parts = self._parts.get(key, {})
        others = [part for name, part in parts.items() if name != request.frontend_id]
        found = refusal(
            request,
            self.limits_of(key),
            sum(part.num_live for part in others),
            sum(part.num_tokens for part in others),
        )
        if found is not None and not request.replayed:
            by_code = self._num_refused.setdefault(key, {})
            by_code[found.code] = by_code.get(found.code, 0) + 1
            return found
        part = self._part(key, request.frontend_id)
        # A request that is asked for again has old numbers; the frontend's next word has new ones.
        part.num_live = max(part.num_live, request.num_live_of_key)
        num_tokens = request.num_tokens_of_key + request.num_prompt_tokens
        part.num_tokens = max(part.num_tokens, num_tokens)
        return None

    def frontend_died(self, frontend_id: str) -> None:
        """Its live requests are over. Its tokens are forgotten, too."""
        for parts in self._parts.values():
            parts.pop(frontend_id, None)

    def totals(self) -> list[KeyTotal]:
        """By key."""
        return [
            KeyTotal(
                key,
                sum(part.num_live for part in parts.values()),
                sum(part.num_tokens for part in parts.values()),
                sum(self._num_refused.get(key, {}).values()),
            )
            for key, parts in sorted(self._parts.items())
        ]

    def _part(self, key: str, frontend_id: str) -> _Part:
        return self._parts.setdefault(key, {}).setdefault(frontend_id, _Part())
