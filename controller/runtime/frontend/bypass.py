"""A frontend's own decisions for requests that a controller held which is silent (late binding)."""

from collections.abc import Callable, Iterable, Mapping

from controller.core.holding.paced_release import PacedRelease
from controller.core.scheduler_events import Dispatch, DispatchRequested
from controller.runtime.frontend.known_instances import KnownInstances
from controller.runtime.messages.members import Directory


class Bypass:
    """`own_blocks`: of a block size, what this frontend's requests take of each instance, by id."""

    def __init__(
        self, known: KnownInstances, own_blocks: Callable[[int], Mapping[str, int]]
    ) -> None:
        self._known = known
        self._own_blocks = own_blocks
        self._own_blocks_then: Mapping[str, int] = {}
        self._release: PacedRelease | None = None
        """Since the controller is silent."""
        self._open_s = float("-inf")

    def heard_controller(self, directory: Directory, now_s: float) -> None:
        """The instances' statuses are known as of now."""
        if directory.takes_requests:
            self._open_s = now_s
        if directory.late_binding:
            self._release = None
            self._own_blocks_then = self._own_blocks(self._block_size())

    def last_open_s(self, now_s: float) -> float:
        """When an instance could take requests last, as far as is known here."""
        if any(not snapshot.draining for snapshot in self._known.snapshots()):
            self._open_s = now_s
        return self._open_s

    def decide(
        self,
        waiting: Iterable[DispatchRequested],
        num_frontends: int,
        room_to_grow_tokens: int,
        now_s: float,
    ) -> list[Dispatch]:
        """For those that go now, in order."""
        by_id = {each.request_id: each for each in waiting}
        open_ = {s.instance_id: s for s in self._known.snapshots() if not s.draining}
        if not open_:
            return []
        if self._release is None:
            self._release = PacedRelease(
                self._known.snapshots(),
                self._own_blocks_then,
                num_frontends,
                room_to_grow_tokens,
                now_s,
            )
        own_blocks = self._own_blocks(self._block_size())
        due = self._release.due(by_id.values(), own_blocks, open_, now_s)
        return [Dispatch(r, by_id[r].frontend_id, i, open_[i].incarnation, seq=0) for r, i in due]

    def _block_size(self) -> int:
        return next((s.block_size for s in self._known.snapshots()), 1)
