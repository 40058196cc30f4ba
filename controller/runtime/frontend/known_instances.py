"""The instances that a frontend knows: the controller's last directory, less those that died."""

from collections.abc import Iterable, Iterator, Sequence

from controller.core.instance_ref import InstanceRef
from controller.core.load.snapshot import InstanceSnapshot
from controller.runtime.messages.members import InstanceEntry


class KnownInstances:
    def __init__(self) -> None:
        self._entries: dict[str, InstanceEntry] = {}

    def __iter__(self) -> Iterator[InstanceEntry]:
        return iter(list(self._entries.values()))

    def learn(self, entries: Sequence[InstanceEntry]) -> None:
        """Replaces all entries."""
        self._entries = {entry.instance_id: entry for entry in entries}

    def forget(self, entry: InstanceEntry) -> None:
        del self._entries[entry.instance_id]

    def incarnation(self, instance_id: str) -> int | None:
        entry = self._entries.get(instance_id)
        return None if entry is None else entry.incarnation

    def find(self, instance_id: str, incarnation: int) -> InstanceEntry | None:
        """None if the instance is not listed, or another incarnation of it is."""
        entry = self._entries.get(instance_id)
        return entry if entry is not None and entry.incarnation == incarnation else None

    def ref(self, instance_id: str, incarnation: int) -> InstanceRef | None:
        entry = self.find(instance_id, incarnation)
        return None if entry is None else entry.ref

    def snapshots(self) -> Iterable[InstanceSnapshot]:
        return [entry.snapshot for entry in self if entry.snapshot is not None]

    def open_snapshots(self) -> Sequence[InstanceSnapshot]:
        return [
            entry.snapshot for entry in self if entry.snapshot is not None and entry.takes_requests
        ]
