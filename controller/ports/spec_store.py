"""Where the cluster's spec outlives the controller."""

from typing import Protocol

from controller.core.operations.cluster_spec import ClusterSpec


class SpecStore(Protocol):
    def load(self) -> ClusterSpec | None:
        """The spec saved last in this run of the cluster; None if none was. Raises LlumctlError if
        it cannot be read: half of it would be another wish."""

    def save(self, spec: ClusterSpec) -> None:
        """Returns when the spec is safe. Raises LlumctlError; what was saved before stays then."""
