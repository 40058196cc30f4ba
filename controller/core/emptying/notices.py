"""The machine of notices: which instances have to be gone by a given moment, because their process
or their machine will be ended, whatever the cluster does.

    process    the instance's process was told to end (SIGTERM)       nobody can take that back
    file       a file on the machine says that the machine is left    over once the file is gone
    launcher   the launcher gives the machine up (Ray drains the      nobody can take that back; Ray
               node)                                                  has no call for it

A notice about a machine concerns all instances there, also those that come later. Each of them is
claimed (`claims.Evacuate`) for the earliest of its notices: its requests move while there is time,
and what cannot move is replayed elsewhere. A notice that names no moment counts as `notice_s`, and
the moment of a notice may change while it stands.

A machine may vanish a little early, and without a word, so that its instances' deaths would only be
noticed after seconds. So their claims end a little before the machine does (`_goes_at_s`).

New instances are not launched on a machine while its notice stands (`Avoid`). The launcher knows of
its own notices. Those of files are told by the instances there; once the last instance has gone,
nobody reads the file any more. So the machine is avoided for `AVOIDED_FOR_S` longer, or until an
instance there says that the file is gone.

An operator's evacuation with an earlier deadline stays in force. Claims are on disk, notices are
not: a controller that starts again hears of them within a second or two, and takes no claim back
before it has heard of the instance and of the launcher's machines.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.core.emptying.claims import Claim, Claims, Evacuate
from controller.core.value import value

SAME_MOMENT_S = 1.0
"""Two moments that differ by less are the same: each is told as a time from now, and the message
takes a while."""
EARLY_S = 1.0
EARLY_SHARE = 0.1
"""Instances go so long before their machine, and no more than this share of the time that is left
when the notice comes."""
AVOIDED_FOR_S = 600.0
MAX_NOTICE_S = 7 * 86400.0
"""A notice of more time than this is not understood."""
MAX_NOTICE_BYTES = 4096

PROCESS_ENDS = "its process was told to end"
NODE_DRAINS = "Ray drains its node"
TAKEN_BACK = "the notice was taken back"


# -- events -----------------------------------------------------------------------------------
# `epoch_s`: the moment in seconds since the epoch, as in claims.


@value
class InstanceSaid:
    """An instance says how things are. `machine`: the launcher's id of its machine; empty if the
    launcher has none. `ends_in_s`: how long until its process is ended, negative once that
    moment has passed. `machine_ends_in_s` and
    `why`: how long until its machine is, by a notice on the machine. None: no such notice."""

    instance_id: str
    incarnation: int
    machine: str
    ends_in_s: float | None
    machine_ends_in_s: float | None
    why: str
    epoch_s: float


@value
class Looked:
    """It is time to compare the claims with the notices. `claims`: of all instances in the spec
    that are claimed. `instance_ids`: the instances in the spec. `leaving`: the machines that the
    launcher gives up, as long as they exist, each with the moment in seconds since the epoch, or
    None if it names none; None in place of the mapping if it is not known now."""

    instance_ids: frozenset[str]
    claims: Mapping[str, Claims]
    leaving: Mapping[str, float | None] | None
    epoch_s: float


Event = InstanceSaid | Looked


# -- instructions -----------------------------------------------------------------------------


@value
class Look:
    """Say at once how things are (`Looked`)."""


@value
class MakeClaim:
    instance_id: str
    claim: Evacuate


@value
class TakeBack:
    """Take back the claim of this kind."""

    instance_id: str
    kind: type[Claim]
    why: str


@value
class Avoid:
    """Launch no instance on these machines."""

    machines: frozenset[str]


Instruction = Look | MakeClaim | TakeBack | Avoid


# -- the machine ------------------------------------------------------------------------------


@value
class Notice:
    """`leaves_at_s`: when the process or the machine is ended, in seconds since the epoch.
    `seen_s`: when the notice was first seen."""

    why: str
    leaves_at_s: float
    seen_s: float

    def over_at(self, leaves_at_s: float, why: str) -> "Notice":
        """The same notice as it is told again: it keeps its moment unless that has changed."""
        same = why == self.why and abs(leaves_at_s - self.leaves_at_s) <= SAME_MOMENT_S
        return self if same else Notice(why, leaves_at_s, self.seen_s)


@value
class Standing:
    """A notice about a machine, or (`machine` is empty) about the process of one instance.
    `instance_ids`: the instances that it concerns and that are not gone yet."""

    machine: str
    notice: Notice
    instance_ids: tuple[str, ...]


@dataclass(slots=True)
class _Told:
    """What an instance said last."""

    machine: str
    incarnation: int
    process: Notice | None = None
    on_machine: Notice | None = None


@dataclass(slots=True)
class Notices:
    notice_s: float = 30.0
    """How much time a notice leaves that names no moment."""
    _told: dict[str, _Told] = field(default_factory=dict)
    """By instance id, those in the spec that this controller has heard."""
    _left: dict[str, Notice] = field(default_factory=dict)
    """By machine, the notice of a file that instances told which are gone by now."""
    _launchers: dict[str, Notice] | None = None
    """By machine, the launcher's notices; None until they are known."""
    _avoided: frozenset[str] = frozenset()
    _num_made: dict[str, int] = field(default_factory=dict)
    """By the beginning of its id, how many claims were made for an incarnation. A notice that comes
    again begins another drain."""

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case InstanceSaid():
                return self._instance_said(event)
            case Looked():
                self._take_launchers(event)
                self._forget_gone(event)
                machines = self._machines()
                out = self._told_to_avoid(frozenset(machines))
                for instance_id in sorted(event.instance_ids):
                    out += self._compared(instance_id, event, machines)
                return out

    def view(self) -> tuple["Standing", ...]:
        """All notices that stand, the earliest first."""
        found = [
            Standing(
                machine,
                notice,
                tuple(sorted(each for each, told in self._told.items() if told.machine == machine)),
            )
            for machine, notice in self._machines().items()
        ]
        found += [
            Standing("", notice, (instance_id,))
            for instance_id, told in self._told.items()
            if (notice := told.process) is not None
        ]
        return tuple(sorted(found, key=lambda each: (each.notice.leaves_at_s, each.instance_ids)))

    def _machines(self) -> dict[str, Notice]:
        """By machine, the earliest notice that stands; the launcher's are among them."""
        found = dict(self._left)
        for told in self._told.values():
            if told.machine and told.on_machine is not None:
                found[told.machine] = _earliest(told.on_machine, found.get(told.machine))
        for machine, notice in (self._launchers or {}).items():
            found[machine] = _earliest(notice, found.get(machine))
        return found

    def check(self) -> None:
        """Raises AssertionError that says which invariant is broken."""
        every = [*self._left.values(), *(self._launchers or {}).values()]
        every += [each.process for each in self._told.values() if each.process]
        every += [each.on_machine for each in self._told.values() if each.on_machine]
        for notice in every:
            assert math.isfinite(notice.leaves_at_s), "a notice without a moment"
            assert notice.why, "a notice that nobody can explain"
        assert "" not in self._left, "instances of no machine have left it"

    # -- what is heard -------------------------------------------------------------------

    def _instance_said(self, said: InstanceSaid) -> list[Instruction]:
        known = self._told.get(said.instance_id)
        if known is None or known.incarnation != said.incarnation or known.machine != said.machine:
            known = _Told("", 0)
        now = _Told(said.machine, said.incarnation)
        if said.ends_in_s is not None:
            now.process = _told_again(known.process, said.ends_in_s, PROCESS_ENDS, said.epoch_s)
        if said.machine_ends_in_s is not None:
            told = (said.machine_ends_in_s, said.why or "a notice on its machine", said.epoch_s)
            now.on_machine = _told_again(known.on_machine, *told)
        is_over = said.machine_ends_in_s is None and self._left.pop(said.machine, None) is not None
        is_news = is_over or (now.process, now.on_machine) != (known.process, known.on_machine)
        self._told[said.instance_id] = now
        return [Look()] if is_news else []

    def _take_launchers(self, event: Looked) -> None:
        if event.leaving is None:
            return  # what was known still counts
        # A machine that is gone is not among them any more, which does not mean that it stays.
        known, there = self._launchers or {}, {told.machine for told in self._told.values()}
        now = {machine: each for machine, each in known.items() if machine in there}
        for machine, moment_s in event.leaving.items():
            before = known.get(machine)
            if moment_s is None and before is not None:
                now[machine] = before
                continue
            leaves_at_s = event.epoch_s + self.notice_s if moment_s is None else moment_s
            notice = Notice(NODE_DRAINS, leaves_at_s, event.epoch_s)
            now[machine] = notice if before is None else before.over_at(leaves_at_s, NODE_DRAINS)
        self._launchers = now

    def _forget_gone(self, event: Looked) -> None:
        """Forgets instances that are not in the spec any more, but not what they said of their
        machines."""
        for instance_id in self._told.keys() - event.instance_ids:
            told = self._told.pop(instance_id)
            if told.machine and told.on_machine is not None:
                before = self._left.get(told.machine)
                self._left[told.machine] = _earliest(told.on_machine, before)
        for machine, notice in list(self._left.items()):
            if event.epoch_s > notice.leaves_at_s + AVOIDED_FOR_S:
                del self._left[machine]

    # -- what is done --------------------------------------------------------------------

    def _compared(
        self, instance_id: str, event: Looked, machines: Mapping[str, Notice]
    ) -> list[Instruction]:
        claims, told = event.claims.get(instance_id), self._told.get(instance_id)
        present = None if claims is None else claims.notice
        notice = None if told is None else _earliest_of(told, machines)
        if notice is None or told is None:
            is_over = present is not None and present.by == "machine"
            is_known = told is not None and self._launchers is not None
            return [TakeBack(instance_id, Evacuate, TAKEN_BACK)] if is_over and is_known else []
        goes_at_s = _goes_at_s(notice, told)
        claim = Evacuate(
            "",
            event.epoch_s,
            deadline_s=goes_at_s,
            reason=notice.why,
            by="process" if notice is told.process else "machine",
        )
        if present is not None and present.deadline_s is not None:
            later_s = goes_at_s - present.deadline_s
            same = (present.by, present.reason) == (claim.by, claim.reason)
            if same and abs(later_s) <= SAME_MOMENT_S:
                return []
            if present.by == "operator" and later_s >= -SAME_MOMENT_S:
                return []
        cause_id = self._next_id(instance_id, told.incarnation)
        return [MakeClaim(instance_id, replace(claim, cause_id=cause_id))]

    def _next_id(self, instance_id: str, incarnation: int) -> str:
        first = f"notice-{instance_id}-{incarnation}"
        number = self._num_made[first] = self._num_made.get(first, 0) + 1
        return first if number == 1 else f"{first}-{number}"

    def _told_to_avoid(self, avoided: frozenset[str]) -> list[Instruction]:
        if avoided == self._avoided:
            return []
        self._avoided = avoided
        return [Avoid(avoided)]


