"""The machine of notices: claims follow what processes, files on machines and the launcher say."""

import math
from dataclasses import dataclass, field
from random import Random

import pytest

from controller.core.emptying import notices
from controller.core.emptying.claims import Claims, Drain, Evacuate, claimed
from controller.core.emptying.notices import AVOIDED_FOR_S, Notices, within_of

T = 1000.0


@dataclass
class Cluster:
    """Instances i-0, i-1, ... on the machines m-0 and m-1, by turns."""

    machine: Notices = field(default_factory=Notices)
    now_s: float = T
    ids: set[str] = field(default_factory=lambda: {"i-0", "i-1", "i-2", "i-3"})
    claims: dict[str, Claims] = field(default_factory=dict)
    leaving: dict[str, float | None] | None = field(default_factory=dict)
    avoided: frozenset[str] = frozenset()
    files: dict[str, float] = field(default_factory=dict)
    """By machine, when it is left as a file there says."""
    processes: dict[str, float] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    def says(self, instance_id: str, why: str = "a file") -> None:
        at_s, file_s = self.processes.get(instance_id), self.files.get(machine_of(instance_id))
        self.handle(
            notices.InstanceSaid(
                instance_id,
                self.incarnations.get(instance_id, 1),
                machine_of(instance_id),
                None if at_s is None else at_s - self.now_s,
                None if file_s is None else file_s - self.now_s,
                why,
                self.now_s,
            )
        )

    def all_say(self) -> None:
        for instance_id in sorted(self.ids):
            self.says(instance_id)

    def looks(self) -> None:
        looked = notices.Looked(frozenset(self.ids), dict(self.claims), self.leaving, self.now_s)
        self.handle(looked)

    def handle(self, event: notices.Event) -> None:
        for told in self.machine.handle(event):
            match told:
                case notices.Look():
                    self.looks()
                case notices.MakeClaim(instance_id, claim):
                    assert claim.cause_id not in self.made, "two drains of one id"
                    self.made.append(claim.cause_id)
                    self.claims[instance_id] = claimed(self.claims.get(instance_id), claim)
                case notices.TakeBack(instance_id, kind, _):
                    self.take_back(instance_id, kind)
                case notices.Avoid(machines):
                    self.avoided = machines
        self.machine.check()

    def take_back(self, instance_id: str, kind: type) -> None:
        left = self.claims.pop(instance_id).without(kind)
        if left is not None:
            self.claims[instance_id] = left

    def notice(self, instance_id: str) -> Evacuate | None:
        return self.claims[instance_id].notice if instance_id in self.claims else None


def machine_of(instance_id: str) -> str:
    return f"m-{int(instance_id[2:]) % 2}"


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.all_say()
    made.looks()
    assert made.claims == {}
    return made


def test_all_instances_of_a_drained_node_go_a_little_before_it(cluster: Cluster) -> None:
    cluster.leaving = {"m-0": T + 30.0, "m-9": T + 5.0}
    cluster.looks()
    assert set(cluster.claims) == {"i-0", "i-2"}
    notice = cluster.notice("i-0")
    assert (notice.deadline_s, notice.by, notice.reason) == (
        T + 29.0,
        "machine",
        "Ray drains its node",
    )
    assert cluster.avoided == {"m-0", "m-9"}
    cluster.ids.add("i-4")
    cluster.now_s += 3.0
    cluster.says("i-4")
    cluster.looks()
    assert cluster.notice("i-4").deadline_s == T + 29.0, "it came too late to know"
    assert len(cluster.made) == 3, "a notice that stands is not made again"


def test_five_seconds_leave_no_whole_second_to_spare(cluster: Cluster) -> None:
    cluster.leaving = {"m-0": T + 5.0}
    cluster.looks()
    assert cluster.notice("i-0").deadline_s == T + 4.5


