"""Starting and stopping the cluster's processes."""

from typing import Protocol


class Launcher(Protocol):
    def launch_instance(self, instance_id: str) -> None:
        """Start (or find again) the process of an instance; it says Hello by itself, and
        is started again whenever it dies, until `terminate`."""

    def launch_frontend(self, frontend_id: str) -> None: ...

    def no_room(self, num_instances: int) -> str:
        """Why so many more instances would not start, in words; empty if nothing speaks against
        it."""

    def restart(self, member_id: str) -> None:
        """End the process; another one is started in its place. Unknown ids are ignored."""

    def terminate(self, member_id: str) -> None:
        """End the process for good; unknown ids are ignored."""
