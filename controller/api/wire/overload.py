"""Requests that the controller refused, and what API keys use."""

from controller.api.wire.base import WireModel


class RefusedStatus(WireModel):
    """Of one reason and priority level."""

    reason: str
    level: str
    num_refused: int
    """Since this controller started."""
    num_refused_last_minute: int


class KeyStatus(WireModel):
    """Of one API key, at all frontends."""

    key: str
    """The first 12 digits of its SHA-256."""
    num_live_reqs: int
    num_tokens_last_minute: int
    num_refused: int
    """Over one of its limits, since this controller started."""
