"""One loss of one request, and its replay."""

from dataclasses import dataclass

from controller.core.instance_ref import InstanceRef


@dataclass(frozen=True, slots=True)
class Replay:
    """A request that was lost with `source_id` and begins `attempt` elsewhere with `num_tokens` to
    compute."""

    source_id: str
    num_tokens: int
    attempt: int
    cause_id: str


@dataclass(frozen=True, slots=True)
class RequestLoss:
    """A request that no instance has any more, as `owner` is gone. `what` happened, in words.
    `num_tokens` are to be computed elsewhere. `silent_s`: since the client's last token; None if
    there was none."""

    owner: InstanceRef
    what: str
    num_tokens: int
    silent_s: float | None
    num_replays: int

    @property
    def cause_id(self) -> str:
        return cause_of(self.owner)


def cause_of(lost: InstanceRef) -> str:
    return f"lost-{lost.instance_id}-{lost.incarnation}"