def _told_again(before: Notice | None, within_s: float, why: str, epoch_s: float) -> Notice:
    leaves_at_s = epoch_s + within_s  # a time that has passed is negative
    return Notice(why, leaves_at_s, epoch_s) if before is None else before.over_at(leaves_at_s, why)


def _earliest(notice: Notice, other: Notice | None) -> Notice:
    if other is None:
        return notice
    return min((notice, other), key=lambda each: (each.leaves_at_s, each.why))


def _earliest_of(told: _Told, machines: Mapping[str, Notice]) -> Notice | None:
    """The notice by which the instance has to go first; None if there is none."""
    of_machine = machines.get(told.machine) if told.machine else told.on_machine
    if told.process is None or of_machine is None:
        return told.process or of_machine
    return min(told.process, of_machine, key=lambda each: _goes_at_s(each, told))


def _goes_at_s(notice: Notice, told: _Told) -> float:
    """When an instance with this notice is to be gone."""
    if notice is told.process:
        return notice.leaves_at_s
    left_s = max(0.0, notice.leaves_at_s - notice.seen_s)
    return notice.leaves_at_s - min(EARLY_S, EARLY_SHARE * left_s)


# -- what a file says ---------------------------------------------------------------------------


def within_of(text: str, epoch_s: float, notice_s: float) -> float | None:
    """How long a machine is left, by the contents of a file that gives notice: empty or `true`
    (`notice_s`), a number of seconds from now, a moment (ISO 8601 with a time zone), or the JSON
    object of a cloud that has such a moment in `time`. None: no notice (`false`, `none`). Raises
    ValueError for anything else."""
    word = text.strip()
    match word.lower():
        case "" | "true":
            return notice_s
        case "false" | "none":
            return None
    if word.startswith("{"):
        found = json.loads(word).get("time")
        if not isinstance(found, str):
            raise ValueError("the object has no `time`")
        word = found
    try:
        within_s = float(word)
    except ValueError:
        moment = datetime.fromisoformat(word)
        if moment.tzinfo is None:
            raise ValueError("the moment has no time zone") from None
        within_s = max(0.0, moment.timestamp() - epoch_s)
    if not 0 <= within_s <= MAX_NOTICE_S:
        raise ValueError("not within a week from now")
    return within_s
