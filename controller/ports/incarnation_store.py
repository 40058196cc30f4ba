"""Where the numbers of members' incarnations outlive the controller."""

from collections.abc import Mapping
from typing import Protocol

from controller.core.fleet.incarnations import LastIncarnation


class IncarnationStore(Protocol):
    def load(self) -> Mapping[str, LastIncarnation]:
        """What was kept last of each member, by its id, in this run of the cluster."""

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        """Returns when the next controller of this machine would find it. Never fails: what cannot
        be kept is logged."""
