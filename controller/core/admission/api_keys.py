"""What API keys use of the whole cluster, and when a request of a key is refused.

A key is known only by its hash (`api.settings.key_file.key_id`). Each frontend counts its own
requests (`KeyUse`); each choice of `n` > 1 counts as a request with its prompt. The controller
decides (`KeyTable`). It knows what each frontend said last and which requests have come since. Each
request of a frontend brings the frontend's exact counts; the counts of the other frontends are as
old as their last messages, plus the requests that came from those frontends since. So a limit of
live requests is never exceeded while the controller is alive, and a place that became free at
another frontend is noticed a little later. While the controller is away, each frontend applies its
share of the limits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from controller.core.record.windows import CountWindow
from controller.core.scheduler_events import DispatchRequested, KeysTold, KeyUsed, RejectCode
from controller.core.settings import KeyLimits
from controller.core.value import value

WINDOW_S = 60.0
MOST_RETRY_S = 60


OwnLimits = Mapping[str, Mapping[str, int]]
"""By the hash of a key, the limits that were set for this key alone, each under its field's name in
`KeyLimits`."""
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
    """Why this request of a key is refused; None if it is not refused. `elsewhere`: the key's use
    at other frontends.

    A key may exceed its tokens by the requests that it has when it reaches the limit, since it is
    not known how long an output will be. The client may come again when enough of the key's tokens
    are older than a minute; that time is estimated as if the key had used them evenly.
    """
    most, num_live = limits.live_requests, asked.num_live_of_key + num_live_elsewhere
    if most and num_live > most:
        return Refusal(RejectCode.LIVE_LIMIT, 1)
    most, num_used = limits.tokens_per_minute, asked.num_tokens_of_key + num_tokens_elsewhere
    if most and num_used >= most:
        wait_s = math.ceil(WINDOW_S * (num_used - most + 1) / num_used)
        return Refusal(RejectCode.TOKEN_LIMIT, min(MOST_RETRY_S, wait_s))
    return None


@value
class KeyTotal:
    """The use of one key at all frontends. `num_refused`: how many requests were refused since the
    controller began."""

    key: str
    num_live: int
    num_tokens: int
    num_refused: int


class _Part:
    """The use of one key at one frontend, as in `KeyUsed`."""

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
    """How many requests of a key ended, and how many tokens they put out. At MAX_REQUESTS both
    counts are halved, so that recent requests count more."""

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
    """The controller's part. `limits`: the limits of every key that has no limits of its own in
    `own`."""

    def __init__(self, limits: KeyLimits, own: OwnLimits = NO_KEYS) -> None:
        self.limits = limits
        self._own = own
        self._parts: dict[str, dict[str, _Part]] = {}
        """The use of each key at each frontend: by key, then by frontend."""
        self._num_refused: dict[str, dict[RejectCode, int]] = {}
        self._ended: dict[str, _Ended] = {}

    def limits_of(self, key: str) -> KeyLimits:
        return self.limits.of(key, self._own)

    def told(self, told: KeysTold) -> None:
        """Takes what a frontend reports of its keys."""
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
        """The mean number of output tokens of the key's last requests: of the requests that ended,
        and of the requests that run with their tokens so far. 0 before the first token."""
        ended, running = self._ended.get(key, _Ended()), self._parts.get(key, {}).values()
        num_requests = ended.num_requests + sum(part.num_running for part in running)
        num_tokens = ended.num_tokens + sum(part.num_running_tokens for part in running)
        return num_tokens / num_requests if num_requests else 0.0

    def asked(self, request: DispatchRequested) -> Refusal | None:
        """Takes a new request into account; returns why the request is refused, if it is
        refused."""
        key = request.api_key
        if not key:
            return None
        parts = self._parts.get(key, {})
        others = [part for name, part in parts.items() if name != request.frontend_id]
        refused = refusal(
            request,
            self.limits_of(key),
            sum(part.num_live for part in others),
            sum(part.num_tokens for part in others),
        )
        if refused is not None and not request.replayed:
            by_code = self._num_refused.setdefault(key, {})
            by_code[refused.code] = by_code.get(refused.code, 0) + 1
            return refused
        part = self._part(key, request.frontend_id)
        # A request that is asked for again has old numbers; the frontend's next message has new
        # ones.
        part.num_live = max(part.num_live, request.num_live_of_key)
        num_tokens = request.num_tokens_of_key + request.num_prompt_tokens
        part.num_tokens = max(part.num_tokens, num_tokens)
        return None

    def frontend_died(self, frontend_id: str) -> None:
        """Forgets a dead frontend's live requests, and its tokens too."""
        for parts in self._parts.values():
            parts.pop(frontend_id, None)

    def totals(self) -> list[KeyTotal]:
        """The use of each key, in the order of the keys."""
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


