"""What the controller holds, in words: why it waits, who may go ahead of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from controller.api.text.quantities import duration

if TYPE_CHECKING:
    from controller.api.wire.holding import HeldPlaceStatus, HeldStatus

_WHYS: Mapping[str, str] = {
    "no-instance": "no instance takes requests",
    "too-large": "no instance has so much memory",
    "next": "it fits, and goes next",
    "behind": "it fits, and those before it go first",
    "reserved": "it fits only where an instance is kept for another",
    "batch-full": "all places of the batches are taken, or enough wait there",
    "fragmented": "no instance has so much free; all together have",
    "memory": "all instances together have not so much free",
}
_OVERTAKEN_BY: Mapping[str, str] = {
    "any": "what fits elsewhere may go ahead of it",
    "its-rank": "what fits may go ahead of it, but no lower rank",
    "nobody": "nothing may go ahead of it",
}


def place(held: "HeldPlaceStatus") -> str:
    """`the first at the controller`, or `11 are before it at the controller`."""
    before = held.place - 1
    if not before:
        return "the first at the controller"
    return f"{before} {'is' if before == 1 else 'are'} before it at the controller"


def why(held: "HeldPlaceStatus") -> str:
    """`i-3 is kept for it and lacks 198 blocks`."""
    if held.why != "kept":
        return _WHYS.get(held.why, held.why)
    if not held.lacking_blocks:
        return f"{held.instance_id} is kept for it and has no place for it yet"
    return f"{held.instance_id} is kept for it and lacks {blocks(held.lacking_blocks)}"


def overtaking(held: "HeldPlaceStatus") -> str:
    """Who may go ahead of it, and how many have; empty if the controller does not say."""
    words = _OVERTAKEN_BY.get(held.overtaken_by, "")
    if held.num_overtaken:
        has = "has" if held.num_overtaken == 1 else "have"
        words += f"{': ' if words else ''}{held.num_overtaken} {has}, while it was the first"
    return words


def summary(held: "HeldStatus", num_held: int) -> str:
    """`61 held (high 3, normal 58), 4321 blocks, longest 1m02s`."""
    levels = ", ".join(f"{name} {number}" for name, number in held.num_by_level.items())
    by_level = f" ({levels})" if len(held.num_by_level) > 1 else ""
    wanted = f", {blocks(held.demand_blocks)}" if held.demand_blocks else ""
    return f"{num_held} held{by_level}{wanted}, longest {duration(held.oldest_wait_s)}"


def blocks(number: int) -> str:
    return f"{number} block{'' if number == 1 else 's'}"
