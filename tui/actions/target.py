"""What an action is done to: the ids of a row, taken when its key is pressed."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    INSTANCE = "instance"
    REQUEST = "request"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Target:
    """What a row is about. `instance_id` of a request's row: where the request is. `member_id`: a
    frontend or a controller, to which nothing can be done yet."""

    instance_id: str = ""
    request_id: str = ""
    member_id: str = ""

    @property
    def subject(self) -> str:
        """The id that the row shows first, whole."""
        return self.request_id or self.instance_id or self.member_id

    def of(self, kind: Kind) -> str:
        """The id of that kind; empty if the row is about none."""
        ids = {Kind.INSTANCE: self.instance_id, Kind.REQUEST: self.request_id}
        return ids.get(kind, "")


NOTHING = Target()
