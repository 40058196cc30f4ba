"""Which members belong to the cluster, and which incarnation each one is."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from controller.core.fleet.incarnations import LastIncarnation
from controller.runtime.controller.roster import Member, Roster
from controller.runtime.messages.members import Welcome
from tests.unit.runtime.fakes import hello


def roster(before: dict[str, LastIncarnation] | None = None) -> Roster:
    made = Roster(before=before or {})
    made.expect("instance", "i-0")
    made.expect("frontend", "f-0")
    return made


def test_a_new_process_is_the_first_incarnation() -> None:
    change = roster().hello(hello(phase="starting"), 5.0)
    assert change is not None
    assert change.welcome == Welcome("a", 1)
    assert change.died is None
    assert not change.began_serving
    assert (change.member.alive, change.member.serving, change.member.heard_s) == (True, False, 5.0)


def test_it_begins_to_serve_once() -> None:
    members = roster()
    members.hello(hello(phase="starting"), 0.0)
    began = [members.hello(hello(incarnation=1), now_s).began_serving for now_s in (1.0, 2.0)]
    assert began == [True, False]


def test_the_welcome_is_repeated_until_it_has_arrived() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    assert members.hello(hello(), 1.0).welcome == Welcome("a", 1)
    assert members.hello(hello(incarnation=1), 2.0).welcome is None


def test_a_new_process_replaces_the_one_before() -> None:
    members = roster()
    members.hello(hello(nonce="a"), 0.0)
    change = members.hello(hello(nonce="b"), 1.0)
    assert change.welcome == Welcome("b", 2)
    assert change.died == 1
    assert change.began_serving
    assert change.member.num_restarts == 1


def test_a_death_that_was_noticed_is_not_told_twice() -> None:
    members = roster()
    members.hello(hello(nonce="a"), 0.0)
    members.lost("mem://i-0")
    assert members.hello(hello(nonce="b"), 1.0).died is None


def test_a_process_that_comes_back_is_fenced() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    lost = members.lost("mem://i-0")
    assert lost is not None
    assert (lost.alive, lost.num_live_reqs) == (False, 0)
    change = members.hello(hello(incarnation=1), 1.0)
    assert change.welcome == Welcome("a", 2, fenced=True)
    assert change.began_serving
    assert change.member.num_restarts == 0


def test_of_two_processes_of_one_id_the_displaced_one_is_fenced_when_it_speaks() -> None:
    members = roster()
    members.hello(hello(nonce="a"), 0.0)
    members.hello(hello(nonce="b"), 1.0)
    change = members.hello(hello(nonce="a", incarnation=1), 2.0)
    assert change.welcome == Welcome("a", 3, fenced=True)
    assert change.died == 2


def test_a_restarted_controller_adopts_what_its_members_name() -> None:
    change = roster().hello(hello(incarnation=7), 0.0)
    assert change.member.incarnation == 7
    assert change.welcome == Welcome("a", 7)
    assert change.died is None
    assert change.began_serving
    assert change.member.num_restarts == 0


def test_unknown_members_are_refused() -> None:
    members = roster()
    assert members.hello(hello("i-9"), 0.0) is None
    members.expect("frontend", "i-5")
    assert members.hello(hello("i-5"), 0.0) is None, "an id of another kind"
    assert "i-9" not in members.members


def test_loss_is_by_address_and_once() -> None:
    members = roster()
    members.hello(hello(address="mem://old"), 0.0)
    assert members.lost("mem://other") is None
    assert members.lost("mem://old") is members.members["i-0"]
    assert members.lost("mem://old") is None


def test_expecting_again_forgets_nothing() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    members.expect("instance", "i-0")
    assert members.members["i-0"].incarnation == 1
    assert [m.member_id for m in members.frontends()] == ["f-0"]


@dataclass
class Process:
    """A member as it is: it learns its incarnation from Welcomes, some of which get lost."""

    nonce: str
    incarnation: int = 0
    known: list[int] = field(default_factory=list)


class RosterMachine(RuleBasedStateMachine):
    """Any processes of one id, welcomes, losses and other controllers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.roster = roster()
        self.kept: dict[str, LastIncarnation] = {}
        self.processes: list[Process] = []
        self.owner: dict[int, str] = {}
        self.highest = self.given_before = 0
        self.now_s = 0.0

    @rule(incarnation=st.integers(0, 5))
    def start(self, incarnation: int) -> None:
        """`incarnation` is not 0 for a process from before the first controller here, which comes
        after all those of smaller numbers."""
        nonce = f"p{len(self.processes)}"
        is_old = not self.highest and incarnation > self.given_before
        self.processes.append(Process(nonce, incarnation if is_old else 0))
        if is_old:
            self.given_before = incarnation
            self.kept["i-0"] = LastIncarnation(incarnation, alive=True)
            self.restart_controller()

    @rule(data=st.data(), active=st.booleans(), arrives=st.booleans())
    def speak(self, data: st.DataObject, active: bool, arrives: bool) -> None:
        if not self.processes:
            return
        process = data.draw(st.sampled_from(self.processes))
        self.now_s += 1
        before = self.roster.members["i-0"].incarnation
        said = hello(
            nonce=process.nonce,
            incarnation=process.incarnation,
            phase="active" if active else "starting",
            address=f"mem://{process.nonce}",
        )
        change = self.roster.hello(said, self.now_s)
        assert change is not None
        now = change.member.incarnation
        assert self.owner.setdefault(now, process.nonce) == process.nonce, "given to two"
        assert now >= max(before, self.highest)
        assert change.died in (None, before)
        ran_something = process.incarnation not in (0, now)
        if change.welcome is None:
            assert process.incarnation == now
        else:
            assert change.welcome.incarnation == now
            self._keep(change.member)
            if ran_something and now > before:
                assert change.welcome.fenced
            if arrives:
                process.incarnation = now
        self.highest = now

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        if self.processes:
            process = data.draw(st.sampled_from(self.processes))
            if member := self.roster.lost(f"mem://{process.nonce}"):
                self._keep(member)

    @rule()
    def restart_controller(self) -> None:
        self.roster = roster(self.kept)

    def _keep(self, member: Member) -> None:
        self.kept[member.member_id] = LastIncarnation(member.incarnation, member.alive)

    @invariant()
    def only_a_heard_process_is_alive(self) -> None:
        member = self.roster.members["i-0"]
        assert not member.alive or member.incarnation > 0
        assert not member.serving or member.alive


