"""What late binding goes by; all may change while the cluster runs.

Operators set how many requests are held, what an admission leaves free, whether room is made and
keys take turns, and the share of instances that is kept. The rest is fixed in a cluster, and is
here so that the simulator can switch each part off and measure its gain. Figures without another
source are ratios to runs with all parts, on 16 A10 near the knee (docs/paper.md).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HoldingConfig:
    max_held_reqs: int = 100_000
    """Of one more the lowest rank's newest is refused as overloaded."""
    room_to_grow_tokens: int = 320
    """What an admission leaves free on an instance where others run: they grow."""
    relief_below_steps: float = 12.0
    """An instance whose batch can run no more steps than these has requests moved away before it
    must evict one; 0: it has not, and preemptions cost 1.07 (S-L) to 1.41 times as much
    (BurstGPT)."""
    by_prefill: bool = True
    """Whether a request that fits on several instances goes to one with little prefill ahead. On
    the Mooncake trace the mean TTFT is 1.12 s with it and 1.46 without (decision 0032)."""
    by_prefix: bool = True
    """Whether it counts which of them has the prompt's beginning in its prefix cache: 0.59 s."""
    prefill_slack_tokens: int = 2048
    """Instances with so many more tokens to compute before the request's first one than the least
    count as equal: freeness decides. A step of vLLM takes 2,048 to 8,192 tokens."""
    overtaking: bool = True
    """Whether a request that fits goes ahead of earlier ones that do not. In strict order the mean
    TTFT is 1.01 (S-L), 1.45 (M-M) and 1.98 times as long (BurstGPT)."""
    fair_keys: bool = True
    """Whether API keys of one rank share what becomes free, whoever was served least first."""
    making_room: bool = True
    """Whether running requests move away so that a blocked one fits."""
    reserved_share: float = 0.3
    """At most this share of the instances, but at least one, is kept for the first blocked
    requests; nothing else is dispatched there."""
    reserve_after_s: float = 3.0
    """The first blocked request has an instance kept for it at once, others after this wait; and
    one more each time that it has waited so long. On S-L the longest waits were 33 and 192 s with
    1.5 s instead of 21 and 108; 6 s gained little either way (decision 0031)."""
    share_doubles_s: float = 60.0
    """In overload `reserved_share` doubles each time the first request has waited so long: when all
    instances are kept, the order is strict. With a fixed share the maximum TTFT on Azure's trace at
    twice its rate is 788 s, with this 234 (decision 0029)."""

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
