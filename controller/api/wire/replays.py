"""Wire models of requests that were lost with an instance, and of how requests were saved. The
compatibility rules are those of `base`; words are those of docs/metrics.md."""

from typing import Literal

from controller.api.wire.base import WireModel


class ReplayStatus(WireModel):
    """A replay under way. `state`: placing (no instance has the request yet) or computing."""

    request_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    state: Literal["placing", "computing"]
    reason: str = ""
    """Why the instance is gone."""
    num_tokens: int
    """Tokens that are computed again."""
    pause_s: float
    """How long the client has waited so far."""


class EndedReplayStatus(WireModel):
    """A replay that is over. `outcome`: replayed, dispatched_again or failed; `code`: why it could
    not be replayed."""

    request_id: str
    from_instance_id: str
    to_instance_id: str | None = None
    outcome: str
    code: str = ""
    reason: str = ""
    num_tokens: int
    pause_s: float | None = None
    """Null if the request had no token before the loss, or never had one again."""
    ended_s: float


class SavedStatus(WireModel):
    """How many requests left an instance, or were lost with it, in one way and for one reason."""

    way: str
    reason: str
    num_saved: int


class ReplaysStatus(WireModel):
    """`under_way` and `ended` have the oldest and the newest ones; the numbers count all.
    `saved`: since this controller started, without the ways that did not happen."""

    under_way: tuple[ReplayStatus, ...] = ()
    ended: tuple[EndedReplayStatus, ...] = ()
    num_replaying: int = 0
    num_replayed_last_minute: int = 0
    num_not_replayed_last_minute: int = 0
    saved: tuple[SavedStatus, ...] = ()

    @property
    def lately(self) -> bool:
        """Whether there is any, or was within the last minute."""
        return bool(
            self.num_replaying or self.num_replayed_last_minute or self.num_not_replayed_last_minute
        )
