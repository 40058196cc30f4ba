"""What operators want of the cluster, as it is now, and safe before it counts."""

from controller.core.operations.cluster_spec import ClusterSpec
from controller.ports.spec_store import SpecStore


class RevisionConflictError(Exception):
    """Somebody else changed what was wanted since it was looked at."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"revision {expected} was looked at, and {found} is the present one")
        self.expected, self.found = expected, found


class SpecKeeper:
    """`store`: None keeps it as long as this process lives."""

    def __init__(self, spec: ClusterSpec, store: SpecStore | None = None) -> None:
        self.spec = spec
        """The present one; `change` alone replaces it."""
        self._store = store

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError if that is not the present one; None: any will do."""
        if if_revision is not None and if_revision != self.spec.revision:
            raise RevisionConflictError(if_revision, self.spec.revision)

    def change(self, spec: ClusterSpec) -> None:
        """Saves it, then makes it the present one. It has to follow from the present one by one
        step, so that of two changes that were thought out side by side only one is made.

        Raises RevisionConflictError, and what the store raises: nothing changed then.
        """
        if spec.revision != self.spec.revision + 1:
            raise RevisionConflictError(spec.revision - 1, self.spec.revision)
        if self._store is not None:
            self._store.save(spec)
        self.spec = spec
