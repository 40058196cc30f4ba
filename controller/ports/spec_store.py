"""Where what operators want of the cluster outlives the controller."""

from typing import Protocol

from controller.core.operations.cluster_spec import ClusterSpec


class SpecStore(Protocol):
    def load(self) -> ClusterSpec | None:
        """What was saved last in this run of the cluster; None if nothing was. Raises LlumctlError
        if it cannot be read: half of it would be another wish."""

    def save(self, spec: ClusterSpec) -> None:
        """Returns when it is safe. Raises LlumctlError; what was saved before stays then."""
