"""Tells frontends which instances serve, at once when that changes, and now and then their
loads."""

from collections.abc import Callable, Sequence

from controller.core.scheduler import GlobalScheduler
from controller.runtime.controller.roster import Member, Roster
from controller.runtime.messages.members import Directory, InstanceEntry

# Frontends take a controller for dead that is silent for 1 s.
DIRECTORY_EVERY_S = 0.4
# A frontend that was silent for so long gets no directories, which would pile up for it.
SILENCE_S = 5.0


class Directories:
    def __init__(
        self,
        roster: Roster,
        scheduler: GlobalScheduler,
        send: Callable[[Sequence[Member], Directory], None],
        now_s: Callable[[], float],
        epoch: str,
    ) -> None:
        self._epoch = epoch
        self._roster = roster
        self._scheduler = scheduler
        self._send = send
        self._now_s = now_s
        self._told: tuple[object, ...] | None = None
        self._told_s = float("-inf")

    def present(self) -> Directory:
        records, placement = self._scheduler.instances, self._scheduler.placement
        return Directory(
            tuple(
                InstanceEntry(
                    member.member_id,
                    member.incarnation,
                    member.address,
                    member.info,
                    records[member.member_id].snapshot,
                    not records[member.member_id].is_shut,
                )
                for member in self._roster.instances()
                if member.serving and member.info and member.member_id in records
            ),
            self._epoch,
            sum(frontend.serving for frontend in self._roster.frontends()),
            None if placement is None else placement.config.room_to_grow_tokens,
            any(record.schedulable(self._now_s()) for record in records.values()),
            self._scheduler.hold_timeout_s,
        )

    def tell(self) -> None:
        self._tell(self.present())

    def tick(self) -> None:
        """Tells all frontends if something changed, or if it is time again."""
        present = self.present()
        is_due = self._now_s() - self._told_s >= DIRECTORY_EVERY_S
        if is_due or _without_loads(present) != self._told:
            self._tell(present)

    def _tell(self, directory: Directory) -> None:
        now_s = self._now_s()
        self._told, self._told_s = _without_loads(directory), now_s
        listening = [
            frontend
            for frontend in self._roster.frontends()
            if frontend.heard_s is not None and now_s - frontend.heard_s < SILENCE_S
        ]
        self._send(listening, directory)


def _without_loads(directory: Directory) -> tuple[object, ...]:
    return (
        directory.takes_requests,
        directory.hold_timeout_s,
        *(
            (
                entry.instance_id,
                entry.incarnation,
                entry.address,
                entry.snapshot is not None and entry.takes_requests,
            )
            for entry in directory.instances
        ),
    )