TestRosterMachine = RosterMachine.TestCase
TestRosterMachine.settings = settings(stateful_step_count=30)


def test_a_fenced_process_that_comes_back_is_another_incarnation_and_drops_what_it_ran() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    member = members.fence("i-0", "silent")
    assert (member.alive, member.fenced, member.serving, member.detail) == (
        False,
        True,
        False,
        "silent",
    )
    change = members.hello(hello(incarnation=1), 1.0)
    assert change is not None
    assert (change.welcome, change.died) == (Welcome("a", 2, fenced=True), None)
    assert (member.alive, change.began_serving) == (True, True)
    members.hello(hello(incarnation=2), 2.0)
    assert (member.fenced, member.detail) == (True, "silent"), "its engine may hang as before"
    members.reported(member)
    assert (member.fenced, member.detail) == (False, "")


def test_a_fenced_process_is_no_more_once_another_takes_its_place() -> None:
    for gone in (False, True):
        members = roster()
        members.hello(hello(), 0.0)
        member = members.fence("i-0", "silent")
        members.hello(hello(incarnation=1), 1.0)
        if gone:
            members.lost(hello().address)
            assert (member.fenced, member.detail) == (False, "its process is gone")
        members.hello(hello(nonce="b", phase="starting"), 2.0)
        assert (member.fenced, member.detail) == (False, "")


def test_a_fenced_process_that_dies_is_no_second_death() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    members.fence("i-0", "silent")
    assert members.lost(hello().address) is None
    change = members.hello(hello(nonce="b"), 1.0)
    assert change is not None
    assert (change.welcome, change.died) == (Welcome("b", 2), None)


def test_who_asks_gets_a_welcome_though_nothing_has_changed() -> None:
    members = roster()
    members.hello(hello(), 0.0)
    change = members.hello(hello(incarnation=1, asks=True), 1.0)
    assert change is not None
    assert change.welcome == Welcome("a", 1)


def test_a_node_is_lost_with_its_last_instance() -> None:
    members = Roster()
    for instance_id, node in (("i-0", "a"), ("i-1", "a"), ("i-2", "b")):
        members.expect("instance", instance_id)
        assert members.hello(replace(hello(instance_id), node=node), 0.0) is not None
    first = members.lost(hello("i-0").address)
    assert first is not None
    assert members.lost_with(first) == []
    second = members.fence("i-1", "silent")
    assert [each.member_id for each in members.lost_with(second)] == ["i-0", "i-1"]
    third = members.fence("i-2", "silent")
    assert members.lost_with(third) == [], "it had one instance: who knows what died"


def test_without_other_nodes_no_node_is_lost() -> None:
    members = Roster()
    for instance_id in ("i-0", "i-1"):
        members.expect("instance", instance_id)
        members.hello(hello(instance_id), 0.0)
    for instance_id in ("i-0", "i-1"):
        assert members.lost_with(members.fence(instance_id, "silent")) == []
