"""What an action is done to: the ids of a row, taken when its key is pressed."""

from dataclasses import dataclass

from controller.api.operations.order import Kind


@dataclass(frozen=True, slots=True)
class Target:
    """What a row is about. `instance_id` of a request's row: where the request is. `other`: what it
    names instead and nothing is done to, such as a frontend. `operation_id`: of an event that tells
    what an operator did."""

    instance_id: str = ""
    request_id: str = ""
    other: str = ""
    operation_id: str = ""

    @property
    def subject(self) -> str:
        """The id that the row shows first, whole."""
        return self.request_id or self.instance_id or self.other

    def of(self, kind: Kind) -> str:
        """The id of that kind; empty if the row is about none."""
        ids = {Kind.INSTANCE: self.instance_id, Kind.REQUEST: self.request_id}
        return ids.get(kind, "")


NOTHING = Target()