@dataclass(slots=True)
class _Live:
    key: str
    num_prompt_tokens: int
    began_s: float
    num_output_tokens: int = 0


class _Used:
    __slots__ = (
        "num_ended",
        "num_ended_tokens",
        "num_live",
        "num_running",
        "num_running_tokens",
        "window",
    )

    def __init__(self) -> None:
        self.num_live = 0
        self.num_ended = self.num_ended_tokens = 0
        self.num_running = self.num_running_tokens = 0
        """How many of the live requests have output, and how many output tokens."""
        self.window = CountWindow()


class KeyUse:
    """What a frontend counts of its own requests by their API keys: live requests and tokens.

    A prompt counts as soon as its request comes. So if many requests come at the same time, the
    check of each request sees the earlier ones. If the request never gets an instance, its prompt
    is subtracted again. Requests without a key cost nothing here. Times are by the frontend's
    clock, and must never decrease.
    """

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._by_key: dict[str, _Used] = {}
        """What each key uses at this frontend. Unknown keys are refused before they get here, so
        the keys in it all exist."""
        self._told: dict[str, KeyUsed] = {}

    def began(self, request: DispatchRequested, now_s: float) -> DispatchRequested:
        """Counts the request; returns it with what its key uses here: the live requests including
        this one, and the tokens before it."""
        if not request.api_key:
            return request
        used = self._by_key.setdefault(request.api_key, _Used())
        num_tokens = used.window.total(now_s)
        self._live[request.request_id] = _Live(request.api_key, request.num_prompt_tokens, now_s)
        used.num_live += 1
        used.window.add(request.num_prompt_tokens, now_s)
        # The controller counts the request when it is asked about it. If the request is given up,
        # this entry makes the frontend report that.
        self._told.pop(request.api_key, None)
        return replace(request, num_live_of_key=used.num_live, num_tokens_of_key=num_tokens)

    def emitted(self, request_id: str, num_tokens: int, now_s: float) -> None:
        if live := self._live.get(request_id):
            used = self._by_key[live.key]
            used.window.add(num_tokens, now_s)
            used.num_running += live.num_output_tokens == 0 < num_tokens
            used.num_running_tokens += num_tokens
            live.num_output_tokens += num_tokens

    def ended(self, request_id: str, ran: bool) -> None:
        """Notes that the request has ended. `ran`: whether it ever got an instance."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        used = self._by_key[live.key]
        used.num_live -= 1
        used.num_running -= live.num_output_tokens > 0
        used.num_running_tokens -= live.num_output_tokens
        if ran:
            used.num_ended += 1
            used.num_ended_tokens += live.num_output_tokens
        else:
            used.window.take_back(live.num_prompt_tokens, live.began_s)

    def news(self, now_s: float) -> tuple[KeyUsed, ...]:
        """Returns the use of the keys whose use has changed since it was reported last."""
        changed: list[KeyUsed] = []
        for key, used in self._by_key.items():
            told = KeyUsed(
                key,
                used.num_live,
                used.window.total(now_s),
                used.num_ended,
                used.num_ended_tokens,
                used.num_running,
                used.num_running_tokens,
            )
            if self._told.get(key) != told:
                self._told[key] = told
                changed.append(told)
        return tuple(changed)

    def tell_all_again(self) -> None:
        """Has the use of all keys reported again, because a new controller knows nothing yet."""
        self._told.clear()

    def check(self) -> None:
        """Raises AssertionError if the counts contradict each other."""
        for key, used in self._by_key.items():
            live = [each.num_output_tokens for each in self._live.values() if each.key == key]
            assert used.num_live == len(live)
            assert used.num_running == sum(num_tokens > 0 for num_tokens in live)
            assert used.num_running_tokens == sum(live)
