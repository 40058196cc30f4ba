"""What is said when operators, or the policy for them, steer a running cluster. See `codec`
for how they travel.
"""

import msgspec

from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import InstanceSnapshot, Level
from controller.core.rescheduling.config import ReschedulingConfig
from controller.runtime.messages.message import Message


class Relief(msgspec.Struct, frozen=True, array_like=True):
    """Where a source may send requests, and by what rules it chooses them. `snapshot_age_s`: how
    long ago the destination's came in."""

    destination: InstanceRef
    snapshot: InstanceSnapshot
    snapshot_age_s: float
    source_freeness: float
    destination_freeness: float
    candidates: tuple[tuple[str, float], ...]
    """(instance id, freeness) of the freest that may receive, best first: for an explanation."""
    levels: tuple[Level, ...]
    config: ReschedulingConfig


class ReliefOrdered(Message, frozen=True):
    """Controller to a source, each round anew: relieve yourself. Without `relief`: no more; what is
    under way ends. An order ends by itself when no other follows."""

    round_id: str
    relief: Relief | None = None


class ReliefFruitless(Message, frozen=True):
    """Source to controller, once per order at most: nothing that I have may or can go there now,
    and nothing is under way. Incarnations as the order had them."""

    round_id: str
    source_id: str
    source_incarnation: int
    destination_id: str
    destination_incarnation: int


class RankChangeAsked(Message, frozen=True):
    """Controller to the request's frontend: it has this rank from now on, wherever it is. With
    `dry_run`: what would change?"""

    query_id: str
    request_id: str
    rank: int
    cause_id: str
    actor: str
    reason: str
    dry_run: bool


class RankChangeAnswered(Message, frozen=True):
    """Frontend to controller. `code`: empty, `ended`, or `unknown` for a request that is not its
    own. `instance_id`: where it runs by now."""

    query_id: str
    code: str = ""
    previous_level: str = ""
    instance_id: str | None = None


class RankSet(Message, frozen=True):
    """Frontend to the request's owner, again and again: the request has this rank. `change` counts
    its changes from 1: an older one says nothing any more."""

    request_id: str
    rank: int
    change: int


class RankConfirmed(Message, frozen=True):
    """Owner to frontend: I have the request, in this hop, and that change of its rank."""

    request_id: str
    change: int
    instance_id: str
    incarnation: int
    hop: int


class DrainSet(Message, frozen=True):
    """Controller to instance, whenever that begins to serve and whenever it changes: take no more
    moves in, and say in each status that you are draining; or the end of it."""

    draining: bool


class StatusIntervalSet(Message, frozen=True):
    """Controller to instance: push your status so often at most."""

    status_interval_s: float


class FrontendLimits(Message, frozen=True):
    """Controller to each frontend: what it may do at once, and how long a request may take. None:
    no limit."""

    max_live_requests: int = 4096
    request_timeout_s: float | None = None
    write_timeout_s: float = 60.0
