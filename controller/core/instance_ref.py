"""One incarnation of an instance, and where it listens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceRef:
    instance_id: str
    incarnation: int
    address: str

    @property
    def key(self) -> tuple[str, int]:
        """Tells incarnations apart."""
        return self.instance_id, self.incarnation