def test_a_moment_that_changes_is_followed_and_one_that_is_told_again_is_not(
    cluster: Cluster,
) -> None:
    cluster.files["m-1"] = T + 20.0
    cluster.says("i-1")
    cluster.now_s += 1.0
    cluster.files["m-1"] += 0.3
    cluster.all_say()
    assert cluster.notice("i-1").deadline_s == cluster.notice("i-3").deadline_s == T + 19.0
    cluster.files["m-1"] = T + 60.0
    cluster.all_say()
    assert cluster.notice("i-1").deadline_s == T + 59.0
    assert cluster.made == ["notice-i-1-1", "notice-i-3-1", "notice-i-1-1-2", "notice-i-3-1-2"]


def test_a_file_that_is_gone_takes_its_notice_back_and_leaves_an_operators_claims(
    cluster: Cluster,
) -> None:
    operators = Evacuate("op-2", T, deadline_s=T + 5.0)
    cluster.claims = {"i-0": Claims.first(Drain("op-1", T)), "i-2": Claims.first(operators)}
    cluster.files["m-0"] = T + 20.0
    cluster.all_say()
    assert cluster.notice("i-0").by == "machine"
    assert cluster.notice("i-2") == operators, "it is the earlier one"
    del cluster.files["m-0"]
    cluster.says("i-2")
    cluster.looks()
    assert cluster.notice("i-0") is not None, "i-0 has not seen yet that it is gone"
    cluster.says("i-0")
    assert cluster.claims == {
        "i-0": Claims.first(Drain("op-1", T)),
        "i-2": Claims.first(operators),
    }
    assert cluster.avoided == set()


def test_an_earlier_notice_replaces_an_operators_evacuation(cluster: Cluster) -> None:
    cluster.claims = {"i-0": Claims.first(Evacuate("op-1", T, deadline_s=T + 60.0))}
    cluster.leaving = {"m-0": T + 30.0}
    cluster.looks()
    assert cluster.notice("i-0").deadline_s == T + 29.0


def test_nobody_takes_back_that_a_process_ends_or_that_a_node_drains(cluster: Cluster) -> None:
    cluster.processes["i-1"] = T + 30.0
    cluster.leaving = {"m-0": T + 30.0}
    cluster.says("i-1")
    cluster.claims.clear()  # by an operator
    cluster.looks()
    assert cluster.notice("i-1").by == "process"
    assert cluster.notice("i-1").deadline_s == T + 30.0
    cluster.leaving = {}  # the node is dead, and its instances are not known to be
    cluster.now_s += 30.0
    cluster.looks()
    assert cluster.notice("i-0").by == "machine"


def test_a_notice_without_a_moment_leaves_the_usual_time(cluster: Cluster) -> None:
    cluster.leaving = {"m-0": None}
    cluster.looks()
    cluster.now_s += 10.0
    cluster.looks()
    assert cluster.notice("i-0").deadline_s == T + 29.0
    cluster.leaving = {"m-0": T + 300.0}
    cluster.looks()
    assert cluster.notice("i-0").deadline_s == T + 299.0


def test_a_controller_that_starts_again_takes_nothing_back_before_it_knows(
    cluster: Cluster,
) -> None:
    cluster.files["m-0"] = T + 30.0
    cluster.all_say()
    claims = dict(cluster.claims)
    again = Cluster(claims=cluster.claims, leaving=None, files={})
    again.looks()
    again.says("i-0")
    again.looks()
    assert again.claims == claims, "Ray has not said yet what it drains"
    again.leaving = {}
    again.looks()
    assert set(again.claims) == {"i-2"}, "i-2 has not been heard"


def test_a_machine_that_was_left_is_avoided_for_a_while(cluster: Cluster) -> None:
    cluster.files["m-0"] = T + 30.0
    cluster.all_say()
    cluster.ids -= {"i-0", "i-2"}
    cluster.claims.clear()
    cluster.looks()
    assert cluster.avoided == {"m-0"}
    cluster.now_s += 30.0 + AVOIDED_FOR_S - 1.0
    cluster.looks()
    assert cluster.avoided == {"m-0"}
    cluster.ids.add("i-4")  # it came there all the same, and the file is still there
    cluster.says("i-4")
    assert cluster.notice("i-4") is not None
    del cluster.files["m-0"]
    cluster.says("i-4")
    assert cluster.avoided == set()
    assert cluster.claims == {}


