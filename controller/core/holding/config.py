"""Settings of late binding; all may change while the cluster runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HoldingConfig:
    """Each part can be switched off, so that its gain can be measured by itself."""

    max_held_reqs: int = 100_000
    room_to_grow_tokens: int = 320
    """What an admission leaves free on an instance where others run: they grow."""
    overtaking: bool = True
    """Whether a request that fits goes ahead of earlier ones that do not."""
    making_room: bool = True
    """Whether running requests move away so that a blocked one fits."""
    reserved_share: float = 0.1
    """At most this share of the instances, but at least one, is kept for the first blocked
    requests; nothing else is dispatched there."""
    reserve_after_s: float = 5.0
    """The first blocked request has an instance kept for it at once, others after this wait."""

    def __post_init__(self) -> None:
        if self.room_to_grow_tokens < 0 or self.reserve_after_s < 0:
            raise ValueError("room_to_grow_tokens and reserve_after_s must not be negative")
        if not 0 <= self.reserved_share <= 1:
            raise ValueError("reserved_share must be from 0 to 1")
