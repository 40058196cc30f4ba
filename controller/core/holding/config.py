"""Settings of late binding; all may change while the cluster runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HoldingConfig:
    """Each part can be switched off, so that its gain can be measured by itself."""

    max_held_reqs: int = 100_000
    """Of one more the lowest rank's newest is refused as overloaded."""
    room_to_grow_tokens: int = 320
    """What an admission leaves free on an instance where others run: they grow."""
    relief_below_steps: float = 12.0
    """An instance whose batch can run no more steps than these has requests moved away before it
    must evict one; 0: it has not."""
    by_prefill: bool = True
    """Whether a request that fits on several instances goes to one with little prefill ahead."""
    by_prefix: bool = True
    """Whether it counts which of them has the prompt's beginning in its prefix cache."""
    prefill_slack_tokens: int = 2048
    """Instances with so many more tokens to compute before the request's first one than the least
    count as equal: freeness decides."""
    overtaking: bool = True
    """Whether a request that fits goes ahead of earlier ones that do not."""
    fair_keys: bool = True
    """Whether API keys of one rank share what becomes free, whoever was served least first."""
    making_room: bool = True
    """Whether running requests move away so that a blocked one fits."""
    reserved_share: float = 0.3
    """At most this share of the instances, but at least one, is kept for the first blocked
    requests; nothing else is dispatched there."""
    reserve_after_s: float = 3.0
    """The first blocked request has an instance kept for it at once, others after this wait."""
    share_doubles_s: float = 60.0
    """In overload `reserved_share` doubles each time the first request has waited so long: when all
    instances are kept, the order is strict."""

    def __post_init__(self) -> None:
        for name in (
            "max_held_reqs",
            "room_to_grow_tokens",
            "prefill_slack_tokens",
            "relief_below_steps",
            "reserve_after_s",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if not 0 <= self.reserved_share <= 1:
            raise ValueError("reserved_share must be from 0 to 1")
        if self.share_doubles_s <= 0:
            raise ValueError("share_doubles_s must be positive")