@pytest.mark.parametrize("seed", range(60))
def test_claims_follow_the_notices_in_any_order(seed: int) -> None:
    dice, cluster, number = Random(seed), Cluster(), 4
    for _ in range(200):
        cluster.now_s += dice.uniform(0.0, 2.0)
        machine, within_s = dice.choice(["m-0", "m-1"]), dice.uniform(2.0, 60.0)
        instance_id = dice.choice(sorted(cluster.ids)) if cluster.ids else ""
        match dice.randrange(9):
            case 0:
                cluster.files[machine] = cluster.now_s + within_s
            case 1:
                cluster.files.pop(machine, None)
            case 2 if len(cluster.leaving or {}) < 1:
                moment_s = dice.choice([None, cluster.now_s + within_s])
                cluster.leaving = {machine: moment_s}
            case 3:
                cluster.leaving = None if dice.random() < 0.3 else cluster.leaving
            case 4 if instance_id:
                cluster.processes[instance_id] = cluster.now_s + within_s
            case 5 if instance_id:  # its process died
                cluster.processes.pop(instance_id, None)
                cluster.incarnations[instance_id] = cluster.incarnations.get(instance_id, 1) + 1
            case 6 if instance_id:  # it was removed
                cluster.ids.discard(instance_id)
                cluster.claims.pop(instance_id, None)
            case 7:
                cluster.ids.add(f"i-{number}")
                number += 1
            case 8 if instance_id:
                claim = Evacuate(f"op-{cluster.now_s}", cluster.now_s, cluster.now_s + within_s)
                cluster.claims[instance_id] = claimed(cluster.claims.get(instance_id), claim)
        if dice.random() < 0.5:
            cluster.all_say()
            cluster.looks()
            follows(cluster)


def follows(cluster: Cluster) -> None:
    """What must hold once every instance has spoken."""
    standing = {each.machine for each in cluster.machine.view() if each.machine}
    for instance_id in cluster.ids:
        machine, notice = machine_of(instance_id), cluster.notice(instance_id)
        known = [cluster.processes.get(instance_id), cluster.files.get(machine)]
        by_s = min((each for each in known if each is not None), default=math.inf)
        drained = machine in (cluster.leaving or {})
        drained_s = (cluster.leaving or {}).get(machine)
        by_s = min(by_s, math.inf if drained_s is None else drained_s)
        if by_s < math.inf or drained:
            assert notice is not None, f"{instance_id} stays"
            assert notice.deadline_s <= by_s + notices.SAME_MOMENT_S
        elif cluster.leaving is not None and notice is not None:
            assert notice.by != "machine" or machine in standing, "it leaves for nothing"
    assert cluster.avoided == standing >= set(cluster.leaving or {})
    assert cluster.avoided >= {machine_of(each) for each in cluster.ids} & cluster.files.keys()


@pytest.mark.parametrize(
    ("text", "within_s"),
    [
        ("", 30.0),
        (" \n", 30.0),
        ("TRUE", 30.0),
        ("FALSE\n", None),
        ("NONE", None),
        ("12\n", 12.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("1970-01-01T00:17:00Z", 20.0),
        ("1970-01-01T01:17:00+01:00", 20.0),
        ("1970-01-01T00:16:00Z", 0.0),
        ('{"action": "terminate", "time": "1970-01-01T00:17:00Z"}', 20.0),
    ],
)
def test_what_a_file_may_say(text: str, within_s: float | None) -> None:
    assert within_of(text, T, 30.0) == within_s


@pytest.mark.parametrize(
    "text",
    ["-1", "nan", "inf", "1e9", "soon", "1970-01-01T00:17:00", "<html>404</html>", "{", "{}",
     '{"time": 5}', "2070-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_no_notice(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        within_of(text, T, 30.0)
