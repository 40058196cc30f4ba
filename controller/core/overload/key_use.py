"""What a frontend counts of its own requests by their API keys: live ones, and tokens.

Each choice of `n` > 1 counts as a request with its prompt. A prompt counts from when its request
comes, so that of many at once each knows of those before it; if the request never gets an instance
its prompt is taken back.
"""

from dataclasses import dataclass, replace

from controller.core.load.windows import CountWindow
from controller.core.scheduler_events import DispatchRequested, KeyUsed


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
        """Of the live requests, those that have put out something."""
        self.window = CountWindow()


class KeyUse:
    """Requests without a key cost nothing here. Times are the frontend's, and only go up."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._by_key: dict[str, _Used] = {}
        """As many as there are keys: unknown ones never come so far."""
        self._told: dict[str, KeyUsed] = {}

    def began(self, request: DispatchRequested, now_s: float) -> DispatchRequested:
        """Counts it; returns it with how much its key uses here: live ones with it, tokens
        before it."""
        if not request.api_key:
            return request
        used = self._by_key.setdefault(request.api_key, _Used())
        num_tokens = used.window.total(now_s)
        self._live[request.request_id] = _Live(request.api_key, request.num_prompt_tokens, now_s)
        used.num_live += 1
        used.window.add(request.num_prompt_tokens, now_s)
        # The controller counts it by its own question. If nothing comes of it, it has to hear so.
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
        """`ran`: whether it got an instance."""
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
        """Of the keys that use something else than was told last."""
        found: list[KeyUsed] = []
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
                found.append(told)
        return tuple(found)

    def tell_all_again(self) -> None:
        """The controller is another one, and knows nothing."""
        self._told.clear()

    def check(self) -> None:
        """Raises AssertionError if the books disagree."""
        for key, used in self._by_key.items():
            live = [each.num_output_tokens for each in self._live.values() if each.key == key]
            assert used.num_live == len(live)
            assert used.num_running == sum(num_tokens > 0 for num_tokens in live)
            assert used.num_running_tokens == sum(live)
