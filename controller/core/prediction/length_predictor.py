"""How many tokens a request will put out, told from what its client's earlier requests did.

The requests of one client resemble each other: the same program asks them. So a quantile of the
client's last output lengths is the prediction, or that of all clients' while too few are known.
A request that has put out some tokens already is compared only with those that went on longer.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from controller.core.prediction.sliding_quantile import SlidingQuantile


@dataclass(frozen=True, slots=True)
class LengthPredictorConfig:
    """Raises ValueError for bounds below 1 and a share outside of 0 to 1."""

    share: float = 0.5
    """The quantile: 0.5 predicts the median, more plans for longer outputs."""
    client_window: int = 32
    """Samples that are kept of one client."""
    all_window: int = 1024
    """Samples that are kept of all clients together."""
    min_samples: int = 4
    """Fewer predict nothing."""
    max_clients: int = 10_000
    """The client whose last request ended the longest ago is forgotten first."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError("share must be from 0 to 1")
        for name in ("client_window", "all_window", "min_samples", "max_clients"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class LengthPredictor:
    """A client is whatever its requests have in common: a session, an API key, or a hash of it."""

    def __init__(self, config: LengthPredictorConfig) -> None:
        self._config = config
        self._clients: OrderedDict[Hashable, SlidingQuantile] = OrderedDict()
        """The one whose last request ended the longest ago stands first."""
        self._all = SlidingQuantile(config.all_window)

    def observe(self, client: Hashable | None, num_output_tokens: int) -> None:
        """Takes in a request that ended by itself or by its limit; an aborted one says nothing.
        `client` is None if it is not known."""
        self._all.add(num_output_tokens)
        if client is None:
            return
        window = self._clients.get(client)
        if window is None:
            window = self._clients[client] = SlidingQuantile(self._config.client_window)
            if len(self._clients) > self._config.max_clients:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client)
        window.add(num_output_tokens)

    def predict(
        self,
        client: Hashable | None,
        num_output_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> int | None:
        """The output tokens that a request will have in the end, if it has `num_output_tokens` now;
        at most its limit. None if too little is known."""
        config = self._config
        window = self._clients.get(client)
        found = None
        if window is not None:
            found = window.quantile(config.share, num_output_tokens, config.min_samples)
        if found is None:
            found = self._all.quantile(config.share, num_output_tokens, config.min_samples)
        if found is None or max_output_tokens is None:
            return found
        return min(found, max_output_tokens)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert len(self._clients) <= self._config.max_clients
        self._all.check()
        for window in self._clients.values():
            window.check()
