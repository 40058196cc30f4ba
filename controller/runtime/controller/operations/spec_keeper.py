"""The cluster's present spec, which is on disk before it counts."""

from collections.abc import Callable

from controller.core.operations.cluster_spec import ClusterSpec
from controller.ports.spec_store import SpecStore


class RevisionConflictError(Exception):
    """Somebody else changed the spec since the caller looked at it."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(f"revision {expected} was looked at, and {found} is the present one")
        self.expected, self.found = expected, found


class SpecKeeper:
    """`store`: with None, the spec is kept as long as this process lives."""

    def __init__(self, spec: ClusterSpec, store: SpecStore | None = None) -> None:
        self.spec = spec
        """The present one; `change` alone replaces it."""
        self._store = store
        self.on_change: Callable[[], None] = lambda: None
        """Called once another spec is the present one."""

    def check_revision(self, if_revision: int | None) -> None:
        """Raises RevisionConflictError unless `if_revision` is None or the present one."""
        if if_revision is not None and if_revision != self.spec.revision:
            raise RevisionConflictError(if_revision, self.spec.revision)

    def change(self, spec: ClusterSpec) -> None:
        """Saves the spec, then makes it the present one. It must be one revision after the present
        one, so that of two changes of the same spec only one is made.

        Raises RevisionConflictError, and what the store raises: nothing changed then.
        """
        if spec.revision != self.spec.revision + 1:
            raise RevisionConflictError(spec.revision - 1, self.spec.revision)
        if self._store is not None:
            self._store.save(spec)
        self.spec = spec
        self.on_change()
