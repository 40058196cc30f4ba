"""Whether an instance gets new requests, as the status says it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from controller.api.wire.status import InstanceStatus

MOVES_ONLY = frozenset({"reserved", "cooling"})
"""Reasons against moves to an instance that nevertheless gets new requests."""


def no_requests(item: "InstanceStatus") -> str:
    """Why the instance gets no new requests, in a word; empty if it does."""
    reasons = (reason for reason in item.closed_by if reason not in MOVES_ONLY)
    return next(reasons, "")


def state_word(item: "InstanceStatus") -> str:
    """Its state; of an instance that serves and gets no new requests, why."""
    return no_requests(item) or str(item.state) if item.state == "active" else str(item.state)
